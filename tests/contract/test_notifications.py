# SPDX-License-Identifier: Apache-2.0
"""Versioned notifications: their format, and the samples in the documentation.

``python -m tests.contract.test_notifications`` writes the samples again.
"""

import contextlib
import json
import pathlib
import types
from unittest import mock

from nova import objects
from nova import rpc
import nova.conf
from nova.objects import base as nova_base
from oslo_serialization import jsonutils
from oslo_versionedobjects import fixture
import pytest

from nova_accel.compute import notifications
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from tests.unit import build

CONF = nova.conf.CONF

SAMPLES = (pathlib.Path(__file__).parents[2] / 'doc' / 'source'
           / 'reference' / 'notification_samples')
_SERVER = '178b0921-8f85-4257-88b6-2e743b5a975c'
_GPU = build.address('0000:43:00.0')


def _item(*withheld):
    """Return an offered GPU that is withheld in the given states."""
    return build.offered(build.region(
        'CUSTOM_GPU_H100', bus=_GPU.bus, ids=((_GPU, '10de:2330'),),
        withheld=tuple(((_GPU,), state) for state in withheld)),
        location=model.Location(0))


@pytest.fixture(autouse=True)
def registered():
    objects.register_all()


@contextlib.contextmanager
def _sent(format='both'):
    """Collect the notifications that are sent."""
    found = []

    def prepare(publisher_id):
        def send(priority):
            return lambda _context, event_type, payload: found.append({
                'publisher_id': publisher_id, 'priority': priority,
                'event_type': event_type,
                'payload': jsonutils.to_primitive(payload)})
        return types.SimpleNamespace(
            info=send('INFO'), error=send('ERROR'))

    before = CONF.notifications.notification_format, CONF.host
    CONF.set_override('notification_format', format, 'notifications')
    CONF.set_override('host', 'host1')
    try:
        with mock.patch.object(rpc, 'NOTIFIER', mock.Mock(prepare=prepare)):
            yield found
    finally:
        CONF.set_override('notification_format', before[0], 'notifications')
        CONF.set_override('host', before[1])


def _device(state, is_begin, reason='', servers=()):
    item = _item(*[state] * is_begin)
    notifications.device_changed(item, 'host1', state, item.region.units,
                                 is_begin, reason, servers)


def _instance(is_begin):
    instance = objects.Instance(
        uuid=_SERVER, project_id='6f70656e737461636b20342065766572',
        user_id='fake', display_name='trainer', flavor=objects.Flavor(
            extra_specs={'nova_accel:profile': 'gpu'}))
    item = _item()
    notifications.instance_changed(
        _SERVER, instance, 'host1', [hostdev.Hostdev(_GPU, naming.alias(
            'ACCEL0', item.uuid, 0, item.device.ids))], is_begin,
        int(is_begin), build.inventory(model.Host(devices=(item.device,))))


def _send_all():
    states = model.WithheldState
    _device(states.DRAINED, True, 'an operator drains it: fan is loud (since '
            '2026-11-25 20:15:00 UTC)', [_SERVER])
    _device(states.DRAINED, False)
    _device(states.RESET_FAILED, True, 'its reset failed: Inappropriate ioctl '
            'for device')
    _device(states.CLEANING, True, 'it is being cleaned after its last server')
    _device(states.CLEANING_FAILED, True, 'it could not be cleaned after its '
            'last server: verify: \'/usr/bin/nova-accel-nvme\' ended with 1')
    _device(states.UNHEALTHY, True, 'its link is down')
    _device(states.UNHEALTHY, False)
    _instance(True)
    _instance(False)


def _samples():
    with _sent() as sent:
        _send_all()
    return {one['event_type']: json.dumps(one, indent=4, sort_keys=True) + '\n'
            for one in sent}


def test_samples_are_the_sent_notifications():
    made = _samples()
    assert len(made) == 9
    assert made == {path.stem: path.read_text()
                    for path in SAMPLES.glob('*.json')}


def test_documentation_has_every_sample():
    page = (SAMPLES.parent / 'notifications.rst').read_text()
    for name in _samples():
        assert f'``{name}``' in page
        assert f'literalinclude:: notification_samples/{name}.json' in page


def test_none_is_sent_if_nova_sends_unversioned_ones_only():
    with _sent('unversioned') as sent:
        _send_all()
    assert not sent


@pytest.mark.parametrize('state', model.WithheldState)
def test_every_state_has_a_begin_and_an_end(state):
    with _sent() as sent:
        _device(state, True)
        _device(state, False)
    begin, end = sent
    assert begin['event_type'] != end['event_type']
    assert {one['payload']['nova_object.data']['state'] for one in sent} == {
        state}


def test_server_that_nova_does_not_know():
    with _sent() as sent:
        notifications.instance_changed(
            _SERVER, None, 'host1', [], False, 0,
            build.inventory(model.Host()))
    assert sent[0]['payload']['nova_object.data']['tenant_id'] is None


def test_fields_change_with_the_version_only():
    """The hash of each payload class is that of its version.

    If a hash differs, raise the version, and write the samples again.
    """
    classes = [notifications.AccelDevicePayload,
               notifications.AccelAssignedDevicePayload,
               notifications.AccelInstancePayload]
    checker = fixture.ObjectVersionChecker(
        {one.__name__: [one] for one in classes})
    assert checker.get_hashes() == {
        'AccelDevicePayload': '1.0-ea28b347eb2bbacb81765f0e9d8afddb',
        'AccelAssignedDevicePayload':
            '1.0-dfa48839957e3aacb035a7d90be7c421',
        'AccelInstancePayload': '1.0-cada57a9543fda8d49862bfb69480a9c',
    }


def test_classes_are_not_in_novas_registry():
    """Classes are not in Nova's registry, which Nova compares with a list."""
    registry = nova_base.NovaObjectRegistry
    assert not any(one.__module__.startswith('nova_accel')
                   for one in registry.notification_classes)
    assert not {'AccelDevicePayload', 'EventType'} & set(
        registry.obj_classes())


if __name__ == '__main__':
    objects.register_all()
    for name, text in _samples().items():
        (SAMPLES / f'{name}.json').write_text(text)

# SPDX-License-Identifier: Apache-2.0
"""From a resource class per model to one class."""

import json

import pytest

from nova_accel.core import errors
from nova_accel.core.migration import classes
from nova_accel.core.migration import plan
from tests.unit import build

MOVES = {'CUSTOM_H100': 'CUSTOM_GPU', 'VGPU': 'CUSTOM_GPU'}
H100 = {'vendor_id': '10de', 'product_id': '2330'}


def _make(*entries, profiles=(), flavors=(), servers=()):
    return classes.make(classes.Source(
        build.entries(*entries), dict(profiles), (), flavors, servers),
        MOVES, 'out')


def _flavor(name, **specs):
    return plan.Flavor(name, name, specs)


@pytest.mark.parametrize('entry, expected', [
    ({**H100, 'resource_class': 'h100', 'traits': 'nvlink'},
     {**H100, 'resource_class': 'CUSTOM_GPU',
      'traits': ['CUSTOM_H100', 'CUSTOM_NVLINK']}),
    ({**H100, 'mdev_type': 'nvidia-1'},
     {**H100, 'mdev_type': 'nvidia-1', 'resource_class': 'CUSTOM_GPU',
      'traits': ['CUSTOM_VGPU']}),
    (H100, H100)])
def test_entries(entry, expected):
    planned = _make(entry)
    [text] = [step.file.content for step in planned.steps if step.file]
    head, option, entry, last = text.split('\n')
    assert (head, last) == ('[nova_accel]', '')
    assert option == 'moved_classes = CUSTOM_H100:CUSTOM_GPU,VGPU:CUSTOM_GPU'
    assert json.loads(entry.removeprefix('device_spec = ')) == expected
    assert planned.losses == ()


@pytest.mark.parametrize('entry, reason', [
    ({'vendor_id': '10de'}, 'does not say which class'),
    ({'vendor_id': '10de', 'regions_file': '/x'}, 'has a regions_file'),
    ({**H100, 'resource_class': 'CUSTOM_GPU'}, 'get the other models as well'),
])
def test_entries_that_are_not_carried_over(entry, reason):
    [loss] = _make(entry).losses
    assert reason in loss.reason


def test_steps_in_their_order():
    flavor = _flavor('gpu', **{'resources:CUSTOM_H100': '1'})
    planned = _make({**H100, 'resource_class': 'CUSTOM_H100'}, profiles={
        '/etc/nova/device_profiles.d/gpu.yaml': 'text\n'}, flavors=[
        flavor, _flavor('nic', **{'resources:CUSTOM_NIC': '1'})])
    assert [step.title.partition(':')[0].split(' ')[:4]
            for step in planned.steps] == [
        'Write out/gpu.yaml'.split(), 'Write out/nova_accel.conf'.split(),
        'On each compute host,'.split(), 'If Keystone has limits'.split(),
        'Switch one compute host'.split(),
        'Add "[nova_accel] moved_classes ='.split(),
        'Change flavor gpu'.split(), 'Switch the other compute'.split(),
        'When the command lists'.split()]
    assert ('cp out/gpu.yaml /etc/nova/device_profiles.d/gpu.yaml'
            in planned.steps[5].commands)
    assert planned.steps[6].change == plan.Change(
        flavor, {'resources:CUSTOM_GPU': '1',
                 'trait:CUSTOM_H100': 'required'}, ('resources:CUSTOM_H100',))
    assert sum(step.is_automatic for step in planned.steps) == 3


def test_files_of_one_name():
    planned = _make(profiles={'/a/gpu.yaml': 'a\n', '/b/gpu.yaml': 'b\n',
                              '/b/nic.yaml': 'c\n', '/c/d/gpu.yaml': 'd\n',
                              '/c-d/gpu.yaml': 'e\n'})
    assert [(step.file.path, step.file.content) for step in planned.steps[:5]
            ] == [('out/a-gpu.yaml', 'a\n'), ('out/b-gpu.yaml', 'b\n'),
                  ('out/nic.yaml', 'c\n'), ('out/4-c-d-gpu.yaml', 'd\n'),
                  ('out/5-c-d-gpu.yaml', 'e\n')]
    [commands] = [step.commands for step in planned.steps
                  if 'cp out/nic.yaml /b/nic.yaml' in step.commands]
    assert 'cp out/b-gpu.yaml /b/gpu.yaml' in commands


def test_flavor_that_cannot_ask_for_the_same():
    [loss] = _make(flavors=[_flavor('both', **{
        'resources:CUSTOM_H100': '1', 'resources:VGPU': '1'})]).losses
    assert isinstance(loss, errors.AccelError)
    assert (loss.thing, loss.remedy) == (
        'flavor both', 'write a profile with a group for each')


@pytest.mark.parametrize('server, effect', [
    (plan.Server('u', extra_specs={'resources_ACCEL0:CUSTOM_H100': '1'},
                 host='compute1'), 'keeps its devices'),
    (plan.Server('u', flavor='old', host='compute1'), 'keeps its devices'),
    (plan.Server('u', flavor='old'), 'is on no host'),
    (plan.Server('u', flavor='old', extra_specs={
        'resources:CUSTOM_GPU': '1'}, host='compute1'), None)])
def test_servers_that_have_a_class_of_before(server, effect):
    found = _make(flavors=[_flavor('old', **{'resources:VGPU': '1'})],
                  servers=[server]).servers
    assert len(found) == (effect is not None)
    assert all(text.startswith(effect) for _server, text in found)

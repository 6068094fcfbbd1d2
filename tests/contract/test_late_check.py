# SPDX-License-Identifier: Apache-2.0
"""The late check of host domains in nova-compute."""

import types
from unittest import mock

from nova import context
from nova import exception
from nova import objects
import nova.conf
import pytest

from nova_accel import group_hosts
from nova_accel.compute import same_domain
from nova_accel.core.request import flavor_specs

_DOMAINS = {'here': frozenset({'rack1'}), 'there': frozenset({'rack2'})}


@pytest.fixture(autouse=True)
def domains(monkeypatch):
    objects.register_all()
    monkeypatch.setattr(group_hosts, 'domains', lambda _context: _DOMAINS)
    monkeypatch.setattr(same_domain, '_SECONDS', 0)


def _server(number=5, host='there', vm_state='building', task_state=None):
    return objects.Instance(
        id=number, host=host, vm_state=vm_state, task_state=task_state,
        uuid=f'00000000-0000-4000-8000-00000000000{number}',
        flavor=objects.Flavor(extra_specs={
            flavor_specs.SAME_DOMAIN_KEY: 'required'}))


def _validate(instance, *looks):
    """Check a server on the host ``here``.

    :param looks: the other servers, each time that they are read
    :returns: how often they were read
    """
    with mock.patch.object(group_hosts, 'others',
                           side_effect=looks) as others:
        same_domain.validate.wrapper(
            mock.Mock(), types.SimpleNamespace(host='here'), None, instance,
            None)
    return others.call_count


_BUILT = {'vm_state': 'active'}
_PASSED = {'task_state': 'networking'}


@pytest.mark.parametrize('more', [_BUILT, _PASSED, {'number': 1},
                                  {'vm_state': 'error', 'number': 9}])
def test_server_leaves_if_another_was_first(more):
    with pytest.raises(exception.GroupAffinityViolation):
        _validate(_server(), [_server(**{'number': 9, **more})])


def test_server_waits_for_a_later_one_to_decide():
    looks = [_server(9)], [_server(9)]
    assert _validate(_server(), *looks, []) == 3
    with pytest.raises(exception.GroupAffinityViolation):
        _validate(_server(), *looks, [_server(9, **_PASSED)])


def test_server_does_not_wait_forever(monkeypatch):
    log = mock.Mock()
    monkeypatch.setattr(same_domain, 'LOG', log)
    with pytest.raises(exception.GroupAffinityViolation):
        _validate(_server(), *[[_server(9)]] * 99)
    [call] = log.warning.call_args_list
    assert call.args[1:] == ('rack1', 'there (rack2)')


def test_servers_that_do_not_ask_for_a_domain_read_nothing():
    for value in 'preferred', '':
        instance = _server()
        instance.flavor.extra_specs = {flavor_specs.SAME_DOMAIN_KEY: value}
        assert _validate(instance) == 0


def test_without_upcalls_nothing_is_read(monkeypatch):
    log = mock.Mock()
    monkeypatch.setattr(same_domain._unchecked, '_log', log)
    nova.conf.CONF.set_override('disable_group_policy_check_upcall', True,
                                'workarounds')
    try:
        assert _validate(_server()) == 0
        assert _validate(_server(6)) == 0
        [(_level, _format, line)] = [
            call.args for call in log.log.call_args_list]
        assert 'disable_group_policy_check_upcall is set' in line
    finally:
        nova.conf.CONF.clear_override('disable_group_policy_check_upcall',
                                      'workarounds')


def test_violation_is_of_both_classes_that_nova_handles():
    for handled in (exception.GroupAffinityViolation,
                    exception.RescheduledException):
        with pytest.raises(handled, match='host domain'):
            _validate(_server(), [_server(9, **_BUILT)])


def test_violation_of_novas_own_policy_comes_first():
    with pytest.raises(exception.GroupAffinityViolation, match='Affinity'):
        same_domain.validate.wrapper(
            mock.Mock(side_effect=exception.GroupAffinityViolation(
                policy='Affinity')), None, None, _server())


def test_servers_of_a_request_are_those_with_its_reservation():
    asked = []

    def find(_context, filters, **_more):
        asked.append(filters)
        return [objects.Instance(uuid=uuid, host=host, reservation_id=found)
                for uuid, host, found in (
            (_server().uuid, 'here', 'r-1'), (_server(6).uuid, 'there', 'r-1'),
            (_server(7).uuid, None, 'r-1'), (_server(8).uuid, 'x', 'r-12'))
            if filters.get('uuid') in (None, [uuid])]

    admin = context.get_admin_context()
    with mock.patch.object(objects.InstanceList, 'get_by_filters', find), \
            mock.patch.object(
                objects.InstanceGroup, 'get_by_instance_uuid',
                side_effect=exception.InstanceGroupNotFound(group_uuid='x')):
        [found] = group_hosts.others(admin, _server())
    assert found.uuid == _server(6).uuid
    assert [*asked[1]] == ['reservation_id', 'deleted']


def test_cells_that_do_not_answer_are_left_out():
    with mock.patch.object(context, 'scatter_gather_skip_cell0', return_value={
            'one': ['a'], 'two': context.did_not_respond_sentinel,
            'three': exception.CellTimeout(), 'four': []}):
        assert group_hosts.in_all_cells(None, None) == ['a']


def test_members_of_a_group_do_not_include_the_servers_of_the_request():
    asked = []

    def find(_context, filters, **_more):
        asked.append(filters['uuid'])
        return []

    with mock.patch.object(objects.InstanceList, 'get_by_filters', find):
        for members in ['a', 'b', 'c'], ['a', 'b']:
            group_hosts.of_group(context.get_admin_context(), ['a', 'b'],
                                 objects.InstanceGroup(members=members))
    # Without a uuid, Nova would return all servers.
    assert asked == [['c']]

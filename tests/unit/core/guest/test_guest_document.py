# SPDX-License-Identifier: Apache-2.0
from nova_accel.core import model
from nova_accel.core.guest import device_role
from nova_accel.core.guest import guest_buses
from nova_accel.core.guest import guest_document

_SERVER = '11111111-2222-3333-4444-555555555555'
_PROVIDER = '4f6c08b3-2324-54ab-b04c-61c99d0c476c'


def _role(group, **facts):
    return device_role.DeviceRole(f'ua-{group}', group, 'CUSTOM_GPU',
                                  _PROVIDER, **facts)


_PLACED = _role('Big GPU', position=guest_buses.Position(
    model.PciAddress(0, 0xc9, 0, 0), 'c8/00.0/00.0', 1), numa_node=3,
    switch=0, link_domain=0)


def _requests(*roles):
    return guest_document.build(_SERVER, roles)['requests']


def test_document():
    assert guest_document.build(
        _SERVER, [_PLACED], [guest_document.Cell(0, '0-3')], '<system/>') == {
            'apiVersion': 'metadata.resource.k8s.io/v1alpha1',
            'kind': 'DeviceMetadata',
            'metadata': {'name': _SERVER, 'uid': _SERVER, 'generation': 1},
            'requests': [{'name': 'big-gpu', 'devices': [{
                'name': 'big-gpu-0', 'driver': 'nova-accel.openstack.org',
                'pool': _SERVER, 'attributes': {
                    'group': {'string': 'Big GPU'},
                    'resourceClass': {'string': 'CUSTOM_GPU'},
                    'resource.kubernetes.io/pciBusID': {
                        'string': '0000:c9:00.0'},
                    'path': {'string': 'c8/00.0/00.0'},
                    'numaCell': {'int': 1},
                    'provider': {'string': _PROVIDER},
                    'hostNumaNode': {'int': 3},
                    'hostPcieSwitch': {'int': 0},
                    'linkDomain': {'int': 0}}}]}],
            'numaCells': [{'id': 0, 'cpus': '0-3'}],
            'ncclTopology': '<system/>'}


def test_unknown_facts_are_left_out():
    [request] = _requests(_role(''))
    assert request['name'] == 'flavor'
    assert request['devices'][0]['attributes'] == {
        'resourceClass': {'string': 'CUSTOM_GPU'},
        'provider': {'string': _PROVIDER}}


def test_facts_that_can_change_while_the_guest_runs_are_left_out():
    [request] = _requests(_role('a', numa_node=0, switch=0, link_domain=0,
                                moves=True))
    assert request['devices'][0]['attributes'].keys() == {'group',
                                                          'resourceClass'}


def test_names_are_dns_labels():
    requests = _requests(*[_role('x' * 64)] * 256, *(
        _role(f'{"x" * 60}{number}') for number in range(200)))
    names = [request['name'] for request in requests]
    assert len(set(names)) == len(names) == 201
    assert max(len(device['name']) for request in requests
               for device in request['devices']) <= 63


def test_each_group_has_a_request_of_its_own():
    requests = _requests(*map(_role, ('a_b', 'a-b', 'A-B', 'a_b')))
    assert {request['name']: len(request['devices'])
            for request in requests} == {'a-b': 2, 'a-b-2': 1, 'a-b-3': 1}

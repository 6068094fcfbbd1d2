# SPDX-License-Identifier: Apache-2.0
"""The commands ``openstack accel``, as operator and as tenant."""

import json

import pytest

from tests.integration import steps
from tests.integration.stage1 import conftest
from tests.integration.stage1 import outer

GPU = outer.GPU


@pytest.fixture
def accel(cloud):
    """Return a function that runs ``openstack accel`` and parses its JSON."""
    def run(*words, user=()):
        said = cloud.run('env', *user, 'openstack', 'accel', *words, '-f',
                         'json')
        return json.loads(said)
    return run


@pytest.fixture
def as_tenant(tenant):
    return (f'OS_USERNAME={conftest.TENANT}',
            f'OS_PROJECT_NAME={conftest.TENANT}')


def test_devices_and_their_servers(cloud, accelerators, accel):
    server = accelerators.boot(accelerators.of_gpus(2))
    rows = {row['Address']: row for row in accel('device', 'list', '--long')}
    held = accelerators.devices(server)
    assert {address for address, row in rows.items()
            if row['Status'] == 'held'} == held
    address = min(held)
    shown = accel('device', 'show', f'cloud/{address}')
    assert server.id in json.dumps(shown)
    [host] = accel('host', 'list')
    assert (host['Name'], host['Used']) == ('cloud', 2)
    tree = cloud.run('openstack', 'accel', 'host', 'show', 'cloud')
    assert all(address in tree for address in rows)
    csv = cloud.run('openstack', 'accel', 'device', 'list', '-f', 'csv',
                    '--sort-column', 'Address')
    assert [line.split(',')[1].strip('"') for line in csv.splitlines()[1:]
            ] == sorted(rows)


def test_drained_device_outlives_restarts(cloud, accelerators, accel):
    address = min(row['Address'] for row in accel('device', 'list'))
    device = f'cloud/{address}'
    cloud.run('openstack', 'accel', 'device', 'set', '--drain', 'fan', device)
    try:
        for service in 'placement', 'nova-compute':
            cloud.restart(service)
        steps.wait('a drained device', lambda: next(
            row['Status'] for row in accel('device', 'list')
            if row['Address'] == address) == 'withheld')
        flavor = accelerators.of_gpus(1)
        servers = [accelerators.boot(flavor) for _number in range(7)]
        assert address not in set().union(*map(accelerators.devices, servers))
    finally:
        cloud.run('openstack', 'accel', 'device', 'set', '--undrain', device)


def test_drained_host_has_no_capacity(cloud, accel):
    def host():
        [row] = accel('host', 'list')
        return row
    before = host()['Free']
    cloud.run('openstack', 'accel', 'host', 'set', '--drain', 'move', 'cloud')
    try:
        steps.wait('a drained host', lambda: not host()['Free'])
        assert host()['Drained'].startswith('move')
    finally:
        cloud.run('openstack', 'accel', 'host', 'set', '--undrain', 'cloud')
    steps.wait('a host with free devices', lambda: host()['Free'] == before)


def test_capacity_explain_and_profiles(cloud, accelerators, accel):
    accelerators.boot(accelerators.of_gpus(2))
    flavor = accelerators.of_gpus(7)
    found = accel('explain', '--flavor', flavor.name, '--profile-dir',
                  str(cloud.profiles))
    assert (found['fits'], found['servers']) == (False, 0)
    assert 'no host has 7 free' in found['reason']
    assert accel('capacity', 'list')
    assert accel('profile', 'show', 'gpus-7', '--profile-dir',
                 str(cloud.profiles))['name'] == 'gpus-7'
    assert {row['name'] for row in accel(
        'profile', 'list', '--profile-dir', str(cloud.profiles))} >= {
            'gpus-2', 'gpus-7'}


def test_tenant_sees_the_groups_of_the_own_server(
        cloud, accelerators, accel, tenant, as_tenant):
    flavor = accelerators.of_gpus(1)
    server = accelerators.boot(flavor, compute=tenant.compute)
    shown = json.dumps(accel('server', 'show', server.id, user=as_tenant))
    assert GPU in shown
    for secret in 'cloud', *accelerators.devices(server):
        assert f'"{secret}"' not in shown
    with pytest.raises(steps.Failure, match='administrator'):
        accel('device', 'list', user=as_tenant)
    assert accelerators.devices(server) == {
        row['address'] for row in accel('server', 'show', server.id)[
            'devices']}

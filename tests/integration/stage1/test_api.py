# SPDX-License-Identifier: Apache-2.0
"""Requests of operator and tenant to nova-api, and its answers."""

from openstack import exceptions
import pytest

from tests.integration import steps
from tests.integration.stage1 import accelerators as views
from tests.integration.stage1 import outer as machines

GPU = machines.GPU


def test_placement_has_the_devices_and_nothing_else(accelerators):
    buses = ('43', '44', '48', '49', '83', '84', '88', '89')
    expected = {f'cloud_accel_0000:{bus}:00.0': {views.unit(GPU): 1}
                for bus in buses}
    expected |= {f'cloud_accel_0000:{bus}:00.0': {
        views.unit(machines.NIC): 1} for bus in ('45', '85')}
    expected |= {f'cloud_accel_{GPU}': {GPU: 8},
                 f'cloud_accel_{machines.NIC}': {machines.NIC: 2}}
    assert accelerators.inventories() == expected


def test_openstack_client(cloud, accelerators):
    accelerators.profile('client', groups=[{'resources': {GPU: 1}}])
    cloud.openstack('flavor', 'create', '--ram', '64', '--disk', '1',
                    'by-client')
    cloud.run('openstack', 'flavor', 'set', 'by-client', '--property',
              'accel:device_profile=client')
    shown = cloud.openstack('flavor', 'show', 'by-client')
    assert shown['properties'] == {'accel:device_profile': 'client'}
    made = cloud.openstack(
        'server', 'create', '--flavor', 'by-client', '--image', views.IMAGE,
        '--nic', 'none', '--wait', 'by-client')
    assert made['status'] == 'ACTIVE'
    server = cloud.connection.compute.get_server(made['id'])
    accelerators.check(server, GPU)
    # The server's creation did not change the flavor.
    shown = cloud.openstack('flavor', 'show', 'by-client')
    assert shown['properties'] == {'accel:device_profile': 'client'}
    cloud.run('openstack', 'server', 'delete', '--wait', 'by-client')
    cloud.run('openstack', 'flavor', 'delete', 'by-client')
    accelerators.check_nothing_left()


def test_server_keeps_an_ordinary_flavor(accelerators):
    server = accelerators.boot(accelerators.of_gpus(2))
    kept = accelerators.shown(server)['flavor']['extra_specs']
    assert 'accel:device_profile' not in kept
    assert kept['nova_accel:profile'] == 'gpus-2'
    assert kept[f'resources_ACCEL0:{GPU}'] == '2'


def test_unknown_profile_is_refused(accelerators):
    flavor = accelerators.flavor('unknown', 'no-such-profile')
    with pytest.raises(exceptions.BadRequestException,
                       match='no-such-profile.* is not known'):
        accelerators.post(flavor)


def test_malformed_profile_is_refused(cloud, accelerators):
    path = cloud.profiles / 'malformed.yaml'
    path.write_text('name: malformed\ngroups: [{resources: {GPU: many}}]\n')
    try:
        with pytest.raises(exceptions.BadRequestException,
                           match='malformed.*is not known.*GPU'):
            accelerators.post(accelerators.flavor('malformed', 'malformed'))
    finally:
        path.unlink()


def test_changed_profile_counts_for_the_next_server(accelerators):
    accelerators.profile('changing', groups=[{'resources': {GPU: 1}}])
    flavor = accelerators.flavor('changing', 'changing')
    before = accelerators.boot(flavor, 'before')
    accelerators.profile('changing', groups=[
        {'resources': {GPU: 1}, 'count': 2}])
    after = accelerators.boot(flavor, 'after')
    accelerators.check(before, GPU)
    accelerators.check(after, GPU, GPU)


def test_resize(cloud, accelerators):
    compute = cloud.connection.compute
    server = accelerators.boot(accelerators.of_gpus(1))

    def resize(flavor):
        compute.resize_server(server, flavor)
        cloud.wait(server, 'VERIFY_RESIZE')

    def confirm():
        compute.confirm_server_resize(server)
        cloud.wait(server)

    resize(accelerators.of_gpus(3))
    confirm()
    accelerators.check(server, GPU, GPU, GPU)
    resize(accelerators.flavor('gpus-none'))
    assert accelerators.devices(server) == set()
    compute.revert_server_resize(server)
    cloud.wait(server)
    accelerators.check(server, GPU, GPU, GPU)
    resize(accelerators.flavor('gpus-none'))
    confirm()
    accelerators.check(server)
    assert accelerators.consumers() == set()
    resize(accelerators.of_gpus(1))
    confirm()
    accelerators.check(server, GPU)
    assert accelerators.consumers() == {server.id}


def test_resize_to_an_unknown_profile_is_refused(cloud, accelerators):
    server = accelerators.boot(accelerators.of_gpus(1))
    flavor = accelerators.flavor('unknown', 'no-such-profile')
    with pytest.raises(exceptions.BadRequestException, match='is not known'):
        cloud.connection.compute.resize_server(server, flavor)
    accelerators.check(server, GPU)


def test_server_without_free_device(accelerators):
    accelerators.boot(accelerators.of_gpus(8), 'all')
    [late] = accelerators.settle(accelerators.post(
        accelerators.of_gpus(1), 'late'))
    assert late.status == 'ERROR'
    assert 'No valid host was found' in accelerators.fault(late)
    assert accelerators.allocations(late) == {}


def test_scheduler_logs_unmet_affinity_rule(cloud, accelerators):
    accelerators.profile(
        'three-together', groups=[{'resources': {GPU: 1}, 'count': 3}],
        affinity=[{'same': 'pcie_switch'}])
    log = cloud.log('nova-scheduler')
    begin = log.stat().st_size
    [server] = accelerators.settle(accelerators.post(
        accelerators.flavor('three-together', 'three-together')))
    assert server.status == 'ERROR'
    assert 'No valid host was found' in accelerators.fault(server)
    wanted = (f'{server.id} has no valid host for three-together: '
              'same pcie_switch: 1 host')
    said = steps.wait(
        f'the line "{wanted}" in {log}', lambda: [
            line for line in log.read_bytes()[begin:].decode().splitlines()
            if wanted in line])
    assert all(' INFO ' in line for line in said)


def test_device_is_reset_between_two_servers(outer, accelerators):
    server = accelerators.boot(accelerators.of_gpus(8))
    devices = accelerators.devices(server)
    outer.was_reset()
    # The reset comes right after the delete, to clear the old server's data.
    accelerators.delete(server)
    accelerators.boot(accelerators.of_gpus(8))
    assert outer.was_reset() >= devices

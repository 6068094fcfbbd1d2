# SPDX-License-Identifier: Apache-2.0
"""Profiles of several groups or many devices, and access to flavors."""

from openstack import exceptions
import pytest

from tests.integration.stage1 import accelerators as views
from tests.integration.stage1 import outer as machines

GPU, NIC, VF = machines.GPU, machines.NIC, machines.VF


def test_all_eight(accelerators):
    server = accelerators.boot(accelerators.of_gpus(8))
    accelerators.check(server, *[GPU] * 8)


def test_gpu_and_the_nic_behind_its_switch(accelerators):
    accelerators.profile('near', groups=[
        {'name': 'gpu', 'resources': {GPU: 1}},
        {'name': 'nic', 'resources': {NIC: 1}}],
        affinity=[{'same': 'pcie_switch'}])
    flavor = accelerators.flavor('near', 'near')
    found = [accelerators.check(accelerators.boot(flavor, f'near-{number}'),
                                GPU, NIC) for number in range(2)]
    for devices in found:
        buses = {address[5:7] for address in devices}
        assert len(buses & {'43', '44', '45'}) in (0, 2), buses
        assert len(buses & {'83', '84', '85'}) in (0, 2), buses


def test_pairs_are_on_one_numa_node(accelerators):
    flavor = accelerators.of_gpus(2, numa='required')
    for number in range(4):
        devices = accelerators.check(
            accelerators.boot(flavor, f'pair-{number}'), GPU, GPU)
        nodes = {address[5] for address in devices}
        assert len(nodes) == 1, f'{sorted(devices)} are on two NUMA nodes'


def test_forced_host(accelerators):
    # Of these three request fields, the first skips Nova's filters.
    flavor = accelerators.of_gpus(2, numa='required')
    for more in ({'availability_zone': 'nova:cloud'}, {'host': 'cloud'},
                 {'hypervisor_hostname': 'cloud'}):
        server = accelerators.boot(flavor, **more)
        accelerators.check(server, GPU, GPU)


def test_forced_host_that_is_full(accelerators):
    accelerators.boot(accelerators.of_gpus(8))
    [server] = accelerators.settle(accelerators.post(
        accelerators.of_gpus(1), availability_zone='nova:cloud'))
    assert server.status == 'ERROR'
    assert 'No valid host' in accelerators.fault(server)


def test_multi_create(cloud, accelerators):
    accelerators.post(accelerators.of_gpus(2), 'several', min_count=4,
                      max_count=4)
    servers = accelerators.settle(*cloud.connection.compute.servers(
        name='^several'))
    assert [server.status for server in servers] == ['ACTIVE'] * 4
    devices = [accelerators.check(server, GPU, GPU) for server in servers]
    assert len(set().union(*devices)) == 8


def test_multi_create_without_enough_devices(cloud, accelerators):
    accelerators.post(accelerators.of_gpus(2), 'several', min_count=5,
                      max_count=5)
    servers = accelerators.settle(*cloud.connection.compute.servers(
        name='^several'))
    assert [server.status for server in servers] == ['ERROR'] * 5
    assert accelerators.held() == {}
    assert accelerators.consumers() == set()


def test_server_groups(cloud, accelerators):
    compute = cloud.connection.compute
    flavor = accelerators.of_gpus(1)
    for policy, statuses in (('affinity', ['ACTIVE', 'ACTIVE']),
                             ('anti-affinity', ['ACTIVE', 'ERROR'])):
        group = compute.create_server_group(name=policy, policy=policy)
        servers = [accelerators.settle(accelerators.post(
            flavor, policy, scheduler_hints={'group': group.id}))[0]
            for _number in range(2)]
        assert [server.status for server in servers] == statuses, policy
        for server in servers:
            accelerators.check(server, *[GPU] * (server.status == 'ACTIVE'))
        compute.delete_server_group(group)


def test_private_flavor(cloud, tenant, accelerators):
    compute = cloud.connection.compute
    accelerators.of_gpus(1)
    private = compute.create_flavor(name='private', ram=64, vcpus=1, disk=1,
                                    is_public=False)
    try:
        compute.create_flavor_extra_specs(
            private, {'accel:device_profile': 'gpus-1'})
        image = tenant.image.find_image(views.IMAGE)
        words = {'name': 'theirs', 'flavor_id': private.id,
                 'image_id': image.id, 'networks': 'none'}
        with pytest.raises(exceptions.BadRequestException,
                           match='could not be found'):
            tenant.compute.create_server(**words)
        compute.flavor_add_tenant_access(private, tenant.current_project_id)
        server = cloud.wait(tenant.compute.create_server(**words))
        accelerators.check(server, GPU)
        accelerators.delete(server)
    finally:
        compute.delete_flavor(private)


def test_virtual_functions(outer, accelerators):
    outer.have(machines.KINDS)
    try:
        accelerators.profile('vfs', groups=[
            {'resources': {VF: 1}, 'count': 3}, {'resources': {GPU: 1}}])
        server = accelerators.boot(accelerators.flavor('vfs', 'vfs'))
        assert sorted(accelerators.devices(server))[0] == '0000:84:00.0'
        assert len([address for address in accelerators.devices(server)
                    if address.startswith('0000:85:01.')]) == 3
        allocations = accelerators.allocations(server)
        assert allocations[f'cloud_accel_{VF}'] == {VF: 3}
        assert allocations['cloud_accel_0000:85:00.0'] == {
            f'CUSTOM_UNIT_OF_{VF}': 3}
        accelerators.delete(server)
        accelerators.check_nothing_left()
    finally:
        accelerators.delete_all()
        outer.have(machines.GPUS)

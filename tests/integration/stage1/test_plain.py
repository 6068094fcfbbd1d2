# SPDX-License-Identifier: Apache-2.0
"""Servers without devices: nova-accel is there, and they do not notice."""

import pytest

from tests.integration import steps
from tests.integration.cloud import readme
from tests.integration.cloud import resources
from tests.integration.stage1 import accelerators as views


@pytest.fixture
def server(cloud):
    made = cloud.connection.compute.create_server(
        name='plain', networks=[{'uuid': cloud.connection.network.find_network(
            resources.NETWORK).id}],
        flavor_id=cloud.connection.compute.find_flavor('tiny').id,
        image_id=cloud.connection.image.find_image(resources.IMAGE).id)
    yield cloud.wait(made)
    cloud.connection.compute.delete_server(made)
    cloud.connection.compute.wait_for_delete(made)


def test_a_server_boots(cloud, server):
    said = steps.wait('"@ ready" on the console', lambda: (
        '@ ready' in (said := cloud.console(server)) and said), 120)
    # The network interface, by libvirt's virtio.
    assert 'vendor=0x1af4' in said


def test_nova_accel_is_the_driver(cloud):
    assert 'accel.LibvirtDriver' in cloud.log('nova-compute').read_text()


def test_what_the_readme_looks_at_the_machine_with(cloud, accelerators):
    reported = sum(amount for amounts in accelerators.inventories().values()
                   for kind, amount in amounts.items()
                   if kind.startswith(views.unit('')))
    # The second one's entry takes the place of nova.conf's.
    configured, given = (cloud.run('sh', '-c', line)
                         for line in readme.commands(4))
    assert f', units: {reported}, ' in configured
    assert 'Devices offered: ' in given


def test_the_ordinary_client(cloud):
    binaries = {row['Binary'] for row in cloud.openstack(
        'compute', 'service', 'list')}
    assert binaries == {'nova-conductor', 'nova-scheduler', 'nova-compute'}

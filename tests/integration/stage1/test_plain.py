# SPDX-License-Identifier: Apache-2.0
"""Servers without devices on a cloud with nova_accel."""

import shutil

import pytest

from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import install_guide
from tests.integration.cloud import resources
from tests.integration.stage1 import accelerators as views

#: Where a distribution installs Nova.
_PACKAGES = '/usr/lib/python3/dist-packages'


@pytest.fixture
def server(cloud):
    made = cloud.connection.compute.create_server(
        name='plain', networks=[{'uuid': cloud.connection.network.find_network(
            resources.NETWORK).id}],
        flavor_id=cloud.connection.compute.find_flavor('tiny').id,
        image_id=cloud.connection.image.find_image(resources.IMAGE).id)
    yield cloud.wait(made)
    cloud.delete(made)


def test_server_boots(cloud, server):
    said = steps.wait('"@ ready" on the console', lambda: (
        '@ ready' in (said := cloud.console(server)) and said))
    # The guest sees its virtio network interface.
    assert 'vendor=0x1af4' in said


def test_nova_accel_is_the_driver(cloud):
    assert 'accel.LibvirtDriver' in cloud.log('nova-compute').read_text()


def test_commands_of_the_guide_that_show_the_host(cloud, accelerators):
    reported = sum(amount for amounts in accelerators.inventories().values()
                   for kind, amount in amounts.items()
                   if kind.startswith(views.unit('')))
    # The second command has an entry that replaces those of nova.conf.
    configured, given = (cloud.run('sh', '-c', line)
                         for line in install_guide.commands('configure'))
    assert f', units: {reported}, ' in configured
    assert 'Devices offered: ' in given


def test_commands_of_the_guide_that_list_devices(cloud, accelerators):
    devices, providers = (
        cloud.run('sh', '-c', line)
        for line in install_guide.commands('verify')
        if line.startswith('openstack '))
    assert 'free' in devices
    assert all(name in providers for name in accelerators.inventories())


@pytest.fixture
def packages(cloud, tmp_path):
    """A directory with a copy of Nova that lacks nova_accel's files."""
    [nova] = place.VENV.glob('lib/python3*/site-packages/nova')
    cloud.run('cp', '-rs', nova, tmp_path)
    shutil.rmtree(tmp_path / 'nova/virt/accel')
    return tmp_path


def test_wheel_that_is_unpacked_beside_nova(cloud, packages):
    """Nova imports nova_accel from a wheel that is unpacked beside it.

    The guide says so for a Nova from a distribution's packages.
    """
    [line] = (line for line in install_guide.commands('install')
              if 'zipfile' in line)
    assert _PACKAGES in line
    line = line.replace(_PACKAGES, str(packages))
    cloud.run('sh', '-c', f'cd {install_guide.COPY} && {line}')
    # -P keeps the current directory, this clone, out of sys.path.
    said = cloud.run(
        'env', f'PYTHONPATH={packages}', 'python3', '-P', '-c',
        'import nova.virt.accel, nova_accel\n'
        'print(nova.virt.accel.__file__, nova_accel.__file__)')
    assert said.split() == [
        f'{packages}/{name}/__init__.py'
        for name in ('nova/virt/accel', 'nova_accel')]


def test_openstack_client_lists_services(cloud):
    binaries = {row['Binary'] for row in cloud.openstack(
        'compute', 'service', 'list')}
    assert binaries == {'nova-conductor', 'nova-scheduler', 'nova-compute'}

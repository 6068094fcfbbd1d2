# SPDX-License-Identifier: Apache-2.0
"""What a guest is told of GPUs and NICs behind PCIe switches.

The host is that of the page "Get started": two GPUs behind each switch, and a
NIC behind one switch of each node.
"""

import sys

import pytest
import yaml

from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import resources
from tests.integration.machine import built
from tests.integration.machine import eight_gpus
from tests.integration.machine import guest
from tests.integration.machine import node
from tests.integration.nested import patience
from tests.integration.nested import scene
from tests.integration.nested import tenant as tenants
from tests.integration.nested import told

_OFFERED = {'CUSTOM_GPU': 8, 'CUSTOM_NIC': 2}
_ENTRIES = '''\
device_spec = {"vendor_id": "10de", "product_id": "2330", \
"resource_class": "CUSTOM_GPU"}
device_spec = {"vendor_id": "8086", "product_id": "10c9", \
"resource_class": "CUSTOM_NIC"}
'''
#: Two GPUs behind one switch with a NIC, and a GPU behind another one.
_PROFILE = {'name': 'fabric', 'guest_switches': True, 'groups': [
    {'name': 'a', 'count': 2, 'resources': {'CUSTOM_GPU': 1}},
    {'name': 'b', 'resources': {'CUSTOM_GPU': 1}},
    {'name': 'nic', 'resources': {'CUSTOM_NIC': 1}}],
    'affinity': [{'same': 'pcie_switch', 'groups': ['a', 'nic']}]}


#: Prints the devices of all groups, and of two, and NCCL's file.
_SCRIPT = (
    "for group in '' a nic; do echo --; sh /accel-devices.sh $group; done; "
    'echo --; sh /accel-devices.sh --nccl; '
    'cat /var/run/nvidia-topologyd/virtualTopology.xml')


@pytest.fixture(scope='module')
def tenant(cloud):
    """The tenant of a host with eight GPUs."""
    def prepare(machine):
        machine.configure(scene.options() + _ENTRIES)

    with node.nodes(cloud, steps.Steps(sys.stderr), 1, prepare,
                    equipment=eight_gpus.arguments) as [machine]:
        tenant = tenants.Tenant(cloud, {machine.host: machine})
        patience.until(
            f'{machine.host} offers {_OFFERED}',
            lambda: tenant.ledger.can_be_had(machine.host).items()
            >= _OFFERED.items())
        place.make(cloud.profiles)
        (cloud.profiles / 'fabric.yaml').write_text(yaml.safe_dump(_PROFILE))
        yield tenant


@pytest.fixture(scope='module')
def flavor(cloud, tenant):
    """A flavor with NUMA cells on both nodes."""
    return resources.flavor(
        cloud.connection, 'nested.fabric', 192, 2,
        {'accel:device_profile': 'fabric', 'hw:numa_nodes': '2',
         'hw_rng:allowed': 'false'}, disk=0).id


@pytest.fixture(scope='module')
def server(tenant, flavor):
    server = tenant.boot(flavor=flavor, config_drive=True)
    yield server
    server.delete()


def _check(server):
    """Check the roles against the paths in the guest's sysfs."""
    server.is_told(4)
    assert server.on_config_drive() == server.on_service()
    told_guest = server.guest()
    facts = told.document(told_guest)
    groups = {}
    for address, found in facts.items():
        path, numa = told_guest.places[address]
        assert (found['path'], found['numaCell']) == (path, numa)
        groups.setdefault(found['group'], []).append((
            path.rsplit('/', 2)[0], found['hostPcieSwitch'], numa))
    assert {name: len(places) for name, places in groups.items()} == {
        'a': 2, 'b': 1, 'nic': 1}
    # One switch in the guest, one on the host, one node.
    [near] = {*groups['a'], *groups['nic']}
    [far] = groups['b']
    assert near[:2] != far[:2]
    # The root bus, the root port and the upstream port of the switch.
    assert len(near[0].split('/')) == 3
    return told_guest


def test_server_is_created(server):
    document = _check(server).document
    assert [cell['id'] for cell in document['numaCells']] == [0, 1]


@pytest.mark.parametrize('action, more', [
    ('reboot_server', ('HARD',)), ('rebuild_server', ())])
def test_restart(server, action, more):
    boot = server.guest().boot
    image = {} if more else {'image': server.view.image.id}
    server.act(action, *more, **image)
    server.restarted(boot)
    _check(server)


def test_script_of_the_guide(cloud, tenant, flavor):
    """A guest runs the script, and prints what it says."""
    parts = built.load()
    resources.image(
        cloud.connection, 'devices', parts.guest_linux,
        parts.guest_with_lspci, hw_machine_type='q35',
        os_command_line=f'{guest.RUN} sh -c "{_SCRIPT}"')
    server = tenant.boot(flavor=flavor, image='devices')
    try:
        tags = server.on_service()
        said = patience.until(
            'the exit code of the script',
            lambda: 'exit code:' in server.console() and server.console())
    finally:
        server.delete()
        for suffix in '', '-kernel', '-ramdisk':
            cloud.connection.image.delete_image(
                cloud.connection.image.find_image(f'devices{suffix}'))
    *found, nccl = said.replace('\r', '').rpartition('$ ')[2].split('\n--')[1:]
    assert 'exit code: 0' in nccl
    for group, words in zip(('', 'a', 'nic'), found, strict=True):
        assert set(words.split()) == {
            address for address, facts in tags.items()
            if group in ('', facts['group'])}
    for address in tags:
        assert f'busid="{address}"' in nccl

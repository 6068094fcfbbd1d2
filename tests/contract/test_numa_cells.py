# SPDX-License-Identifier: Apache-2.0
"""Guest cells without CPUs, and switches, in Nova's configuration classes."""

import inspect
import pathlib

from lxml import etree
import nova.conf
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import driver
from nova.virt.libvirt import migration
import pytest

from nova_accel import conf
from nova_accel.compute.guest import hostdev_xml
from nova_accel.compute.guest import pci_buses
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from tests.guest import numa

CONF = nova.conf.CONF

GOLDEN = pathlib.Path(__file__).parents[1] / 'data' / 'golden'
PROVIDER = '4f6c08b3-2324-54ab-b04c-61c99d0c476c'

#: Two superchips: each node with CPUs has a GPU, whose memory is a node.
GRACE = model.Host(numa_nodes=(0, 1), cpuless_nodes={2: 0, 10: 1}, distances={
    0: {0: 10, 1: 40, 2: 80, 10: 120}, 1: {0: 40, 1: 10, 2: 120, 10: 80},
    2: {0: 80, 1: 120, 2: 10, 10: 160}, 10: {0: 120, 1: 80, 2: 160, 10: 10}})
#: A GPU on each of these nodes, a NIC on a node with CPUs, and two devices
#: behind one switch.
LOCATED = {model.PciAddress(domain, 1, slot, 0): place
           for domain, slot, place in (
    (9, 0, model.Location(0, 'pci0009:00', cpuless_node=2)),
    (0x19, 0, model.Location(1, 'pci0019:00', cpuless_node=10)),
    (2, 0, model.Location(0, 'pci0002:00')),
    (3, 0, model.Location(1, 'pci0003:00', switch='0003:00:00.0')),
    (3, 1, model.Location(1, 'pci0003:00', switch='0003:00:00.0')))}


@pytest.fixture(autouse=True)
def options():
    CONF([], project='nova', default_config_files=[])
    conf.register_opts(CONF)
    yield
    CONF.clear_override('guest_numa_affinity', 'nova_accel')


def define(nodes=(0, 1), page=None, memory=numa.MEMORY, host=GRACE,
           switches=False):
    """Return the XML of an Arm guest with the devices."""
    guest = numa.define(nodes, 3, 'virt-8.2', 'aarch64')
    guest.uuid, guest.name, guest.vcpus = PROVIDER, 'guest', 2
    guest.virt_type, guest.os_type = 'kvm', 'hvm'
    guest.memory = memory * len(nodes)
    for cell in guest.cpu.numa.cells if nodes else ():
        cell.memory, cell.memAccess = memory, 'shared'
    if page:
        guest.membacking = vconfig.LibvirtConfigGuestMemoryBacking()
        for cell in range(len(nodes)):
            pages = vconfig.LibvirtConfigGuestMemoryBackingPage()
            pages.size_kb, pages.nodeset = page, [cell]
            guest.membacking.hugepages.append(pages)
    hostdev_xml.add(guest, tuple(
        hostdev.Hostdev(address, naming.alias('ACCEL0', PROVIDER, index))
        for index, address in enumerate(LOCATED)),
        pci_buses.add(guest, LOCATED, host, switches))
    return etree.fromstring(guest.to_xml())


def cells(domain):
    return [(cell.get('cpus'), int(cell.get('memory')))
            for cell in domain.iterfind('cpu/numa/cell')]


def nodes_of_buses(domain):
    return [element.text for element in domain.iterfind(
        'devices/controller/target/node')]


@pytest.mark.parametrize('name, switches', [
    ('cpuless-cells', False), ('guest-switches', True)])
def test_guest_xml_is_the_golden_file(name, switches):
    """On failure, copy the new XML, after a look at it."""
    made = define(page=2048, switches=switches)
    kept = etree.parse(str(GOLDEN / f'{name}.xml')).getroot()
    assert etree.tostring(made, method='c14n2', strip_text=True) == (
        etree.tostring(kept, method='c14n2', strip_text=True))


@pytest.mark.parametrize('page, memory, taken', [
    (None, numa.MEMORY, 16 * 1024), (2048, numa.MEMORY, 16 * 1024),
    (1024 ** 2, 4 * 1024 ** 2, 1024 ** 2)])
def test_cell_takes_pages_of_the_nearest_one(page, memory, taken):
    domain = define(page=page, memory=memory)
    assert cells(domain) == [('0', memory - taken), ('1', memory - taken),
                             (None, taken), (None, taken)]
    assert [(memnode.get('cellid'), memnode.get('nodeset'))
            for memnode in domain.iterfind('numatune/memnode')] == [
        ('0', '0'), ('1', '1'), ('2', '0'), ('3', '1')]
    assert [pages.get('nodeset') for pages in domain.iterfind(
        'memoryBacking/hugepages/page')] == (['0,2', '1,3'] if page else [])
    assert {cell.get('memAccess') for cell in domain.iterfind(
        'cpu/numa/cell')} == {'shared'}
    assert sorted(nodes_of_buses(domain)) == ['0', '1', '2', '3']


@pytest.mark.parametrize('more', [
    {'memory': 24 * 1024}, {'page': 1024 ** 2, 'memory': 1024 ** 2}])
def test_devices_stay_on_the_nearest_cell_if_it_has_too_little_memory(more):
    domain = define(**more)
    assert len(cells(domain)) == 2
    assert set(nodes_of_buses(domain)) == {'0', '1'}
    assert domain.find('cpu/numa/cell/distances') is None


def test_ids_are_consecutive_if_one_cell_has_too_little_memory():
    """libvirt refuses a gap, or ends."""
    guest = numa.define((0, 1), 3, 'virt-8.2', 'aarch64')
    guest.cpu.numa.cells[0].memory = 16 * 1024
    pci_buses.add(guest, LOCATED, GRACE)
    assert [cell.id for cell in guest.cpu.numa.cells] == [0, 1, 2]
    assert {*guest.cpu.numa.cells[0].distances} == {0, 1, 2}


def test_cell_is_added_only_for_devices_near_a_cell():
    domain = define(nodes=(1,))
    assert len(cells(domain)) == 2
    # Both root buses of node 1, and that of the GPU near it.
    assert nodes_of_buses(domain) == ['0', '1']


def test_no_cell_without_cells_or_if_the_option_is_off():
    assert cells(define(nodes=())) == []
    CONF.set_override('guest_numa_affinity', False, 'nova_accel')
    domain = define()
    assert (len(cells(domain)), nodes_of_buses(domain)) == (2, [])


def test_unknown_distances_are_left_out():
    domain = define(host=model.Host(cpuless_nodes={2: 0, 10: 1}))
    assert len(cells(domain)) == 4
    assert domain.find('cpu/numa/cell/distances') is None


# Behaviour of Nova that the code relies on

def test_nova_writes_the_memory_of_cells_in_kib_and_no_distances():
    source = inspect.getsource(driver.LibvirtDriver._get_guest_numa_config)
    assert 'guest_numa' in source or 'guest_cpu_numa' in source
    assert 'istances' not in inspect.getsource(
        vconfig.LibvirtConfigGuestCPUNUMACell)


def test_live_migration_binds_only_the_cells_of_nova():
    """So devices that can move live get no cell without CPUs."""
    assert 'cell_pins' in inspect.getsource(migration._update_numa_xml)

# SPDX-License-Identifier: Apache-2.0
"""The PCI buses of guest NUMA cells, in Nova's configuration classes."""

import inspect
import pathlib

from lxml import etree
import nova.conf
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import driver
import pytest

from nova_accel import conf
from nova_accel.compute.guest import hostdev_xml
from nova_accel.compute.guest import pci_buses
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from tests.guest import numa

CONF = nova.conf.CONF

GOLDEN = (pathlib.Path(__file__).parents[1]
          / 'data' / 'golden' / 'numa-guest.xml')

PROVIDER = '4f6c08b3-2324-54ab-b04c-61c99d0c476c'
#: Three devices on host node 1, on two root bridges. One device on node 0. One
#: device on a node without a guest cell.
LOCATED = {
    model.PciAddress(0, 0x83, 0, 0): model.Location(1, 'pci0000:80'),
    model.PciAddress(0, 0x83, 0, 1): model.Location(1, 'pci0000:80'),
    model.PciAddress(0, 0xc3, 0, 0): model.Location(1, 'pci0000:c0'),
    model.MdevAddress('83b8f4f2-509f-582f-8c1e-e6bfe0fa1001'):
    model.Location(0, 'pci0000:40'),
    model.PciAddress(0, 0xe3, 0, 0): model.Location(2, 'pci0000:e0'),
}
HOSTDEVS = tuple(
    hostdev.Hostdev(address, naming.alias('ACCEL0', PROVIDER, index))
    for index, address in enumerate(LOCATED))


@pytest.fixture(autouse=True)
def options():
    CONF([], project='nova', default_config_files=[])
    conf.register_opts(CONF)
    yield
    CONF.clear_override('guest_numa_affinity', 'nova_accel')


def machine(mach_type='pc-q35-8.2', arch='x86_64', nodes=(1, 0), ports=2):
    """Return a guest that also has a controller of another type than PCI.

    :param nodes: the host node of each guest cell
    """
    made = numa.define(nodes, ports, mach_type, arch)
    usb = vconfig.LibvirtConfigGuestUSBHostController()
    usb.index = 0
    made.add_device(usb)
    return made


def devices(made):
    hostdev_xml.add(made, HOSTDEVS, pci_buses.add(made, LOCATED,
                                                  model.Host()))
    wrapper = etree.Element('devices')
    wrapper.extend(device.format_dom() for device in made.devices)
    return wrapper


def canonical(element):
    return etree.tostring(element, method='c14n2', strip_text=True).decode()


def test_guest_xml_is_the_golden_file():
    written = devices(machine())
    assert canonical(written) == canonical(etree.parse(str(GOLDEN)).getroot())


def flat(made):
    """Return whether the guest has only hostdevs, without NUMA buses."""
    before = len(made.devices)
    written = devices(made)
    assert len(written.findall('hostdev')) == len(HOSTDEVS)
    return len(written) == before + len(HOSTDEVS) and not written.findall(
        'hostdev/address')


@pytest.mark.parametrize('arch, mach_type', [
    ('x86_64', 'q35'), ('x86_64', 'pc-q35-6.2'), ('aarch64', 'virt'),
    ('aarch64', 'virt-8.2')])
def test_supported_machine_types_have_numa_buses(arch, mach_type):
    assert not flat(machine(mach_type, arch))


@pytest.mark.parametrize('arch, mach_type', [
    ('x86_64', 'pc'), ('x86_64', 'pc-i440fx-8.2'), ('x86_64', 'microvm'),
    ('x86_64', None), ('ppc64le', 'pseries'), ('riscv64', 'virt'),
    (None, None)])
def test_other_machine_types_have_one_bus(arch, mach_type):
    assert flat(machine(mach_type, arch))


def test_guest_without_numa_cells_has_one_bus():
    assert flat(machine(nodes=()))


def test_disabled_option_gives_one_bus():
    CONF.set_override('guest_numa_affinity', False, 'nova_accel')
    assert flat(machine())


@pytest.mark.parametrize('ports, first', [(0, 1), (1, 2), (28, 29)])
def test_controller_indexes_follow_those_of_nova(ports, first):
    written = devices(machine(ports=ports))
    indexes = [int(element.get('index')) for element
               in written.iterfind('controller[@type="pci"][@index]')]
    assert indexes == list(range(first, first + len(indexes)))


# Behaviour of Nova that the code relies on

def test_nova_sets_no_index_of_pci_controllers():
    made = vconfig.LibvirtConfigGuest()
    CONF.set_override('num_pcie_ports', 3, 'libvirt')
    try:
        driver.LibvirtDriver._guest_add_pcie_root_ports(None, made)
    finally:
        CONF.clear_override('num_pcie_ports', 'libvirt')
    assert [(device.type, device.index) for device in made.devices] == [
        ('pci', None)] * 4


def test_nova_numbers_memory_nodes_by_guest_cell():
    source = inspect.getsource(driver.LibvirtDriver._get_guest_numa_config)
    assert 'memnode.cellid = i' in source
    assert 'set_numa_memnode(tnode, guest_node_id, host_cell.id)' in source


def test_nova_sets_no_pci_addresses():
    """Nova sets no PCI addresses, which could collide with the ports."""
    source = inspect.getsource(driver)
    assert 'LibvirtConfigGuestDeviceAddressPCI()' not in source

# SPDX-License-Identifier: Apache-2.0
import pytest

from nova_accel.core import model
from nova_accel.core.guest import guest_buses
from nova_accel.host import libvirt_xml


def _domain(*controllers):
    return '<domain><devices>' + ''.join(
        f'<controller type="pci" {text}</controller>'
        for text in controllers) + '</devices></domain>'


def _at(index, model_name, bus, slot, function=0):
    return (f'index="{index}" model="{model_name}"><address type="pci" '
            f'bus="{bus:#x}" slot="{slot:#x}" function="{function:#x}"/>')


#: Measured in guests with SeaBIOS and with OVMF: three root ports, a switch
#: below an expander bus on cell 1, and an expander bus on cell 0.
_CELLS = ('<domain><cpu><numa><cell id="0" cpus="0"/><cell id="1" cpus="1"/>'
          '</numa></cpu>')
_MEASURED = _CELLS + _domain(
    'index="0" model="pcie-root">',
    'index="1" model="pcie-expander-bus"><target busNr="200"><node>1</node>'
    '</target><address type="pci" bus="0x0" slot="0x5" function="0x0"/>',
    _at(2, 'pcie-root-port', 1, 0), _at(3, 'pcie-switch-upstream-port', 2, 0),
    _at(4, 'pcie-switch-downstream-port', 3, 0),
    _at(5, 'pcie-switch-downstream-port', 3, 1),
    _at(6, 'pcie-root-port', 0, 2), _at(7, 'pcie-root-port', 0, 2, 1),
    _at(8, 'pcie-root-port', 0, 2, 2),
    'index="9" model="pcie-expander-bus"><target busNr="240"><node>0</node>'
    '</target><address type="pci" bus="0x0" slot="0x6" function="0x0"/>',
    _at(10, 'pcie-root-port', 9, 0), _at(
        11, 'pcie-root-port', 9, 0, 1)).removeprefix('<domain>')


@pytest.mark.parametrize('domain, bus, address, path, cell', [
    (_MEASURED, 4, '0000:cb:00.0', 'c8/00.0/00.0/00.0/00.0', 1),
    (_MEASURED, 5, '0000:cc:00.0', 'c8/00.0/00.0/01.0/00.0', 1),
    (_MEASURED, 8, '0000:03:00.0', '00/02.2/00.0', None),
    (_MEASURED, 11, '0000:f2:00.0', 'f0/00.1/00.0', 0),
    (_MEASURED, 0, '0000:00:00.0', '00/00.0', None),
    # An older PC has one bus, which libvirt may not show.
    (_domain('index="0" model="pci-root">'), 0, '0000:00:00.0', '00/00.0',
     None),
    (_domain(), 0, '0000:00:00.0', '00/00.0', None)])
def test_devices_are_numbered_depth_first(domain, bus, address, path, cell):
    found = libvirt_xml.guest_buses_of(domain).position(
        model.PciAddress(0, bus, 0, 0))
    assert found == guest_buses.Position(model.PciAddress.parse(address), path,
                                         cell)


@pytest.mark.parametrize('cpus, nodes', [
    (('0-1', '2-3', None), [0, 1, 2]), (('2,3', '0-1', None), [1, 0, 2]),
    (('4', '0', '2'), [2, 0, 1]), ((None, '1', '0'), [2, 1, 0])])
def test_linux_numbers_nodes_by_their_first_cpu(cpus, nodes):
    cells = ''.join(
        f'<cell id="{number}"' + (f' cpus="{each}"/>' if each else '/>')
        for number, each in enumerate(cpus))
    domain = f'<domain><cpu><numa>{cells}</numa></cpu>' + _domain(
        'index="0" model="pcie-root">', *(
            f'index="{number + 1}" model="pcie-expander-bus">'
            f'<target busNr="{200 + number}"><node>{number}</node></target>'
            for number in range(3))).removeprefix('<domain>')
    buses = libvirt_xml.guest_buses_of(domain)
    assert [buses.position(model.PciAddress(0, number + 1, 0, 0)).cell
            for number in range(3)] == nodes
    assert [cell.cpus for cell in libvirt_xml.numa_cells_of(domain)] == [
        cpus[nodes.index(number)] or '' for number in range(3)]


def test_bridges_are_numbered_by_slot_and_function():
    buses = libvirt_xml.guest_buses_of(_domain(
        _at(1, 'pcie-root-port', 0, 3), _at(2, 'pcie-root-port', 0, 2, 1),
        _at(3, 'pcie-root-port', 0, 2), _at(4, 'pcie-to-pci-bridge', 3, 0)))
    assert [buses.position(model.PciAddress(0, index, 5, 0)).address.bus
            for index in (3, 4, 2, 1)] == [1, 2, 3, 4]


def test_root_bus_is_below_no_bus():
    position = libvirt_xml.guest_buses_of(_domain(
        _at(0, 'pcie-root', 0, 1), _at(1, 'pcie-root-port', 0, 2))).position(
        model.PciAddress(0, 1, 0, 0))
    assert position.path == '00/02.0/00.0'


@pytest.mark.parametrize('domain', [
    # POWER has several host bridges, each a PCI domain.
    _domain('index="0" model="pci-root">', 'index="1" model="pci-root">'),
    # libvirt has not placed the bridge yet.
    _domain('index="0" model="pcie-root">',
            'index="1" model="pcie-root-port">'), _domain(),
    # QEMU puts a bridge below it.
    _domain('index="0" model="pci-root">',
            'index="1" model="pci-expander-bus"><target busNr="200"/>'),
    # More than PCI can have.
    _domain(*(_at(index + 1, 'pcie-root-port', index, 0)
              for index in range(1000))),
    # Bridges that are below each other.
    _domain(_at(1, 'pcie-root-port', 2, 0), _at(2, 'pcie-root-port', 1, 0))])
def test_unknown_buses_have_no_number(domain):
    assert libvirt_xml.guest_buses_of(domain).position(
        model.PciAddress(0, 1, 0, 0)) is None

# SPDX-License-Identifier: Apache-2.0
"""Root buses of a guest: on the right cell, with numbers for their ports."""

from hypothesis import given
from hypothesis import strategies as st

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.guest import pcie_topology
from tests.unit import build

LAST_BUS = 255

addresses = (st.builds(model.PciAddress, st.integers(0, 1),
                       st.integers(0, 0xff), st.integers(0, 0x1f),
                       st.integers(0, 7))
             | st.builds(model.MdevAddress, st.uuids().map(str)))
locations = st.builds(
    model.Location, numa_node=st.none() | st.integers(0, 3),
    root=st.sampled_from(['', *(f'pci0000:{bus:02x}' for bus in range(20))]))
located = st.dictionaries(addresses, locations, max_size=150)
cells = st.lists(st.integers(0, 3), unique=True).map(
    lambda nodes: {node: cell for cell, node in enumerate(nodes)})
#: Nova allows 28 ports; a caller may pass a higher index.
indexes = st.integers(1, 300)


@given(located, cells, indexes)
def test_indexes_are_consecutive_and_have_eight_bits(devices, cells, first):
    used = [controller.index
            for bus in pcie_topology.plan(devices, cells, first)
            for controller in (bus, *bus.ports)]
    assert used == list(range(first, first + len(used)))
    assert not used or used[-1] <= 0xff


@given(located, cells, indexes)
def test_each_bus_has_numbers_for_its_ports_in_the_upper_half(
        devices, cells, first):
    end = 128
    for bus in pcie_topology.plan(devices, cells, first):
        # 254 is the highest busNr of libvirt.
        assert end <= bus.number <= 254
        end = bus.number + 1 + len(bus.ports)
    assert end == 128 or end == LAST_BUS + 1


@given(located, cells, indexes)
def test_devices_of_a_bus_share_root_and_cell(
        devices, cells, first):
    buses = pcie_topology.plan(devices, cells, first)
    for bus in buses:
        held = [devices[port.holds] for port in bus.ports]
        assert {cells[place.numa_node] for place in held} == {bus.cell}
        assert len({place.root for place in held}) == 1
    roots = [(bus.cell, devices[bus.ports[0].holds].root) for bus in buses]
    assert len(roots) == len(set(roots))


@given(located, cells, indexes)
def test_each_port_is_a_function_of_a_slot_with_one_device(devices, cells,
                                                           first):
    buses = pcie_topology.plan(devices, cells, first)
    held = [port.holds for bus in buses for port in bus.ports]
    assert len(held) == len(set(held))
    for bus in buses:
        places = {(port.slot, port.function) for port in bus.ports}
        assert len(places) == len(bus.ports) > 0
        # A guest probes a slot only if it has a function 0.
        assert {(slot, 0) for slot, _function in places} <= places
        assert all(slot < 32 and function < 8 for slot, function in places)
    taken = [port.guest_address for bus in buses for port in bus.ports]
    assert len(taken) == len(set(taken))


@given(located, cells, st.integers(1, 29))
def test_every_device_on_a_cell_gets_a_port_if_there_is_room(devices, cells,
                                                             first):
    on_cells = {address: place for address, place in devices.items()
                if place.numa_node in cells}
    roots = {(place.numa_node, place.root) for place in on_cells.values()}
    buses = pcie_topology.plan(devices, cells, first)
    held = {port.holds for bus in buses for port in bus.ports}
    assert held <= set(on_cells)
    if len(roots) <= 16 and len(roots) + len(on_cells) <= 128:
        assert held == set(on_cells)
    elif on_cells:
        # There is no room for more.
        assert len(buses) == 16 or len(held) + len(buses) >= 127


def _places(*places):
    return {build.address(f'0000:{0x40 + index:02x}:00.0'):
            model.Location(node, root)
            for index, (node, root) in enumerate(places)}


def test_buses_are_sorted_by_cell_and_root():
    """Devices of one bus keep the order of the profile."""
    devices = _places((0, 'pci0000:40'), (1, 'pci0000:80'), (2, 'pci0000:c0'),
                      (0, 'pci0000:40'), (0, 'pci0000:00'), (None, ''))
    first, second, third = pcie_topology.plan(devices, {1: 0, 0: 1}, 5)
    assert (first.index, first.number, first.cell) == (5, 249, 0)
    assert (second.index, second.number, second.cell) == (7, 251, 1)
    assert (third.index, third.number, third.cell) == (9, 253, 1)
    assert [str(port.holds) for bus in (first, second, third)
            for port in bus.ports] == [
        '0000:41:00.0', '0000:44:00.0', '0000:40:00.0', '0000:43:00.0']
    assert [str(port.guest_address) for port in third.ports] == [
        '0000:0a:00.0', '0000:0b:00.0']


def test_each_function_of_a_card_has_its_own_port():
    card = {build.address(f'0000:40:00.{function}'):
            model.Location(0, 'pci0000:40') for function in range(2)}
    [bus] = pcie_topology.plan(card, {0: 0}, 1)
    assert [(port.slot, port.function) for port in bus.ports] == [
        (0, 0), (0, 1)]
    assert [port.guest_address.bus for port in bus.ports] == [2, 3]


def test_guest_without_cells_gets_no_bus():
    assert pcie_topology.plan(_places((0, 'pci0000:40')), {}, 1) == ()


PLACE = model.Location(1, 'pci0000:80')


def _locate(device, functions=(), offered=None, **host):
    return pcie_topology.locate(
        (device,), model.Host(functions, **host), offered or {})


def test_function_has_its_own_location():
    function = build.function('0000:81:00.0', location=PLACE)
    device = hostdev.Hostdev(function.address, 'no alias of ours')
    assert _locate(device, (function,)) == {function.address: PLACE}
    assert _locate(device) == {}


def test_mdev_has_the_location_of_its_card_before_it_is_created():
    item = build.offered(build.region(), location=PLACE)
    device = hostdev.Hostdev(
        model.MdevAddress('83b8f4f2-509f-582f-8c1e-e6bfe0fa1001'),
        naming.alias('ACCEL0', item.uuid, 0), managed=False)
    assert _locate(device, offered={item.uuid: item}) == {
        device.address: PLACE}
    # Its entry was removed, so its card is unknown.
    assert _locate(device) == {}


def test_device_of_unknown_node_is_on_the_only_node():
    function = build.function('0000:81:00.0', location=model.Location(
        None, 'pci0000:80'))
    device = hostdev.Hostdev(function.address, '')
    for numa_nodes, node in (((0,), 0), ((0, 1), None), ((), None)):
        assert _locate(device, (function,), numa_nodes=numa_nodes) == {
            function.address: model.Location(node, 'pci0000:80')}

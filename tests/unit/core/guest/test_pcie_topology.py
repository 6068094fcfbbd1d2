# SPDX-License-Identifier: Apache-2.0
"""Root buses of a guest: on the right cell, with numbers for their ports."""

import collections
import dataclasses

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.guest import guest_buses
from nova_accel.core.guest import pcie_topology
from nova_accel.core.request import device_profile
from tests.unit import build

LAST_BUS = 255

addresses = (st.builds(model.PciAddress, st.integers(0, 1),
                       st.integers(0, 0xff), st.integers(0, 0x1f),
                       st.integers(0, 7))
             | st.builds(model.MdevAddress, st.uuids().map(str)))
locations = st.builds(
    model.Location, numa_node=st.none() | st.integers(0, 3),
    root=st.sampled_from(['', *(f'pci0000:{bus:02x}' for bus in range(20))]),
    switch=st.none() | st.sampled_from('abc'),
    cpuless_node=st.sampled_from([None] * 3 + [2]))
located = st.dictionaries(addresses, locations, max_size=150)
cells = st.lists(st.integers(0, 3), unique=True).map(
    lambda nodes: {node: cell for cell, node in enumerate(nodes)})
#: Nova allows 28 ports; a caller may pass a higher index.
indexes = st.integers(1, 300)


@dataclasses.dataclass
class _Root:
    """A root bus of a plan, with its hostdevs in the order of their buses."""

    controller: guest_buses.Controller
    holds: list
    buses: int


def _roots(plan):
    """Return the additional root buses of a plan."""
    buses = guest_buses.GuestBuses(plan.controllers)
    found = []
    for controller in plan.controllers:
        if controller.number is None:
            continue
        places = {holds: buses.position(address)
                  for holds, address in plan.places.items()}
        below = sorted((place.address.bus, holds)
                       for holds, place in places.items() if place
                       and place.path.startswith(f'{controller.number:02x}/'))
        found.append(_Root(controller, [holds for _bus, holds in below],
                           below[-1][0] - controller.number + 1))
    return found


@given(located, cells, indexes, st.booleans())
def test_indexes_are_consecutive_and_have_eight_bits(devices, cells, first,
                                                     switches):
    used = [controller.index for controller in pcie_topology.plan(
        devices, cells, first, switches).controllers]
    assert used == list(range(first, first + len(used)))
    assert not used or used[-1] <= 0xff


@given(located, cells, indexes, st.booleans())
def test_each_bus_has_numbers_for_its_ports_in_the_upper_half(
        devices, cells, first, switches):
    end = 128
    for root in _roots(pcie_topology.plan(devices, cells, first, switches)):
        # 254 is the highest busNr of libvirt.
        assert end <= root.controller.number <= 254
        end = root.controller.number + root.buses
    assert end == 128 or end == LAST_BUS + 1


@given(located, cells, indexes, st.booleans())
def test_devices_of_a_bus_share_root_and_cell(
        devices, cells, first, switches):
    roots = _roots(pcie_topology.plan(devices, cells, first, switches))
    for root in roots:
        places = [devices[holds] for holds in root.holds]
        assert {_cell(place, cells) for place in places} == {
            root.controller.cell}
        assert len({place.root for place in places}) == 1
    keys = [(root.controller.cell, devices[root.holds[0]].root)
            for root in roots]
    assert len(keys) == len(set(keys))


def _cell(place, cells):
    return cells.get(place.cpuless_node, cells.get(place.numa_node))


@given(located, cells, indexes, st.booleans())
def test_each_port_is_a_function_of_a_slot_with_one_device(
        devices, cells, first, switches):
    plan = pcie_topology.plan(devices, cells, first, switches)
    taken = [controller.address for controller in plan.controllers
             if controller.address]
    taken += plan.places.values()
    assert len(taken) == len(set(taken))
    for address in taken:
        # A guest probes a slot only if it has a function 0.
        assert dataclasses.replace(address, function=0) in taken
        assert address.slot < 32 and address.function < 8
    models = {controller.index: controller.model
              for controller in plan.controllers}
    assert {models[address.bus] for address in plan.places.values()} <= {
        'pcie-root-port', 'pcie-switch-downstream-port'}


@given(located, cells, st.integers(1, 29))
def test_every_device_on_a_cell_gets_a_port_if_there_is_room(devices, cells,
                                                             first):
    on_cells = {address: place for address, place in devices.items()
                if _cell(place, cells) is not None}
    roots = {(_cell(place, cells), place.root) for place in on_cells.values()}
    plan = pcie_topology.plan(devices, cells, first)
    held = set(plan.places)
    assert held <= set(on_cells)
    if len(roots) <= 16 and len(roots) + len(on_cells) <= 128:
        assert held == set(on_cells)
    elif on_cells:
        # There is no room for more.
        buses = _roots(plan)
        assert len(buses) == 16 or len(held) + len(buses) >= 127


@given(located, cells, st.integers(1, 29))
def test_devices_share_a_switch_as_on_the_host(devices, cells, first):
    """This holds for as many devices as a flavor may ask for."""
    devices = dict([*devices.items()][:device_profile.MAX_BEHIND_SWITCHES])
    roots = {(_cell(place, cells), place.root) for place in devices.values()
             if _cell(place, cells) is not None}
    plan = pcie_topology.plan(devices, cells, first, True)
    if len(roots) > 16:
        return
    buses = guest_buses.GuestBuses([*plan.controllers])
    on_cells = [holds for holds, place in devices.items()
                if _cell(place, cells) is not None]
    assert set(on_cells) <= set(plan.places)
    groups = collections.defaultdict(list)
    for holds in on_cells:
        place = devices[holds]
        path = buses.position(plan.places[holds]).path.split('/')
        groups[_cell(place, cells), place.root,
               place.switch or holds].append(tuple(path[:-2]))
    for paths in groups.values():
        # Root bus and root port, and the upstream port of a switch.
        assert {len(path) for path in paths} == {3 if len(paths) > 1 else 1}
        assert len({*paths}) == -(-len(paths) // 32)


def _places(*places):
    return {build.address(f'0000:{0x40 + index:02x}:00.0'):
            model.Location(node, root)
            for index, (node, root) in enumerate(places)}


def test_buses_are_sorted_by_cell_and_root():
    """Devices of one bus keep the order of the profile."""
    devices = _places((0, 'pci0000:40'), (1, 'pci0000:80'), (2, 'pci0000:c0'),
                      (0, 'pci0000:40'), (0, 'pci0000:00'), (None, ''))
    plan = pcie_topology.plan(devices, {1: 0, 0: 1}, 5)
    roots = _roots(plan)
    assert [(root.controller.index, root.controller.number,
             root.controller.cell) for root in roots] == [
        (5, 249, 0), (7, 251, 1), (9, 253, 1)]
    assert [str(holds) for root in roots for holds in root.holds] == [
        '0000:41:00.0', '0000:44:00.0', '0000:40:00.0', '0000:43:00.0']
    assert [str(plan.places[holds]) for holds in roots[2].holds] == [
        '0000:0a:00.0', '0000:0b:00.0']


def test_each_function_of_a_card_has_its_own_port():
    card = {build.address(f'0000:40:00.{function}'):
            model.Location(0, 'pci0000:40') for function in range(2)}
    plan = pcie_topology.plan(card, {0: 0}, 1)
    assert [controller.address for controller in plan.controllers[1:]] == [
        model.PciAddress(0, 1, 0, 0), model.PciAddress(0, 1, 0, 1)]
    assert [place.bus for place in plan.places.values()] == [2, 3]


_SWITCHED = {build.address(f'0000:4{number}:00.0'): model.Location(
    0, 'pci0000:40', switch=switch)
    for number, switch in enumerate(('a', 'b', 'a', None))}


def _models(plan):
    return [(controller.model, controller.address and str(controller.address))
            for controller in plan.controllers]


def test_devices_of_a_switch_are_below_one_in_the_guest():
    plan = pcie_topology.plan(_SWITCHED, {0: 0}, 1, True)
    assert _models(plan) == [
        ('pcie-expander-bus', None), ('pcie-root-port', '0000:01:00.0'),
        ('pcie-switch-upstream-port', '0000:02:00.0'),
        ('pcie-switch-downstream-port', '0000:03:00.0'),
        ('pcie-switch-downstream-port', '0000:03:01.0'),
        ('pcie-root-port', '0000:01:00.1'),
        ('pcie-root-port', '0000:01:00.2')]
    assert [place.bus for place in plan.places.values()] == [4, 5, 6, 7]


def test_guest_without_cells_has_switches_on_its_first_root_bus():
    plan = pcie_topology.plan(_SWITCHED, {}, 3, True)
    assert _models(plan) == [
        ('pcie-root-port', None),
        ('pcie-switch-upstream-port', '0000:03:00.0'),
        ('pcie-switch-downstream-port', '0000:04:00.0'),
        ('pcie-switch-downstream-port', '0000:04:01.0')]
    assert [str(holds) for holds in plan.places] == ['0000:40:00.0',
                                                     '0000:42:00.0']


def test_guest_without_cells_gets_no_bus():
    assert pcie_topology.plan(_places((0, 'pci0000:40')), {}, 1) == (
        pcie_topology.Plan())


@pytest.mark.parametrize('cells, cell', [({0: 0, 2: 1}, 1), ({0: 0}, 0)])
def test_device_on_a_node_without_cpus(cells, cell):
    """It is on the cell of that node, else on that of the nearest node."""
    plan = pcie_topology.plan({build.address('0000:40:00.0'): model.Location(
        0, 'pci0000:40', cpuless_node=2)}, cells, 1)
    assert plan.controllers[0].cell == cell


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


@pytest.mark.parametrize('moves, node', [(False, 2), (True, None)])
def test_device_that_can_move_live_needs_no_node_without_cpus(moves, node):
    """Nova would not bind the cell to a node of the destination."""
    place = dataclasses.replace(PLACE, cpuless_node=2)
    function = build.function('0000:81:00.0', location=place)
    region = dataclasses.replace(build.region(), live_migratable=moves)
    item = build.offered(region, location=place)
    device = hostdev.Hostdev(function.address,
                             naming.alias('ACCEL0', item.uuid, 0))
    [found] = _locate(device, (function,), {item.uuid: item}).values()
    assert (found.cpuless_node, found.numa_node) == (node, 1)

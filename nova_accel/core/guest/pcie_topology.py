# SPDX-License-Identifier: Apache-2.0
"""Place a guest's hostdevs in its PCIe topology by their places on the host.

A PCIe device is on the NUMA node of its root bus, and the first root bus of a
machine is on no node. So the guest gets more root buses (libvirt's
``pcie-expander-bus``): one for each pair of a host's root bridge and a guest's
NUMA cell that hostdevs belong to. Hostdevs of one root bus of the host are
then on one root bus of the guest, and on the cell with their memory.

Each hostdev gets a port of its own, since hot unplug removes all functions of
a port, and suspend detaches hostdevs one by one. It is a root port; or, if the
profile asks for switches, a downstream port of a switch for those that share
one on the host.

Sources: libvirt's formatdomain, "Controllers", and its page on PCI addresses
(the bus of an address is the index of a controller, not the bus number in the
guest); docs/pcie.txt in QEMU's source.
"""

import collections.abc
import dataclasses
import itertools

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.guest import guest_buses
from nova_accel.core.placement import inventory

#: Bus numbers, and indexes of PCI controllers in libvirt, have eight bits.
_BUSES = 256

#: Bus numbers for all other devices of the guest. Firmware numbers buses in
#: the order in which it finds them, from each root bus to the next.
_OTHERS = 128

#: The most root buses to add. Each takes one of the 32 slots of the first root
#: bus, which other devices need, too.
_MOST = 16

#: Functions of a slot. Root ports share slots, as those of libvirt do.
_FUNCTIONS = 8

#: Slots below the upstream port of a switch.
_SLOTS = 32


#: The addresses of the hostdevs below one root port: one, or a switch's.
_Branch = list[model.Address]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The buses to add to a guest, and the hostdevs on them.

    :param controllers: with consecutive indexes. One without an address is a
        root port on the first root bus, where libvirt places it.
    :param places: address in the domain by the hostdev's address on the host
    """

    controllers: tuple[guest_buses.Controller, ...] = ()
    places: collections.abc.Mapping[model.Address, model.PciAddress] = (
        dataclasses.field(default_factory=dict))


def locate(hostdevs: hostdev.Hostdevs, host: model.Host,
           offered: collections.abc.Mapping[str, inventory.Offered],
           ) -> dict[model.Address, model.Location]:
    """Return the location of each hostdev on the host, if known.

    An mdev, which may not be created yet, has the location of its card.

    :param offered: Regions by provider
    """
    known = {function.address: function.location
             for function in host.functions}
    located = {}
    for device in hostdevs:
        item = offered.get(device.provider)
        location = known.get(device.address,
                             item.device.location if item else None)
        if location and item and item.region.live_migratable:
            # Nova does not know the guest cells of nodes without CPUs, and
            # would not bind them to a node of the destination.
            location = dataclasses.replace(location, cpuless_node=None)
        if location and location.numa_node is None:
            location = dataclasses.replace(location, numa_node=host.only_node)
        if location:
            located[device.address] = location
    return located


def plan(located: collections.abc.Mapping[model.Address, model.Location],
         cells: collections.abc.Mapping[int, int], first_index: int,
         switches: bool = False) -> Plan:
    """Return the buses to add to a guest, by cell and host root bus.

    A hostdev that is on none of the guest's nodes, or that has no room, gets
    no port here, unless it is behind a switch; libvirt places it.

    :param located: the hostdevs; those of one bus keep this order
    :param cells: the guest's cell by the host's NUMA node
    :param first_index: the first free index of PCI controllers. Indexes must
        be consecutive: libvirt fills gaps with ports.
    :param switches: whether hostdevs that share a switch of the host share
        one in the guest
    """
    groups: dict[tuple[int, str], list[model.Address]] = {}
    others: dict[str, list[model.Address]] = {}
    for address, location in located.items():
        cell = _cell(location, cells)
        if cell is not None:
            groups.setdefault((cell, location.root), []).append(address)
        elif switches and location.switch:
            others.setdefault(location.switch, []).append(address)
    room = min(_BUSES - _OTHERS, _BUSES - first_index)
    fitting: list[tuple[int, list[_Branch]]] = []
    for key in sorted(groups)[:_MOST]:
        branches = list(_fitting(_branches(
            groups[key], located if switches else {}), room - 1))
        if branches:
            fitting.append((key[0], branches))
            room -= 1 + sum(map(_size, branches))
    loose = [branch for members in others.values()
             for branch in _chunks(members) if len(branch) > 1]
    return _Numbering(first_index).plan(fitting, [*_fitting(loose, room)])


def _cell(location: model.Location,
          cells: collections.abc.Mapping[int, int]) -> int | None:
    """Return the guest's cell of a location, None for none."""
    return next((cells[node]
                 for node in (location.cpuless_node, location.numa_node)
                 if node is not None and node in cells), None)


def _branches(addresses: collections.abc.Iterable[model.Address],
              located: collections.abc.Mapping[model.Address, model.Location],
              ) -> list[_Branch]:
    """Return what is below each root port.

    :param located: of those that may be behind a switch
    """
    members: dict[object, list[model.Address]] = {}
    for address in addresses:
        place = located.get(address)
        members.setdefault(place and place.switch or (address,),
                           []).append(address)
    return [branch for found in members.values() for branch in _chunks(found)]


def _chunks(members: list[model.Address]) -> list[_Branch]:
    return [members[first:first + _SLOTS]
            for first in range(0, len(members), _SLOTS)]


def _size(branch: _Branch) -> int:
    """Return the number of buses, and of controllers, of a branch."""
    return 1 if len(branch) == 1 else 2 + len(branch)


def _fitting(branches: collections.abc.Iterable[_Branch], room: int,
             ) -> collections.abc.Iterator[_Branch]:
    """Yield the branches, or parts of them, that have enough bus numbers."""
    for branch in branches:
        if _size(branch) > room:
            # Without the switch they need less.
            parts = [[address] for address in branch][:max(room, 0)]
        else:
            parts = [branch]
        yield from parts
        room -= sum(map(_size, parts))


class _Numbering:
    """Numbers controllers, in the order in which they are added."""

    def __init__(self, first_index: int) -> None:
        self._index = itertools.count(first_index)
        self._controllers: list[guest_buses.Controller] = []
        self._places: dict[model.Address, model.PciAddress] = {}

    def plan(self, groups: list[tuple[int, list[_Branch]]],
             loose: collections.abc.Iterable[_Branch]) -> Plan:
        """Return the plan.

        :param groups: cell and branches of each root bus to add
        :param loose: branches of the first root bus
        """
        # The bus of the last port gets the highest number.
        number = _BUSES - sum(1 + sum(map(_size, branches))
                              for _cell, branches in groups)
        for cell, branches in groups:
            bus = self._add('pcie-expander-bus', number=number, cell=cell)
            for position, branch in enumerate(branches):
                self._add_branch(branch, model.PciAddress(
                    0, bus, *divmod(position, _FUNCTIONS)))
            number += 1 + sum(map(_size, branches))
        for branch in loose:
            self._add_branch(branch, None)
        return Plan(tuple(self._controllers), self._places)

    def _add_branch(self, branch: _Branch,
                    address: model.PciAddress | None) -> None:
        port = self._add('pcie-root-port', address)
        if len(branch) == 1:
            self._places[branch[0]] = model.PciAddress(0, port, 0, 0)
            return
        upstream = self._add('pcie-switch-upstream-port',
                             model.PciAddress(0, port, 0, 0))
        for slot, hostdev_address in enumerate(branch):
            port = self._add('pcie-switch-downstream-port',
                             model.PciAddress(0, upstream, slot, 0))
            self._places[hostdev_address] = model.PciAddress(0, port, 0, 0)

    def _add(self, model_name: str, address: model.PciAddress | None = None,
             number: int | None = None, cell: int | None = None) -> int:
        index = next(self._index)
        self._controllers.append(guest_buses.Controller(
            index, model_name, address, number, cell))
        return index

# SPDX-License-Identifier: Apache-2.0
"""Place a guest's hostdevs in its PCIe topology by their NUMA nodes.

A PCIe device is on the NUMA node of its root bus, and the first root bus of a
machine is on no node. So the guest gets more root buses (libvirt's
``pcie-expander-bus``): one for each pair of a host's root bridge and a guest's
NUMA cell that hostdevs belong to. Hostdevs of one root bus of the host are
then on one root bus of the guest, and on the cell with their memory.

Each hostdev gets a root port of its own. Hot unplug removes all functions of a
port, and suspend detaches hostdevs one by one.

Sources: libvirt's formatdomain, "Controllers", and its page on PCI addresses
(the bus of an address is the index of a controller, not the bus number in the
guest); docs/pcie.txt in QEMU's source.
"""

import collections.abc
import dataclasses

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
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


@dataclasses.dataclass(frozen=True)
class RootPort:
    """A root port and its hostdev.

    :param index: of its controller
    :param slot: on its root bus
    :param function: the same
    :param holds: the hostdev's address on the host
    """

    index: int
    slot: int
    function: int
    holds: model.Address

    @property
    def guest_address(self) -> model.PciAddress:
        """The hostdev's address in the guest; a port has one slot."""
        return model.PciAddress(0, self.index, 0, 0)


@dataclasses.dataclass(frozen=True)
class RootBus:
    """An additional root bus on a NUMA cell of the guest.

    :param index: of its controller
    :param number: its bus number in the guest; the buses of its ports have
        the numbers after it
    :param cell: the guest's NUMA cell
    """

    index: int
    number: int
    cell: int
    ports: tuple[RootPort, ...]


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
        parsed = naming.parse_alias(device.alias)
        item = offered.get(parsed[1]) if parsed else None
        location = known.get(device.address, item and item.device.location)
        if location and location.numa_node is None:
            location = dataclasses.replace(location, numa_node=host.only_node)
        if location:
            located[device.address] = location
    return located


def plan(located: collections.abc.Mapping[model.Address, model.Location],
         cells: collections.abc.Mapping[int, int], first_index: int,
         ) -> tuple[RootBus, ...]:
    """Return the root buses to add to a guest, by cell and host root bus.

    A hostdev that is on none of the guest's nodes, or that has no room, gets
    no port here; libvirt places it.

    :param located: the hostdevs; those of one bus keep this order
    :param cells: the guest's cell by the host's NUMA node
    :param first_index: the first free index of PCI controllers. Indexes must
        be consecutive: libvirt fills gaps with ports.
    """
    groups: dict[tuple[int, str], list[model.Address]] = {}
    for address, location in located.items():
        if location.numa_node in cells:
            groups.setdefault((cells[location.numa_node], location.root),
                              []).append(address)
    return _number(_fitting(groups, min(_BUSES - _OTHERS,
                                        _BUSES - first_index)), first_index)


def _fitting(groups, room):
    """Return the groups, or parts of them, that have enough bus numbers."""
    fitting = []
    for key in sorted(groups)[:_MOST]:
        held = groups[key][:max(room - 1, 0)]
        if held:
            fitting.append((key, held))
            room -= 1 + len(held)
    return fitting


def _number(groups, index) -> tuple[RootBus, ...]:
    # The bus of the last port gets the highest number.
    number = _BUSES - sum(1 + len(held) for _key, held in groups)
    buses = []
    for (cell, _root), held in groups:
        ports = tuple(
            RootPort(index + 1 + position, *divmod(position, _FUNCTIONS),
                     address)
            for position, address in enumerate(held))
        buses.append(RootBus(index, number, cell, ports))
        index += 1 + len(held)
        number += 1 + len(held)
    return tuple(buses)

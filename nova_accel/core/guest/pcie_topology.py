# SPDX-License-Identifier: Apache-2.0
"""Where in a guest its hostdevs go, so that it sees what they are near to.

A PCI Express device is on the NUMA node of its root bus, and the root bus that
every machine has is on none. So a guest gets further ones, libvirt's
``pcie-expander-bus``: one for each of the host's root bridges and each of the
guest's NUMA cells that hostdevs belong to. Then what is under one root bus of
the host's is under one of the guest's, and on the node that its memory is on.

Each hostdev gets a root port, since what is unplugged is a port: functions
that share one leave it together, and a guest that is suspended lets go of its
devices one by one.

Sources: libvirt's formatdomain, "Controllers", and its page on PCI addresses
(the bus of an address is the index of a controller, not the number that the
guest knows it by); docs/pcie.txt in QEMU's source.
"""

import collections.abc
import dataclasses

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory

#: Numbers of buses, and indexes of PCI controllers in libvirt: eight bits.
_BUSES = 256

#: Bus numbers that are left to everything else in the guest. Buses are
#: numbered in the order in which firmware finds them, from the lowest root bus
#: on, until the next root bus begins.
_OTHERS = 128

#: Each is a device in one of the 32 slots of the root bus that is always
#: there, where others have to have room.
_MOST = 16

#: Of a slot. Root ports share slots, as libvirt's own do.
_FUNCTIONS = 8


@dataclasses.dataclass(frozen=True)
class RootPort:
    """A root port, and the hostdev that is plugged into it.

    :param index: of its controller
    :param slot: on its root bus, as is function
    :param holds: the hostdev's address on the host
    """

    index: int
    slot: int
    function: int
    holds: model.Address

    @property
    def guest_address(self) -> model.PciAddress:
        """Where the hostdev is: a port has one slot."""
        return model.PciAddress(0, self.index, 0, 0)


@dataclasses.dataclass(frozen=True)
class RootBus:
    """A root bus more, on a NUMA node of the guest's.

    :param index: of its controller
    :param number: that the guest knows it by; the numbers after it are for
        the buses of its ports
    :param cell: the guest's NUMA cell
    """

    index: int
    number: int
    cell: int
    ports: tuple[RootPort, ...]


def locate(hostdevs: hostdev.Hostdevs, host: model.Host,
           offered: collections.abc.Mapping[str, inventory.Offered],
           ) -> dict[model.Address, model.Location]:
    """Where the hostdevs are on the host, as far as it says so.

    An mdev, which may not have been made yet, is where its card is.

    :param offered: by provider
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
    """The root buses that a guest gets, by cell and by the host's root.

    A hostdev that is on none of the guest's nodes, or for which there is no
    room, has no port here; libvirt finds a place for it.

    :param located: the hostdevs, in the order in which the guest is to find
        those of one bus
    :param cells: the guest's cell by the host's NUMA node
    :param first_index: of the PCI controllers, the first that is free.
        Indexes have to follow each other: libvirt fills gaps with ports.
    """
    groups: dict[tuple[int, str], list[model.Address]] = {}
    for address, location in located.items():
        if location.numa_node in cells:
            groups.setdefault((cells[location.numa_node], location.root),
                              []).append(address)
    return _number(_fitting(groups, min(_BUSES - _OTHERS,
                                        _BUSES - first_index)), first_index)


def _fitting(groups, room):
    """Those groups, or parts of them, that there are buses for."""
    fitting = []
    for key in sorted(groups)[:_MOST]:
        held = groups[key][:max(room - 1, 0)]
        if held:
            fitting.append((key, held))
            room -= 1 + len(held)
    return fitting


def _number(groups, index) -> tuple[RootBus, ...]:
    # The last number is that of the last port's bus.
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

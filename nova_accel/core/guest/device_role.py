# SPDX-License-Identifier: Apache-2.0
"""What a guest is told of its devices: which is which, and what is near it."""

import collections
import collections.abc
import dataclasses

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.guest import guest_buses
from nova_accel.core.placement import inventory

#: The user's names of groups, by their names in the flavor.
Names = collections.abc.Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class DeviceRole:
    """A device of a guest.

    Facts of the host are None if they are unknown.

    :param alias: libvirt's user alias, unique in the guest
    :param group: of its profile, as the profile names it, else ``ACCEL0``;
        '' if the flavor asks for the class without a profile
    :param provider: uuid of the resource provider that has its unit
    :param position: where the guest sees it, None if that is unknown
    :param location: of its card on the host
    :param numa_node: the host's NUMA node that it is on
    :param function: the PCI function, or that of an mdev's card; None if it
        is missing
    :param switch: the devices of a guest with the same number are behind the
        same PCIe switch of the host; None without a switch
    :param link_domain: the devices of a guest with the same number are linked
        directly; None if it is linked to no other device of this guest
    :param moves: whether its state can move to another host in a live
        migration, so that facts of the host can change while the guest runs
    """

    alias: str
    group: str
    resource_class: str
    provider: str
    position: guest_buses.Position | None = None
    location: model.Location = model.Location()
    numa_node: int | None = None
    function: model.Function | None = None
    switch: int | None = None
    link_domain: int | None = None
    moves: bool = False


def roles(held: hostdev.Hostdevs, buses: guest_buses.GuestBuses,
          here: inventory.NodeInventory, names: Names,
          ) -> tuple[DeviceRole, ...]:
    """Return the roles of a guest's devices, in the same order.

    :param held: hostdevs of ours, with their addresses in the domain
    :param here: what the host offers; a device that it does not offer any
        more has no resource class
    """
    functions = {function.address: function
                 for function in here.host.functions}
    items = {device: here.find_by_alias(device.alias, device.address)
             for device in held}
    cards = {device: _card(device, items[device], functions)
             for device in held}
    domains = _link_domains(frozenset(map(str, filter(None, cards.values()))),
                            here.host.links)
    switches: dict[str, int] = {}
    found = []
    for device in held:
        item, card = items[device], cards[device]
        function = functions.get(device.address) or (
            functions.get(card) if card else None)
        location = function.location if function else model.Location()
        found.append(DeviceRole(
            device.alias, names.get(
                device.group, '' if device.group == naming.NO_GROUP
                else device.group),
            item.region.resource_class if item else '', device.provider,
            buses.position(device.guest_address) if device.guest_address
            else None, location, _node(location, here.host), function,
            switches.setdefault(location.switch, len(switches))
            if location.switch else None, domains.get(str(card)),
            bool(item and item.region.live_migratable)))
    return tuple(found)


def _card(device: hostdev.Hostdev, item: inventory.Offered | None,
          functions: model.Functions) -> model.Address | None:
    """Return the card of a device, as link domains name it."""
    if item:
        return item.device.address
    function = functions.get(device.address)
    return device.card or (
        function.physfn or function.address if function else None)


def _node(location: model.Location, host: model.Host) -> int | None:
    if location.cpuless_node is not None:
        return location.cpuless_node
    return host.only_node if location.numa_node is None else location.numa_node


def _link_domains(cards: frozenset[str], links: model.Links) -> dict[str, int]:
    """Number the link domains among a guest's cards.

    A partition counts only as a whole: its links are off otherwise.
    """
    linked = [part for part in links.partitions if part <= cards]
    linked += [island & cards for island in links.islands]
    numbers: dict[str, int] = {}
    # Partitions contain smaller ones.
    for members in sorted(linked, key=len, reverse=True):
        if len(members) > 1 and numbers.keys().isdisjoint(members):
            numbers.update(dict.fromkeys(members, len({*numbers.values()})))
    return numbers

# SPDX-License-Identifier: Apache-2.0
"""What a server was promised, and what that comes to on this host."""

import collections
import collections.abc

from nova_accel.core import errors
from nova_accel.core import holding
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import assign
from nova_accel.core.placement import inventory
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request


def includes_our_devices(request: flavor_request.Request,
                         allocated: assign.Allocations,
                         inventory: inventory.NodeInventory) -> bool:
    """Whether a server was promised something of ours.

    A flavor can ask by class alone, and others provide classes too: Nova's
    own vGPU code does.
    """
    if request.groups:
        return True
    counting = inventory.counting(request.classes)
    if not allocated:
        # Nobody says whose its class is; here it can be ours, and so it can
        # where Placement still counts it for devices that have gone.
        return not counting.keys().isdisjoint(inventory.node.ours) or (
            not request.classes.isdisjoint(item.region.resource_class
                                           for item in inventory.offered))
    # Only providers of ours count units, on whichever host they are.
    return is_on_this_host(request, allocated, inventory) or any(
        naming.class_of_units(name)
        for amounts in allocated.values() for name in amounts)


def is_on_this_host(request: flavor_request.Request,
                    allocated: assign.Allocations,
                    inventory: inventory.NodeInventory) -> bool:
    """Whether something of ours on this host was promised."""
    # When the host boots, Nova has no tree yet, and the card can be away.
    return not inventory.providers.union(
        inventory.counting(request.classes)).isdisjoint(allocated)


def matches_allocations(hostdevs: hostdev.Hostdevs,
                        request: flavor_request.Request,
                        allocated: assign.Allocations,
                        inventory: inventory.NodeInventory,
                        exactly: bool) -> bool:
    """Whether what a server has is what it was promised.

    :param promised: its allocations; empty where Placement did not answer,
        and what the flavor asks for has to do
    :param exactly: and not more; where its flavor is as it was, functions
        that travel together can be others by now, and it keeps what it has
    """
    groups = _by_group(hostdevs)
    if not groups.keys() >= request.groups.keys():
        return False
    if not allocated:
        return not (request.groups and exactly) or _are_as_asked(
            groups, request.groups, inventory.by_uuid)
    here = _of_devices(request, allocated, inventory)
    if not here:
        # A move broke off, and what it was promised is elsewhere. Here it has
        # what it has; the comparison of promises with facts will say so. But
        # of classes of this host alone, nobody has chosen devices yet.
        return inventory.counting(
            request.classes).keys().isdisjoint(allocated) or any(
            naming.class_of_units(name)
            for amounts in allocated.values() for name in amounts)
    served = _served(hostdevs)
    return here.keys() == served.keys() and all(
        _comes_to(devices, here[uuid],
                  inventory.by_uuid.get(uuid) if exactly else None)
        for uuid, devices in served.items())


def _of_devices(request, allocated, inventory) -> dict[str, int]:
    """How much of each device's provider on this host was promised.

    Those of another host are of a move, or of an evacuation from a host that
    has not come back.
    """
    ours = request.classes | request.units
    devices = inventory.node.ours.keys() - inventory.counting(request.classes)
    return {uuid: sum(amount for name, amount in amounts.items()
                      if name in ours)
            for uuid, amounts in allocated.items()
            if uuid in devices and ours & set(amounts)}


def _are_as_asked(groups, asked, offered) -> bool:
    """Whether devices are what a flavor's groups ask for."""
    return groups.keys() == asked.keys() and all(
        _is_as_asked(groups[name], asked[name], offered) for name in asked)


def _is_as_asked(hostdevs: collections.abc.Iterable[hostdev.Hostdev],
                 group: device_profile.Group,
                 offered: collections.abc.Mapping[str, inventory.Offered],
                 ) -> bool:
    """Whether devices are what a group asks for, as far as anybody knows."""
    has: collections.Counter[str] = collections.Counter()
    for uuid, devices in _served(hostdevs).items():
        if uuid not in offered:
            return True
        has[offered[uuid].region.resource_class] += _count_units(
            devices, offered[uuid])
    return has == group.resources


def _served(hostdevs: collections.abc.Iterable[hostdev.Hostdev],
            ) -> dict[str, list[hostdev.Hostdev]]:
    """Devices by the provider that they were given as."""
    return _grouped(hostdevs, holding.provider_of)


def _by_group(hostdevs: hostdev.Hostdevs) -> dict[str, list[hostdev.Hostdev]]:
    """Devices by the group that they were given for."""
    return _grouped(hostdevs, lambda device: naming.parse_alias(
        device.alias)[0])


def _grouped(hostdevs, key) -> dict[str, list[hostdev.Hostdev]]:
    found = collections.defaultdict(list)
    for device in hostdevs:
        found[key(device)].append(device)
    return found


def _comes_to(devices: collections.abc.Collection[hostdev.Hostdev],
              amount: int, item: inventory.Offered | None) -> bool:
    """Whether devices of one provider are so many units.

    :param item: None where nobody knows any more what travels together
    """
    addresses = {device.address for device in devices}
    known = item and (
        all(isinstance(address, model.MdevAddress) for address in addresses)
        if item.region.mdevs else addresses <= {
            address for unit in item.region.units for address in unit})
    if not known:
        # A unit can be several functions, so there can be more than promised.
        return amount <= len(devices)
    return amount == _count_units(devices, item)


def _count_units(devices, item) -> int:
    return len(holding.units([('', device) for device in devices], item))


def rebuild_allocations(hostdevs: hostdev.Hostdevs,
                        request: flavor_request.Request,
                        asked: collections.abc.Mapping[str, int],
                        inventory: inventory.NodeInventory,
                        ) -> dict[str, dict[str, int]]:
    """What a server has to be promised, if it is promised nothing.

    :param hostdevs: what it has
    :param asked: all that it asks for, by class
    :returns: nothing where none of it is known to be ours
    """
    ours = {uuid: {name: asked[name]} for uuid, name
            in inventory.counting(request.classes).items()
            if uuid in inventory.node.ours and name in asked}
    offered = inventory.by_uuid
    for uuid, devices in _served(hostdevs).items():
        if uuid in offered:
            name = naming.unit_class(offered[uuid].region.resource_class)
            ours[uuid] = {name: _count_units(devices, offered[uuid])}
    if not ours:
        return {}
    counted = {name for amounts in ours.values() for name in amounts}
    return {inventory.node.uuid: {
        name: amount for name, amount in asked.items()
        if name not in counted}, **ours}


def numa_nodes(request: flavor_request.Request, allocated: assign.Allocations,
          inventory: inventory.NodeInventory,
          held: collections.abc.Callable[[], holding.Held],
          ) -> frozenset[int]:
    """The NUMA nodes of promised devices, where the guest is to be near them.

    Where so many of a class were promised, those that have as many.

    :param held: what servers have; asked where no device was promised
    """
    if not request.concerns(affinity.GUEST):
        return frozenset()
    amounts = {name: allocated[uuid].get(name, 0) for uuid, name
               in inventory.counting(request.classes).items()
               if uuid in allocated}
    if not amounts:
        return frozenset()
    offered = inventory.by_uuid
    if set(allocated).isdisjoint(inventory.node.devices):
        return _nodes_with_room(amounts, inventory.offered, held())
    return frozenset(offered[uuid].device.location.numa_node
                     for uuid in allocated if uuid in offered) - {None}


def _nodes_with_room(amounts: collections.abc.Mapping[str, int],
                     offered: collections.abc.Collection[inventory.Offered],
                     held: holding.Held) -> frozenset[int]:
    taken = holding.counts(offered, held)
    free: dict = collections.defaultdict(collections.Counter)
    for item in offered:
        free[item.device.location.numa_node][item.region.resource_class] += (
            item.region.total - taken[item.uuid])
    return frozenset(
        number for number, there in free.items()
        if all(there[name] >= amount for name, amount in amounts.items())
        ) - {None}


def explain(error: errors.AssignmentError,
            offered: collections.abc.Iterable[inventory.Offered],
            asked: assign.Wanted) -> errors.AssignmentError:
    """Say it plainly where nothing is left of a class."""
    there = {item.region.resource_class for item in offered}
    gone = ', '.join(name for name, amount in asked.counts.items()
                     if amount and name not in there)
    if not gone:
        return error
    return errors.AssignmentError(
        error.thing, f'{error.reason}; no device of {gone} is there, or no '
        'entry names one any more', error.remedy)


def check_here(server: str, request: flavor_request.Request,
               allocated: assign.Allocations,
               inventory: inventory.NodeInventory) -> None:
    """Say it plainly where only devices of another host were promised.

    :param server: its uuid
    :raises errors.AssignmentError: which names the server
    """
    if not is_on_this_host(request, allocated, inventory):
        raise errors.AssignmentError(
            f'server {server}', 'Placement promises it devices, and '
            'none of this host: a move of it did not end',
            'shelve and unshelve it')


def check(allocated: assign.Allocations,
          inventory: inventory.NodeInventory) -> None:
    """Say it plainly where a promised device is refused now, or gone.

    :raises errors.AssignmentError: which names the device
    """
    for uuid in set(allocated).difference(inventory.by_uuid):
        if refusal := inventory.withheld.get(uuid):
            raise errors.AssignmentError(
                f'device {refusal.address} ({refusal.ids})',
                f'is not offered: {refusal.reason}', refusal.remedy)
        if uuid in inventory.node.devices:
            raise errors.AssignmentError(
                f'resource provider {inventory.node.ours[uuid]}',
                'its device is not there, or no entry names it any more')

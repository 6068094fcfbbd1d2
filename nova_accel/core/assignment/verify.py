# SPDX-License-Identifier: Apache-2.0
"""Check a server's devices against its allocations on this host."""

import collections
import collections.abc

from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import allocations
from nova_accel.core.placement import inventory
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request
from nova_accel.core.request import profile_group


def includes_our_devices(request: flavor_request.Request,
                         allocated: allocations.Allocations,
                         inventory: inventory.NodeInventory) -> bool:
    """Whether a server has allocations of our devices.

    A flavor can ask for a class without a profile, and other programs provide
    classes too: Nova's own vGPU code does.

    :param allocated: its allocations; empty if it has none, or Placement did
        not answer
    :raises errors.AssignmentError: if it has none, and nothing on this host
        tells whose the classes are: unknown does not mean that it needs none
    """
    if request.groups:
        return True
    if allocated:
        # Only our providers have classes of units, on any host.
        return is_on_this_host(request, allocated, inventory) or any(
            naming.class_of_units(name)
            for amounts in allocated.values() for name in amounts)
    node = inventory.node
    # The class is ours if this host offers it, or if Placement still has its
    # provider for devices that are missing.
    if not inventory.counting(request.classes).keys().isdisjoint(
            node.ours) or not request.classes.isdisjoint(
                item.region.resource_class for item in inventory.offered):
        return True
    unknown = request.classes - node.foreign
    if unknown:
        raise errors.AssignmentError(
            'device request', f'the flavor asks for {min(unknown)}, Placement '
            'returned no allocations of the server, and no entry of this '
            'host names such a device', 'try again once Placement answers; '
            'if the server has no allocations any more, restore the entry, '
            'or shelve and unshelve the server')
    return False


def is_on_this_host(request: flavor_request.Request,
                    allocated: allocations.Allocations,
                    inventory: inventory.NodeInventory) -> bool:
    """Whether the allocations include our providers of this host."""
    # While the host boots, Nova has no provider tree yet, and a card can be
    # missing. So use the uuids that the providers would have.
    return not inventory.providers.union(
        inventory.counting(request.classes)).isdisjoint(allocated)


def matches_allocations(hostdevs: hostdev.Hostdevs,
                        request: flavor_request.Request,
                        allocated: allocations.Allocations,
                        inventory: inventory.NodeInventory,
                        exactly: bool) -> bool:
    """Whether the devices of a server match its allocations.

    :param allocated: its allocations; empty if Placement did not answer, then
        the flavor is used
    :param exactly: whether the server may not hold more, as after a resize;
        with an unchanged flavor it keeps what it has, because its IOMMU
        groups can have changed
    """
    groups = _by_group(hostdevs)
    if not groups.keys() >= request.groups.keys():
        return False
    if not allocated:
        return not (request.groups and exactly) or _match_groups(
            groups, request.groups, inventory.by_uuid)
    here = _of_devices(request, allocated, inventory)
    if not here:
        # An interrupted move left the allocations on another host. Keep what
        # the guest has; the audit reports it. But if only classes of this
        # host are allocated, devices are not chosen yet.
        return inventory.counting(
            request.classes).keys().isdisjoint(allocated) or any(
            naming.class_of_units(name)
            for amounts in allocated.values() for name in amounts)
    served = _served(hostdevs)
    return here.keys() == served.keys() and all(
        _make_up(devices, here[uuid],
                 inventory.by_uuid.get(uuid) if exactly else None)
        for uuid, devices in served.items())


def are_allocated(hostdevs: hostdev.Hostdevs,
                  allocated: allocations.Allocations,
                  inventory: inventory.NodeInventory) -> bool:
    """Whether allocations include all devices of a server."""
    for uuid, devices in _served(hostdevs).items():
        item = inventory.by_uuid.get(uuid)
        units = allocations.count_units(
            allocated.get(uuid, {}),
            item.region.resource_class if item else None)
        if units < max(1, _count_units(devices, item) if item else 0):
            return False
    return True


def _of_devices(request: flavor_request.Request,
                allocated: allocations.Allocations,
                inventory: inventory.NodeInventory) -> dict[str, int]:
    """Return the allocated amount by provider of a Device on this host.

    Allocations on another host belong to a move, or to an evacuation from a
    host that has not come back. Units of any class count: those of a device
    whose class has become another one have the old class for some time.
    """
    devices = inventory.node.ours.keys() - inventory.counting(request.classes)
    found = {uuid: sum(amount for name, amount in amounts.items()
                       if name in request.classes
                       or naming.class_of_units(name))
             for uuid, amounts in allocated.items() if uuid in devices}
    return {uuid: amount for uuid, amount in found.items() if amount}


def _match_groups(
        groups: collections.abc.Mapping[str, list[hostdev.Hostdev]],
        asked: profile_group.Groups,
        offered: collections.abc.Mapping[str, inventory.Offered]) -> bool:
    """Whether devices are what a flavor's groups ask for."""
    return groups.keys() == asked.keys() and all(
        _match_group(groups[name], asked[name], offered) for name in asked)


def _match_group(hostdevs: collections.abc.Iterable[hostdev.Hostdev],
                 group: device_profile.Group,
                 offered: collections.abc.Mapping[str, inventory.Offered],
                 ) -> bool:
    """Whether devices are what a group asks for.

    True if a device is of a provider that is not offered any more.
    """
    has: collections.Counter[str] = collections.Counter()
    for uuid, devices in _served(hostdevs).items():
        if uuid not in offered:
            return True
        has[offered[uuid].region.resource_class] += _count_units(
            devices, offered[uuid])
    return has == group.resources


def _served(hostdevs: collections.abc.Iterable[hostdev.Hostdev],
            ) -> dict[str, list[hostdev.Hostdev]]:
    """Return devices by the provider that they were assigned from."""
    return _grouped(hostdevs, lambda device: device.provider)


def _by_group(hostdevs: hostdev.Hostdevs) -> dict[str, list[hostdev.Hostdev]]:
    """Return devices by the group that they were assigned to."""
    return _grouped(hostdevs, lambda device: device.group)


def _grouped(hostdevs: collections.abc.Iterable[hostdev.Hostdev],
             key: collections.abc.Callable[[hostdev.Hostdev], str],
             ) -> dict[str, list[hostdev.Hostdev]]:
    found = collections.defaultdict(list)
    for device in hostdevs:
        found[key(device)].append(device)
    return found


def _make_up(devices: collections.abc.Collection[hostdev.Hostdev],
             amount: int, item: inventory.Offered | None) -> bool:
    """Whether devices of one provider are a number of units.

    :param item: None if the units of the Region are not known any more
    """
    addresses = {device.address for device in devices}
    known = item and (
        all(isinstance(address, model.MdevAddress) for address in addresses)
        if item.region.mdevs else addresses <= {
            address for unit in item.region.units for address in unit})
    if not known:
        # A unit can have several functions.
        return amount <= len(devices)
    return amount == _count_units(devices, item)


def _count_units(devices: collections.abc.Iterable[hostdev.Hostdev],
                 item: inventory.Offered | None) -> int:
    return len(held_devices.units([('', device) for device in devices], item))


def rebuild_allocations(hostdevs: hostdev.Hostdevs,
                        request: flavor_request.Request,
                        asked: collections.abc.Mapping[str, int],
                        inventory: inventory.NodeInventory,
                        ) -> dict[str, dict[str, int]]:
    """Return the allocations to create for a server that has none.

    :param hostdevs: the devices that it holds
    :param asked: all that its flavor asks for, by class
    :returns: amounts by class by provider; empty if nothing is ours
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


def numa_nodes(request: flavor_request.Request,
               allocated: allocations.Allocations,
               inventory: inventory.NodeInventory,
               held: collections.abc.Callable[[], held_devices.Held],
               ) -> frozenset[int]:
    """Return the NUMA nodes that the guest must be near to.

    They are those of the allocated devices. If only classes are allocated,
    they are those that have enough free devices.

    :param held: reads what servers hold; called if no device is allocated
    :returns: empty if the flavor has no rule about the guest
    """
    if not request.has_member(affinity.GUEST):
        return frozenset()
    amounts = {name: allocated[uuid].get(name, 0) for uuid, name
               in inventory.counting(request.classes).items()
               if uuid in allocated}
    if not amounts:
        return frozenset()
    offered = inventory.by_uuid
    if set(allocated).isdisjoint(inventory.node.devices):
        return _nodes_with_room(amounts, inventory.offered, held())
    nodes = {offered[uuid].device.location.numa_node
             for uuid in allocated if uuid in offered}
    return frozenset(node for node in nodes if node is not None)


def _nodes_with_room(amounts: collections.abc.Mapping[str, int],
                     offered: collections.abc.Collection[inventory.Offered],
                     held: held_devices.Held) -> frozenset[int]:
    taken = held_devices.counts(offered, held)
    free: dict[int, collections.Counter[str]] = collections.defaultdict(
        collections.Counter)
    for item in offered:
        node = item.device.location.numa_node
        if node is not None:
            free[node][item.region.resource_class] += (
                item.region.total - taken[item.uuid])
    return frozenset(
        node for node, free_here in free.items()
        if all(free_here[name] >= amount for name, amount in amounts.items()))


def explain(error: errors.AssignmentError,
            offered: collections.abc.Iterable[inventory.Offered],
            counts: collections.abc.Mapping[str, int],
            ) -> errors.AssignmentError:
    """Add to an error the requested classes that this host does not offer."""
    offered_classes = {item.region.resource_class for item in offered}
    missing = ', '.join(name for name, amount in counts.items()
                        if amount and name not in offered_classes)
    if not missing:
        return error
    return errors.AssignmentError(
        error.thing, f'{error.reason}; this host has no device of {missing}, '
        'or no entry names one any more', error.remedy)


def check_on_this_host(server: str, request: flavor_request.Request,
                       allocated: allocations.Allocations,
                       inventory: inventory.NodeInventory) -> None:
    """Check that a server has allocations on this host.

    :param server: its uuid
    :raises errors.AssignmentError: if they are all on another host
    """
    if not is_on_this_host(request, allocated, inventory):
        raise errors.AssignmentError(
            f'server {server}', 'Placement has allocations of devices for '
            'it, but none of this host: a move of it did not finish',
            'shelve and unshelve it')


def check(allocated: allocations.Allocations,
          inventory: inventory.NodeInventory,
          own: collections.abc.Container[str] = ()) -> None:
    """Check that no allocated device is refused, withheld or missing now.

    :param own: providers of which the server has its units already, so that
        it keeps withheld ones
    :raises errors.AssignmentError: which names the device
    """
    for uuid in allocated:
        item = inventory.by_uuid.get(uuid)
        if item and (item.region.resettable if uuid in own
                     else item.region.available):
            continue
        if refusal := inventory.withheld.get(uuid):
            raise errors.AssignmentError(
                f'device {refusal.address} ({refusal.ids})',
                f'is not offered: {refusal.reason}', refusal.remedy)
        if not item and uuid in inventory.node.devices:
            raise errors.AssignmentError(
                f'resource provider {inventory.node.ours[uuid]}',
                'its device is not there, or no entry names it any more')

# SPDX-License-Identifier: Apache-2.0
"""What a server was promised, and what that comes to on this host."""

import collections
import collections.abc

from nova import objects
import nova.conf

from nova_accel.core import affinity
from nova_accel.core import arrangement
from nova_accel.core import assignment
from nova_accel.core import errors
from nova_accel.core import flavor
from nova_accel.core import holding
from nova_accel.core import hostdev
from nova_accel.core import identity
from nova_accel.core import model
from nova_accel.core import profile
from nova_accel.core import providers

CONF = nova.conf.CONF


def concerns_us(instance, promised: assignment.Promised, host: model.Host,
                node: providers.Node) -> bool:
    """Whether a server was promised something of ours.

    A flavor can ask by class alone, and others provide classes too: Nova's
    own vGPU code does.
    """
    if flavor.read(instance.flavor.extra_specs):
        return True
    classes = flavor.classes(instance.flavor.extra_specs)
    if not promised:
        # Nobody says whose its class is; here it can be ours, and so it can
        # where Placement still counts it for devices that have gone.
        return not set(providers.of_classes(node.uuid, classes)).isdisjoint(
            node.ours) or not classes.isdisjoint(
            item.region.resource_class
            for item in providers.offered(host, node.uuid, node.name))
    # Only providers of ours count units, on whichever host they are.
    return is_of_here(promised, classes, host, node) or any(
        identity.class_of_units(name)
        for amounts in promised.values() for name in amounts)


def is_of_here(promised: assignment.Promised,
               classes: collections.abc.Iterable[str], host: model.Host,
               node: providers.Node) -> bool:
    """Whether something of ours on this host was promised.

    :param classes: that the server's flavor asks for
    """
    # When the host boots, Nova has no tree yet, and the card can be away.
    return not providers_of(host, node).union(providers.of_classes(
        node.uuid, classes)).isdisjoint(promised)


def providers_of(host: model.Host, node: providers.Node) -> set[str]:
    """The uuids of our providers on this host, whatever has become of them."""
    return {item.uuid for item in providers.offered(
        host, node.uuid, node.name)}.union(
            node.ours, providers.withheld(host, node.uuid))


def keeps(hostdevs: hostdev.Hostdevs, instance, promised: assignment.Promised,
          host: model.Host, node: providers.Node, exactly: bool) -> bool:
    """Whether what a server has is what it was promised.

    :param promised: its allocations; empty where Placement did not answer,
        and what the flavor asks for has to do
    :param exactly: and not more; where its flavor is as it was, functions
        that travel together can be others by now, and it keeps what it has
    """
    specs = instance.flavor.extra_specs
    groups, asked = _by_group(hostdevs), flavor.read(specs)
    if not groups.keys() >= asked.keys():
        return False
    if not promised:
        offered = providers.by_uuid(host, node)
        return not (asked and exactly) or (
            groups.keys() == asked.keys()
            and all(_is_as_asked(groups[name], asked[name], offered)
                    for name in asked))
    classes = flavor.classes(specs)
    ours = {*classes, *map(identity.unit_class, classes)}
    counting = providers.of_classes(node.uuid, classes)
    # Those of another host are of a move, or of an evacuation from a host
    # that has not come back.
    here = {uuid for uuid, amounts in promised.items()
            if uuid in node.ours and uuid not in counting
            and ours & set(amounts)}
    if not here:
        # A move broke off, and what it was promised is elsewhere. Here it has
        # what it has; the comparison of promises with facts will say so. But
        # of classes of this host alone, nobody has chosen devices yet.
        return counting.keys().isdisjoint(promised) or any(
            identity.class_of_units(name)
            for amounts in promised.values() for name in amounts)
    served, offered = _served(hostdevs), providers.by_uuid(host, node)
    return here == set(served) and all(
        _comes_to(devices, sum(amount for name, amount
                               in promised[uuid].items() if name in ours),
                  offered.get(uuid) if exactly else None)
        for uuid, devices in served.items())


def _is_as_asked(hostdevs: collections.abc.Iterable[hostdev.Hostdev],
                 group: profile.Group,
                 offered: collections.abc.Mapping[str, providers.Offered],
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
    return _grouped(hostdevs, lambda device: identity.parse_alias(
        device.alias)[0])


def _grouped(hostdevs, key) -> dict[str, list[hostdev.Hostdev]]:
    found = collections.defaultdict(list)
    for device in hostdevs:
        found[key(device)].append(device)
    return found


def _comes_to(devices: collections.abc.Collection[hostdev.Hostdev],
              amount: int, item: providers.Offered | None) -> bool:
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


def again(hostdevs: hostdev.Hostdevs, instance,
          asked: collections.abc.Mapping[str, int], host: model.Host,
          node: providers.Node) -> dict[str, dict[str, int]]:
    """What a server has to be promised, if it is promised nothing.

    :param hostdevs: what it has
    :param asked: all that it asks for, by class
    :returns: nothing where none of it is known to be ours
    """
    classes = flavor.classes(instance.flavor.extra_specs)
    ours = {uuid: {name: asked[name]} for uuid, name
            in providers.of_classes(node.uuid, classes).items()
            if uuid in node.ours and name in asked}
    offered = providers.by_uuid(host, node)
    for uuid, devices in _served(hostdevs).items():
        if uuid in offered:
            name = identity.unit_class(offered[uuid].region.resource_class)
            ours[uuid] = {name: _count_units(devices, offered[uuid])}
    if not ours:
        return {}
    counted = {name for amounts in ours.values() for name in amounts}
    return {node.uuid: {name: amount for name, amount in asked.items()
                        if name not in counted}, **ours}


def wanted(instance, promised: assignment.Promised, host: model.Host,
           node: providers.Node, comes_live=False) -> assignment.Wanted:
    """What a server asks for, and what the rules are about.

    :param comes_live: whether it is on another host yet, and its ports have
        functions there; those that Nova takes here only the scheduler knows
    """
    specs = instance.flavor.extra_specs
    counting = providers.of_classes(node.uuid, flavor.classes(specs))
    rules = flavor.rules(specs)
    guest = instance.numa_topology
    return assignment.Wanted(
        flavor.read(specs, flavor.image_traits(instance.image_meta)), rules,
        arrangement.Surroundings(
            frozenset(cell.id for cell in guest.cells) if guest else None,
            None if comes_live
            else _nodes_of_ports(instance, rules, host.only_node),
            host.only_node, host.links),
        {name: promised.get(uuid, {}).get(name, 0)
         for uuid, name in counting.items()},
        pack=CONF.nova_accel.pack_devices)


def nodes(specs: collections.abc.Mapping[str, str],
          promised: assignment.Promised,
          look: collections.abc.Callable[[], model.Host],
          held: collections.abc.Callable[[], holding.Held],
          node: providers.Node) -> frozenset[int]:
    """The NUMA nodes of promised devices, where the guest is to be near them.

    Where so many of a class were promised, those that have as many.

    :param specs: a flavor's extra specs
    :param look: asked only where it matters
    :param held: what servers have; asked where no device was promised
    """
    if not affinity.concern(flavor.rules(specs), affinity.GUEST):
        return frozenset()
    amounts = {name: promised[uuid].get(name, 0) for uuid, name
               in providers.of_classes(node.uuid, flavor.classes(specs)
                                       ).items() if uuid in promised}
    if not amounts:
        return frozenset()
    offered = providers.by_uuid(look(), node)
    if set(promised).isdisjoint(node.devices):
        return _nodes_with_room(amounts, offered.values(), held())
    return frozenset(offered[uuid].device.location.numa_node
                     for uuid in promised if uuid in offered) - {None}


def _nodes_with_room(amounts: collections.abc.Mapping[str, int],
                     offered: collections.abc.Collection[providers.Offered],
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


def _nodes_of_ports(instance, rules, only_node) -> frozenset[int] | None:
    """The NUMA nodes of the functions behind a server's network ports.

    :param only_node: the node of those that do not say theirs
    """
    if not affinity.concern(rules, affinity.NETWORK):
        return None
    devices = instance.get_pci_devices(
        source=objects.InstancePCIRequest.NEUTRON_PORT)
    if not devices:
        return None
    return frozenset(only_node if device.numa_node is None
                     else device.numa_node for device in devices) - {None}


def explain(error: errors.AssignmentError,
            offered: collections.abc.Iterable[providers.Offered],
            asked: assignment.Wanted) -> errors.AssignmentError:
    """Say it plainly where nothing is left of a class."""
    there = {item.region.resource_class for item in offered}
    gone = ', '.join(name for name, amount in asked.counts.items()
                     if amount and name not in there)
    if not gone:
        return error
    return errors.AssignmentError(
        error.thing, f'{error.reason}; no device of {gone} is there, or no '
        'entry names one any more', error.remedy)


def check_here(instance, promised: assignment.Promised, host: model.Host,
               node: providers.Node) -> None:
    """Say it plainly where only devices of another host were promised.

    :raises errors.AssignmentError: which names the server
    """
    if not is_of_here(promised, flavor.classes(instance.flavor.extra_specs),
                      host, node):
        raise errors.AssignmentError(
            f'server {instance.uuid}', 'Placement promises it devices, and '
            'none of this host: a move of it did not end',
            'shelve and unshelve it')


def check(promised: assignment.Promised,
          offered: collections.abc.Iterable[providers.Offered],
          host: model.Host, node: providers.Node) -> None:
    """Say it plainly where a promised device is refused now, or gone.

    :raises errors.AssignmentError: which names the device
    """
    refused = providers.withheld(host, node.uuid)
    for uuid in set(promised) - {item.uuid for item in offered}:
        if uuid in refused:
            refusal = refused[uuid]
            raise errors.AssignmentError(
                f'device {refusal.address} ({refusal.ids})',
                f'is not offered: {refusal.reason}', refusal.remedy)
        if uuid in node.devices:
            raise errors.AssignmentError(
                f'resource provider {node.ours[uuid]}',
                'its device is not there, or no entry names it any more')

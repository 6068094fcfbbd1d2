# SPDX-License-Identifier: Apache-2.0
"""The audit: compare the machine, Placement and the libvirt domains.

A difference is reported, and units in doubt are withheld from scheduling.
Nothing is ever taken from a server.
"""

import collections
import collections.abc
import dataclasses
import functools

from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import allocations
from nova_accel.core.placement import inventory
from nova_accel.core.placement import listing


@dataclasses.dataclass(frozen=True)
class Finding:
    """One difference.

    :param thing: the provider, device or consumer that differs
    :param provider: uuid of the resource provider, or ''
    :param withheld: number of its units to withhold from scheduling
    :param passing: whether an operation in progress can explain it, so that
        it is reported only if it persists
    """

    thing: str
    reason: str
    remedy: str
    provider: str = ''
    withheld: int = 0
    passing: bool = False

    def __str__(self) -> str:
        return f'{self.thing}: {self.reason}; {self.remedy}'


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The state of the machine, of Placement and of the domains.

    :param host: the machine
    :param offered: its Regions by provider
    :param known: names of our providers in Placement, by uuid
    :param allocated: units by consumer, by provider of a Device or Region
    :param held: hostdevs by domain, including those that are not ours
    :param classes: classes of the units of each provider, offered or not
    :param consumers: our providers, including those of classes, that each
        consumer has allocations of
    """

    host: model.Host
    offered: collections.abc.Mapping[str, inventory.Offered]
    known: collections.abc.Mapping[str, str]
    allocated: collections.abc.Mapping[str, collections.abc.Mapping[str, int]]
    held: held_devices.Held
    classes: collections.abc.Mapping[str, collections.abc.Set[str]] = (
        dataclasses.field(default_factory=dict))
    consumers: collections.abc.Mapping[str, collections.abc.Sequence[str]] = (
        dataclasses.field(default_factory=dict))

    # Cached, because each is looked up for each hostdev.

    @functools.cached_property
    def functions(self) -> set[model.Address]:
        """Functions that are offered themselves, not only mdevs of them."""
        return {address for item in self.offered.values()
                if not item.region.mdevs
                for unit in item.region.units for address in unit}

    @functools.cached_property
    def ids(self) -> dict[model.Address, str]:
        """Vendor and product id of each function of the machine."""
        return {function.address: function.ids
                for function in self.host.functions}

    @functools.cached_property
    def refusals(self) -> dict[model.Address, model.Refusal]:
        return {refusal.address: refusal for refusal in self.host.refusals}

    @functools.cached_property
    def by_provider(self) -> dict[str, list[tuple[str, hostdev.Hostdev]]]:
        """Domains and hostdevs by the provider that the alias names."""
        found = collections.defaultdict(list)
        for uuid, device in held_devices.each(self.held):
            found[device.provider].append((uuid, device))
        return found


def gather(inventory: inventory.NodeInventory,
           read_allocations: collections.abc.Callable[
               [str], collections.abc.Mapping[str, listing.Json]],
           held: collections.abc.Callable[[], held_devices.Held],
           only: collections.abc.Container[str] | None = None) -> Snapshot:
    """Return the Snapshot of one compute node.

    :param read_allocations: reads the allocations of a provider, by its uuid
    :param held: reads the hostdevs; called after the allocations, because a
        server that is being deleted loses its domain first
    :param only: the providers whose allocations to read, if not all
    """
    offered, node = inventory.by_uuid, inventory.node
    classes = {uuid: item.region.resource_class
               for uuid, item in offered.items()}
    every = {uuid: read_allocations(uuid) for uuid in node.ours
             if only is None or uuid in only}
    of_devices = {uuid: every[uuid] for uuid in node.devices if uuid in every}
    allocated = {uuid: _units_by_consumer(consumers, classes.get(uuid))
                 for uuid, consumers in of_devices.items()}
    by_consumer = collections.defaultdict(list)
    for uuid, consumers in every.items():
        for consumer in consumers:
            by_consumer[consumer].append(uuid)
    return Snapshot(
        inventory.host, offered, node.ours, allocated, held(),
        {uuid: _classes_of_units(consumers, classes.get(uuid))
         for uuid, consumers in of_devices.items()}, by_consumer)


def _units_by_consumer(consumers: collections.abc.Mapping[str, listing.Json],
                       resource_class: str | None) -> dict[str, int]:
    return {consumer: amount for consumer, allocation in consumers.items()
            if (amount := allocations.count_units(
                allocation['resources'], resource_class))}


def _classes_of_units(consumers: collections.abc.Mapping[str, listing.Json],
                      resource_class: str | None) -> set[str]:
    """Return the class of a Region and those of the units allocated of it."""
    names = (resource_class, *(
        naming.class_of_units(name) for allocation in consumers.values()
        for name in allocation['resources']))
    return {name for name in names if name is not None}


def compare(snapshot: Snapshot, unknown: collections.abc.Container[str] = (),
            ) -> tuple[Finding, ...]:
    """Return all differences, the worst first.

    :param unknown: consumers that Nova does not know; they are not expected
        to hold what they have allocations of
    """
    return (*_held_twice(snapshot), *held_without_allocations(snapshot),
            *_held_not_offered(snapshot),
            *_allocated_not_held(snapshot, unknown))


def orphaned_allocations(snapshot: Snapshot, consumer: str) -> Finding:
    """Return a Finding for a consumer that is no server or migration."""
    uuids = sorted(snapshot.consumers[consumer],
                   key=snapshot.known.__getitem__)
    names = ', '.join(snapshot.known[uuid] for uuid in uuids)
    options = ' '.join(f'--provider {uuid}' for uuid in uuids)
    command = 'openstack resource provider allocation'
    return Finding(
        f'consumer {consumer}', f'has allocations of {names}, and no server '
        'and no migration of this cell has this uuid',
        f'if "openstack server show {consumer}" finds no server, run '
        f'"{command} delete {consumer}"; if it finds one in ERROR without a '
        'host, delete the server; if it finds one with a host, run '
        f'"{command} unset {options} {consumer}"')


def _held_twice(snapshot: Snapshot) -> collections.abc.Iterator[Finding]:
    """Find devices of ours that several domains define."""
    ours = snapshot.functions | {
        device.address for hostdevs in snapshot.held.values()
        for device in hostdev.ours(hostdevs)}
    for address, uuids in held_devices.holders(
            held_devices.each(snapshot.held)).items():
        if address in ours and len(uuids) > 1:
            yield Finding(
                f'device {address}',
                f'is in the definitions of {" and ".join(sorted(uuids))}',
                'delete or move all of them but one; they cannot run at the '
                'same time')


def held_without_allocations(
        snapshot: Snapshot,
        only: collections.abc.Container[str] | None = None,
        ) -> collections.abc.Iterator[Finding]:
    """Find units that domains hold beyond what Placement has allocated.

    :param only: the providers to look at, if not all
    """
    found = held_devices.by_region(snapshot.held, snapshot.offered.values())
    for item in snapshot.offered.values():
        if only is not None and item.uuid not in only:
            continue
        held = found[item.uuid]
        units = held_devices.units(held, item)
        allocated = sum(snapshot.allocated.get(item.uuid, {}).values())
        # A driver can offer fewer mdevs of a type than exist.
        excess = min(len(units), item.region.size) - allocated
        if excess > 0:
            reason, remedy = _explain(held, units, item, snapshot)
            yield Finding(
                f'resource provider {item.name}',
                f'{_of_its_units(len(units))} held, '
                f'{errors.count(allocated, "is", "are")} allocated: {reason}',
                remedy, item.uuid, excess)


def _explain(held: held_devices.Pairs,
             units: collections.abc.Mapping[model.Unit, set[str]],
             item: inventory.Offered, snapshot: Snapshot) -> tuple[str, str]:
    """Return which domains hold too much of a Region, and the remedy."""
    everyone = set[str]().union(*units.values())
    strangers = (everyone - set(snapshot.allocated.get(item.uuid, {}))
                 or everyone)
    names = ', '.join(sorted(strangers))
    addresses = {address for unit in units for address in unit}
    named = {device.provider for uuid, device in held
             if uuid in strangers and device.address in addresses}
    if item.uuid not in named and all(
            snapshot.allocated.get(provider) for provider in named):
        # An entry has changed, and so have the names of its Regions.
        have = 'has' if len(strangers) == 1 else 'have'
        return (f'{names} {have} allocations of it as ' + ', '.join(sorted(
            snapshot.known.get(provider, provider) for provider in named)),
            'no action needed, it is kept for the server; or restore the '
            'entry')
    return (f'{names} should not have it',
            'if the server is on another host, or deleted, undefine its '
            'domain here; if it is on this host, shelve and unshelve it; '
            'remove the device from a domain that is not Nova\'s')


def _held_not_offered(snapshot: Snapshot,
                      ) -> collections.abc.Iterator[Finding]:
    """Find devices of servers that are missing or not offered any more."""
    for uuid, hostdevs in snapshot.held.items():
        for device in hostdev.ours(hostdevs):
            why = _why_not_offered(device, snapshot)
            if why:
                yield Finding(f'device {device.address} of server {uuid}',
                              *why, device.provider)


def _why_not_offered(device: hostdev.Hostdev,
                     snapshot: Snapshot) -> tuple[str, str] | None:
    """Return reason and remedy, None if a device is offered."""
    if isinstance(device.address, model.MdevAddress):
        return None if device.provider in snapshot.offered else (
            'is not offered any more',
            'restore its card and its entry, or move the server')
    ids = snapshot.ids.get(device.address)
    if ids is None or device.ids not in ('', ids):
        return ('is not there any more' if ids is None else
                f'is {ids} now, the server had {device.ids}',
                'put the card back where it was, or move the server: it '
                'cannot be started here')
    if device.address in snapshot.functions:
        return None
    if refusal := snapshot.refusals.get(device.address):
        return (f'is not offered any more: {refusal.reason}',
                refusal.remedy or 'move the server')
    return ('no entry names it any more',
            'no action needed, the server keeps it; or restore its entry')


def _allocated_not_held(snapshot: Snapshot,
                        unknown: collections.abc.Container[str],
                        ) -> collections.abc.Iterator[Finding]:
    """Find units that are allocated and that no server holds."""
    for provider, allocated in snapshot.allocated.items():
        units = _units_named_by(provider, snapshot)
        has = collections.Counter(uuid for uuids in units.values()
                                  for uuid in uuids)
        lacking = ', '.join(sorted(
            consumer for consumer, amount in allocated.items()
            if has[consumer] < amount and consumer not in unknown))
        # During a resize, a migration has allocations as well; so compare the
        # sums.
        if not lacking or len(units) >= sum(allocated.values()):
            continue
        yield Finding(
            f'resource provider {snapshot.known.get(provider, provider)}',
            f'{_of_its_units(sum(allocated.values()))} allocated, '
            f'{errors.count(len(units), "is", "are")} held: {lacking} should '
            'have it',
            'wait while an operation is in progress or a resize is not '
            'confirmed; otherwise hard reboot the server; if it does not '
            'exist, or is on another host, run "openstack resource provider '
            f'allocation unset --provider {provider}'
            f'{_class_options(provider, snapshot)} <server>"', provider,
            passing=True)


def _of_its_units(number: int) -> str:
    return errors.count(number, 'of its units is', 'of its units are')


def _units_named_by(provider: str, snapshot: Snapshot,
                    ) -> dict[model.Unit, set[str]]:
    """Return domains by unit that was assigned from a provider."""
    held = snapshot.by_provider.get(provider, [])
    units = held_devices.units(held, snapshot.offered.get(provider))
    known = {address for unit in units for address in unit}
    return units | held_devices.units(
        ((uuid, device) for uuid, device in held
         if device.address not in known), None)


def _class_options(provider: str, snapshot: Snapshot) -> str:
    """Return the options that name the provider of a provider's class."""
    return ''.join(f' --provider {uuid}'
                   for uuid, name in snapshot.known.items()
                   if naming.class_of_provider(name)
                   in snapshot.classes.get(provider, ()))

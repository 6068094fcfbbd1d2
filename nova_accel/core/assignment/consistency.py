# SPDX-License-Identifier: Apache-2.0
"""Where the three snapshot disagree: the machine, the ledger and the record.

What is found is reported, and what nobody can be sure of is withheld from
others. Nothing is ever taken from a server.
"""

import collections
import collections.abc
import dataclasses
import functools

from nova_accel.core import holding
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import assign
from nova_accel.core.placement import inventory


@dataclasses.dataclass(frozen=True)
class Finding:
    """One disagreement.

    :param thing: what it is about
    :param provider: uuid of the provider that is concerned, or ''
    :param withheld: how many of its units nobody may have meanwhile
    :param passing: an operation that is going on explains it; it is worth
        words only where it stays
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
    """What is so, according to each.

    :param host: the machine
    :param offered: its Regions by provider
    :param known: names of our providers in Placement, by uuid
    :param allocated: amounts by consumer, by provider
    :param held: hostdevs by domain; also those that are not ours
    :param classes: of the units of a provider, whether it is offered or not
    :param consumers: the providers of ours, those of classes as well, that
        each consumer has allocations of
    """

    host: model.Host
    offered: collections.abc.Mapping[str, inventory.Offered]
    known: collections.abc.Mapping[str, str]
    allocated: collections.abc.Mapping[str, collections.abc.Mapping[str, int]]
    held: holding.Held
    classes: collections.abc.Mapping[str, collections.abc.Set[str]] = (
        dataclasses.field(default_factory=dict))
    consumers: collections.abc.Mapping[str, collections.abc.Sequence[str]] = (
        dataclasses.field(default_factory=dict))

    # Each looked up for each hostdev.

    @functools.cached_property
    def functions(self) -> set[model.Address]:
        """What can be given away itself, and not only mdevs of it."""
        return {address for item in self.offered.values()
                if not item.region.mdevs
                for unit in item.region.units for address in unit}

    @functools.cached_property
    def ids(self) -> dict[model.Address, str]:
        """Vendor and product id of each function that is there."""
        return {function.address: function.ids
                for function in self.host.functions}

    @functools.cached_property
    def refusals(self) -> dict[model.Address, model.Refusal]:
        return {refusal.address: refusal for refusal in self.host.refusals}

    @functools.cached_property
    def given(self) -> dict[str | None, list[tuple[str, hostdev.Hostdev]]]:
        """Hostdevs with their domains, by the provider that each is of."""
        found = collections.defaultdict(list)
        for uuid, device in holding.each(self.held):
            found[holding.provider_of(device)].append((uuid, device))
        return found


def gather(inventory: inventory.NodeInventory,
           allocations: collections.abc.Callable[
               [str], collections.abc.Mapping[str, collections.abc.Mapping]],
           held: collections.abc.Callable[[], holding.Held],
           only: collections.abc.Container[str] | None = None) -> Snapshot:
    """The Snapshot about one compute node.

    :param allocations: those of a provider, by its uuid, as Placement has them
    :param held: as in :class:`Snapshot`; asked after the allocations, because
        a server that is deleted meanwhile loses its domain first
    :param only: the providers whose allocations are asked for, if not all
    """
    offered, node = inventory.by_uuid, inventory.node
    classes = {uuid: item.region.resource_class
               for uuid, item in offered.items()}
    every = {uuid: allocations(uuid) for uuid in node.ours
             if only is None or uuid in only}
    found = {uuid: every[uuid] for uuid in node.devices if uuid in every}
    allocated = {
        uuid: {consumer: amount for consumer, allocation in consumers.items()
               if (amount := assign.count_units(
                   allocation['resources'], classes.get(uuid)))}
        for uuid, consumers in found.items()}
    by_consumer = collections.defaultdict(list)
    for uuid, consumers in every.items():
        for consumer in consumers:
            by_consumer[consumer].append(uuid)
    return Snapshot(inventory.host, offered, node.ours, allocated, held(), {
        uuid: {classes.get(uuid), *(
            naming.class_of_units(name)
            for allocation in consumers.values()
            for name in allocation['resources'])} - {None}
        for uuid, consumers in found.items()}, by_consumer)


def compare(snapshot: Snapshot, unknown: collections.abc.Container[str] = (),
            ) -> tuple[Finding, ...]:
    """Everything that does not fit, the worst first.

    :param unknown: consumers that Nova does not know; of what they were
        promised, nothing is missed
    """
    return (*_held_twice(snapshot), *held_without_allocations(snapshot),
            *_held_and_gone(snapshot), *_promised_not_held(snapshot, unknown))


def orphaned_allocations(snapshot: Snapshot, consumer: str) -> Finding:
    """Allocations of a consumer that is no server and no migration."""
    uuids = sorted(snapshot.consumers[consumer], key=snapshot.known.get)
    names = ', '.join(snapshot.known[uuid] for uuid in uuids)
    options = ' '.join(f'--provider {uuid}' for uuid in uuids)
    command = 'openstack resource provider allocation'
    return Finding(
        f'consumer {consumer}', f'has allocations of {names}, and no server '
        'and no migration of this cell has this uuid',
        f'if "openstack server show {consumer}" finds no server, "{command} '
        f'delete {consumer}"; a server in ERROR that has no host, delete; of '
        f'one that has a host, "{command} unset {options} {consumer}"')


def _held_twice(snapshot) -> collections.abc.Iterator[Finding]:
    """One device of ours in several definitions."""
    ours = snapshot.functions | {
        device.address for hostdevs in snapshot.held.values()
        for device in hostdev.ours(hostdevs)}
    for address, uuids in holding.holders(
            holding.each(snapshot.held)).items():
        if address in ours and len(uuids) > 1:
            yield Finding(
                f'device {address}',
                f'is in the definitions of {" and ".join(sorted(uuids))}',
                'delete or move all of them but one; they cannot run at the '
                'same time')


def held_without_allocations(snapshot: Snapshot,
               only: collections.abc.Container[str] | None = None,
               ) -> collections.abc.Iterator[Finding]:
    """Units that are held beyond what Placement has allocated.

    :param only: the providers to look at, if not all
    """
    found = holding.by_region(snapshot.held, snapshot.offered.values())
    for item in snapshot.offered.values():
        if only is not None and item.uuid not in only:
            continue
        held = found[item.uuid]
        units = holding.units(held, item)
        allocated = sum(snapshot.allocated.get(item.uuid, {}).values())
        # An mdev type can have come down to less than there are.
        excess = min(len(units), item.region.total) - allocated
        if excess > 0:
            reason, remedy = _explain(held, units, item, snapshot)
            yield Finding(
                f'resource provider {item.name}',
                f'{len(units)} of it are held, {allocated} are promised: '
                f'{reason}', remedy, item.uuid, excess)


def _explain(held, units, item, snapshot) -> tuple[str, str]:
    """Who should not have a Region's units, and what to do about it."""
    everyone = set().union(*units.values())
    strangers = (everyone - set(snapshot.allocated.get(item.uuid, {}))
                 or everyone)
    names = ', '.join(sorted(strangers))
    addresses = {address for unit in units for address in unit}
    given_as = {holding.provider_of(device) for uuid, device in held
                if uuid in strangers and device.address in addresses}
    if item.uuid not in given_as and all(
            snapshot.allocated.get(provider) for provider in given_as):
        # An entry has changed, and its Regions have other names by now.
        return (f'{names} was promised it as ' + ', '.join(sorted(
            snapshot.known.get(provider, provider) for provider in given_as)),
            'nothing, it is kept for the server; or put the entry back')
    return (f'{names} should not have it',
            'where the server lives on another host, or is deleted, undefine '
            'its domain here; where it lives here, shelve and unshelve it; a '
            'domain that is not Nova\'s has to let go of the device')


def _held_and_gone(snapshot) -> collections.abc.Iterator[Finding]:
    """Devices of servers that are not there, or not offered any more."""
    for uuid, hostdevs in snapshot.held.items():
        for device in hostdev.ours(hostdevs):
            why = _why_gone(device, snapshot)
            if why:
                yield Finding(f'device {device.address} of server {uuid}',
                              *why, holding.provider_of(device))


def _why_gone(device, snapshot) -> tuple[str, str] | None:
    """Reason and remedy."""
    if isinstance(device.address, model.MdevAddress):
        return None if holding.provider_of(device) in snapshot.offered else (
            'nothing offers it any more',
            'put its device and its entry back, or move the server')
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
            'nothing, the server keeps it; or put its entry back')


def _promised_not_held(snapshot, unknown) -> collections.abc.Iterator[Finding]:
    """Units that the ledger has given away and that nobody has."""
    for provider, allocated in snapshot.allocated.items():
        units = _given(snapshot, provider)
        has = collections.Counter(uuid for uuids in units.values()
                                  for uuid in uuids)
        lacking = ', '.join(sorted(
            consumer for consumer, amount in allocated.items()
            if has[consumer] < amount and consumer not in unknown))
        # A resize that waits to be confirmed has its own consumer.
        if not lacking or len(units) >= sum(allocated.values()):
            continue
        yield Finding(
            f'resource provider {snapshot.known.get(provider, provider)}',
            f'{sum(allocated.values())} of it are promised, {len(units)} are '
            f'held: {lacking} should have it', 'where an operation is going '
            'on, or a resize waits to be confirmed, nothing; otherwise reboot '
            'the server hard; where there is none, or it is on another host, '
            '"openstack resource provider allocation unset --provider '
            f'{provider}{_counting(provider, snapshot)} <server>"', provider,
            passing=True)


def _given(snapshot, provider) -> dict[model.Unit, set[str]]:
    """Who has what was given as a provider's, whether it is offered or not."""
    held = snapshot.given.get(provider, [])
    units = holding.units(held, snapshot.offered.get(provider))
    known = {address for unit in units for address in unit}
    return units | holding.units(
        ((uuid, device) for uuid, device in held
         if device.address not in known), None)


def _counting(provider, snapshot) -> str:
    """What the class of a provider is counted by, for a command."""
    return ''.join(f' --provider {uuid}'
                   for uuid, name in snapshot.known.items()
                   if naming.class_of_provider(name)
                   in snapshot.classes.get(provider, ()))

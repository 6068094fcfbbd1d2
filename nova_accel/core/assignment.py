# SPDX-License-Identifier: Apache-2.0
"""From what Placement promised to the concrete functions that keep it."""

import collections
import collections.abc
import dataclasses

from nova_accel.core import affinity
from nova_accel.core import arrangement
from nova_accel.core import errors
from nova_accel.core import identity
from nova_accel.core import model
from nova_accel.core import profile as profiles
from nova_accel.core import providers

#: Amount by resource class by provider uuid.
Promised = collections.abc.Mapping[str, collections.abc.Mapping[str, int]]

@dataclasses.dataclass(frozen=True)
class Grant:
    """One unit for one group.

    :param group: ``ACCEL0``, or '' where no group of the flavor's asked
    """

    group: str
    offered: providers.Offered
    unit: model.Unit


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a server wants of a host's devices.

    :param groups: its flavor's
    :param rules: what the flavor says of where they are to be
    :param around: what the rules are about
    :param counts: units by class that it was promised in all; where those of
        the devices are less, nobody has chosen devices yet
    :param elsewhere: units by provider that others were promised; some of
        them may not be here yet
    :param pack: whether large groups of free devices are kept whole
    """

    groups: collections.abc.Mapping[str, profiles.Group]
    rules: tuple[affinity.Rule, ...] = ()
    around: arrangement.Surroundings = arrangement.Surroundings()
    counts: collections.abc.Mapping[str, int] = dataclasses.field(
        default_factory=dict)
    elsewhere: collections.abc.Mapping[str, int] = dataclasses.field(
        default_factory=dict)
    pack: bool = True


def assign(promised: Promised, wanted: Wanted,
           offered: collections.abc.Iterable[providers.Offered],
           holders: collections.abc.Mapping[model.Address, str],
           holder: str,
           mdevs: collections.abc.Mapping[str, int] = {},
           ) -> tuple[Grant, ...]:
    """Choose the functions that a server gets.

    :param promised: the server's allocations
    :param offered: what this host offers
    :param holders: who holds which function now
    :param holder: the server; what it holds already is free for it
    :param mdevs: how many mdevs of each provider other servers hold
    :raises errors.AssignmentError: if one unit of the promise cannot be kept
    """
    here = {item.uuid: item for item in offered}
    units = {uuid: sum(amounts.values())
             for uuid, amounts in promised.items() if uuid in here}
    booked = _by_class(units, here)
    stocks = []
    for uuid, item in here.items():
        resource_class = item.region.resource_class
        if wanted.counts.get(resource_class, 0) <= booked[resource_class]:
            # Devices were chosen where it was decided on the host.
            free = units.get(uuid, 0)
        else:
            free = min(
                _count_free(item, mdevs, holders, holder),
                item.region.total - wanted.elsewhere.get(uuid, 0))
        if free > 0:
            stocks.append(_stock(item, free))
    groups = with_the_rest(wanted.groups,
                           booked | collections.Counter(wanted.counts))
    grants = []
    # The traits of what was chosen already have been seen to. They tell
    # groups apart then, no more: an entry that lost a trait takes no device
    # from a server.
    chosen = all(amount <= booked[resource_class]
                 for resource_class, amount in wanted.counts.items())
    arranged = _arrange(groups, stocks, wanted, chosen, lambda: _who_holds(
        here.values(), holders, holder))
    for uuid, names in arranged.items():
        item = here[uuid]
        free = (_free_mdevs(item, len(names), mdevs, holder)
                if item.region.mdevs else
                _free_units(item, len(names), holders, holder))
        grants.extend(Grant(name if name in wanted.groups else '', item, unit)
                      for name, unit in zip(names, free, strict=True))
    return tuple(sorted(grants, key=_order))


def is_chosen(promised: Promised, counts: collections.abc.Mapping[str, int],
              offered: collections.abc.Iterable[providers.Offered]) -> bool:
    """Whether the ledger names devices, and not only their classes."""
    here = {item.uuid: item for item in offered}
    booked = _by_class({uuid: sum(promised[uuid].values())
                        for uuid in here if uuid in promised}, here)
    return all(amount <= booked[name] for name, amount in counts.items())


def with_the_rest(groups: collections.abc.Mapping[str, profiles.Group],
                  counts: collections.abc.Mapping[str, int],
                  ) -> dict[str, profiles.Group]:
    """A flavor's groups, and one for each unit that none of them asks for.

    A flavor can ask by class alone, and gets as good a promise.

    :param counts: units by class that were promised in all
    """
    asked: collections.Counter[str] = collections.Counter()
    for group in groups.values():
        asked.update(group.resources)
    return {**groups, **{
        f'{resource_class} {number}': profiles.Group({resource_class: 1}, {},
                                                     profiles.OFF)
        for resource_class, amount in counts.items()
        for number in range(amount - asked[resource_class])}}


def unbooked(grants: collections.abc.Iterable[Grant], promised: Promised,
             ) -> dict[str, dict[str, int]]:
    """What was chosen here that the ledger does not have yet.

    :returns: amounts by class by provider
    """
    chosen = collections.Counter(grant.offered for grant in grants)
    return {item.uuid: {identity.unit_class(item.region.resource_class):
                            number - booked}
            for item, number in chosen.items()
            if (booked := sum(promised.get(item.uuid, {}).values())) < number}


def check_there(addresses: collections.abc.Iterable[model.Address],
                host: model.Host) -> None:
    """Make sure that a guest gets what it had, and not what is there instead.

    The configuration does not matter: what an entry named once, a server
    keeps.

    :raises errors.AssignmentError: if a function is not there, or the host
        uses it
    """
    there = {function.address: function for function in host.functions}
    for address in addresses:
        if isinstance(address, model.MdevAddress):
            continue
        if address not in there:
            raise errors.AssignmentError(
                f'device {address}', 'is not there any more',
                'put the card back where it was, or move the server')
        if there[address].use:
            raise errors.AssignmentError(
                f'device {address}',
                f'the host uses it: {there[address].use}', 'move the server')


def _order(grant: Grant):
    number = grant.group.lstrip('ACEL')
    return not grant.group, int(number or 0), grant.unit


def _free_units(item, count, holders, holder):
    def state(address):
        return holders.get(address, holder)

    free = [unit for unit in item.region.units
            if all(state(address) == holder for address in unit)]
    if len(free) < count:
        taken = ', '.join(f'{address} is held by {state(address)}'
                          for unit in item.region.units for address in unit
                          if state(address) != holder)
        raise errors.AssignmentError(
            f'resource provider {item.name}',
            f'Placement promised {count} of it, {len(free)} of '
            f'{len(item.region.units)} are free' + (f': {taken}' if taken
                                                    else ''))
    # What nobody had comes first, then what the server had before: its old
    # definition may be wanted again (a resize reverted).
    free.sort(key=lambda unit: (any(a in holders for a in unit), unit))
    return free[:count]


def _free_mdevs(item, count, mdevs, holder):
    total, taken = len(item.region.units), mdevs.get(item.uuid, 0)
    if total - taken < count:
        raise errors.AssignmentError(
            f'resource provider {item.name}',
            f'Placement promised {count} mdevs {item.region.variant} of '
            f'it, {max(0, total - taken)} of {total} are free')
    return [(model.MdevAddress(identity.mdev_uuid(holder, item.uuid, index)),)
            for index in range(count)]


def _by_class(units, here) -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    for uuid, amount in units.items():
        found[here[uuid].region.resource_class] += amount
    return found


def _count_free(item, mdevs, holders, holder) -> int:
    taken = mdevs.get(item.uuid, 0) if item.region.mdevs else sum(
        any(holders.get(address, holder) != holder for address in unit)
        for unit in item.region.units)
    return max(0, item.region.total - taken)


def _stock(item, free: int) -> arrangement.Stock:
    location = item.device.location
    return arrangement.Stock(
        item.uuid, item.region.resource_class, item.region.traits, free,
        arrangement.Place(location.numa_node, location.root or None,
                          location.switch, str(item.device.address)),
        item.region.total)


def _who_holds(offered, holders, holder) -> str:
    return ', '.join(f'{address} is held by {holders[address]}'
                     for item in offered for unit in item.region.units
                     for address in unit
                     if holders.get(address, holder) != holder)


def _arrange(groups, stocks, wanted, chosen, who_holds,
             ) -> dict[str, list[str]]:
    """For each provider a group name per unit that is taken of it."""
    found = arrangement.arrange(groups, stocks, wanted.rules, wanted.around,
                                wanted.pack)
    if found.objection and chosen:
        plain = {name: dataclasses.replace(group, traits={})
                 for name, group in groups.items()}
        found = arrangement.arrange(plain, stocks, wanted.rules,
                                    wanted.around)
    if found.objection:
        held = '' if chosen else who_holds()
        raise errors.AssignmentError(
            'what its profile asks for',
            found.objection + (f': {held}' if held else ''))
    labels: dict[str, list[str]] = collections.defaultdict(list)
    for name, uuid in found.chosen.items():
        labels[uuid].extend([name] * sum(groups[name].resources.values()))
    return labels

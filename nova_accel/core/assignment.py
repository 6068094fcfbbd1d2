# SPDX-License-Identifier: Apache-2.0
"""From what Placement promised to the concrete functions that keep it."""

import collections
import collections.abc
import dataclasses

from nova_accel.core import errors
from nova_accel.core import identity
from nova_accel.core import model
from nova_accel.core import profile as profiles
from nova_accel.core import providers

#: Amount by resource class by provider uuid.
Promised = collections.abc.Mapping[str, collections.abc.Mapping[str, int]]

# Matching groups to providers is a search; real requests need a few steps for
# each group, and a contrived one must not stop nova-compute.
_MAX_STEPS = 2_000


@dataclasses.dataclass(frozen=True)
class Grant:
    """One unit for one group.

    :param group: ``ACCEL0``, or '' where no group of the flavor's asked
    """

    group: str
    offered: providers.Offered
    unit: model.Unit


def assign(promised: Promised,
           groups: collections.abc.Mapping[str, profiles.Group],
           offered: collections.abc.Iterable[providers.Offered],
           holders: collections.abc.Mapping[model.Address, str],
           holder: str,
           mdevs: collections.abc.Mapping[str, int] = {},
           ) -> tuple[Grant, ...]:
    """Choose the functions that a server gets.

    :param promised: the server's allocations
    :param groups: what its flavor asks for
    :param offered: what this host offers
    :param holders: who holds which function now
    :param holder: the server; what it holds already is free for it
    :param mdevs: how many mdevs of each provider other servers hold
    :raises errors.AssignmentError: if one unit of the promise cannot be kept
    """
    here = {item.uuid: item for item in offered}
    ours = {uuid: dict(amounts) for uuid, amounts in promised.items()
            if uuid in here}
    labels = _label(ours, groups, here)
    grants = []
    for uuid, names in labels.items():
        units = (_free_mdevs(here[uuid], len(names), mdevs, holder)
                 if here[uuid].region.mdevs else
                 _free_units(here[uuid], len(names), holders, holder))
        grants.extend(Grant(name, here[uuid], unit)
                      for name, unit in zip(names, units, strict=True))
    return tuple(sorted(grants, key=_order))


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


def _label(ours, groups, here) -> dict[str, list[str]]:
    """For each provider a group name per unit that was promised of it."""
    left = collections.Counter({uuid: sum(amounts.values())
                                for uuid, amounts in ours.items()})
    chosen = _match(ours, left, groups, here)
    labels: dict[str, list[str]] = collections.defaultdict(list)
    for name, uuid in chosen.items():
        amount = _amount(groups[name])
        labels[uuid].extend([name] * amount)
        left[uuid] -= amount
    for uuid, amount in left.items():
        # Asked for by class alone, on the flavor: as good a promise.
        labels[uuid].extend([''] * amount)
    return labels


def _match(ours, left, groups, here) -> dict[str, str]:
    """A provider for every group, such that the amounts add up."""
    by_class = {name: [uuid for uuid, amounts in ours.items()
                       if set(amounts) == set(group.resources)]
                for name, group in groups.items()}
    by_trait = {name: [uuid for uuid in by_class[name]
                       if _has_traits(here[uuid], group)]
                for name, group in groups.items()}
    # Placement has seen to the traits. They tell groups apart here, no more:
    # an entry that lost a trait takes no device from a server that has it.
    for possible in (by_trait, by_class):
        found = _search(possible, left, groups)
        if found is not None:
            return found
    name = min(groups, key=lambda name: len(by_class[name]))
    raise errors.AssignmentError(
        f'group {name}', 'the server\'s allocations have no provider of '
        f'this host with {_wish(groups[name])} for it')


def _search(possible, left, groups) -> dict[str, str] | None:
    # What is hardest to place comes first; ways that failed are remembered.
    names = sorted(groups, key=lambda name: (-_amount(groups[name]),
                                             len(possible[name])))
    failed: set[tuple[int, frozenset]] = set()
    # Providers that the same groups can use are as good as each other.
    users = {uuid: tuple(name for name in names if uuid in possible[name])
             for uuid in left}

    def search(index, left):
        if index == len(names):
            return {}
        state = index, frozenset(collections.Counter(
            (users[uuid], amount) for uuid, amount in left.items()).items())
        if state in failed or len(failed) > _MAX_STEPS:
            return None
        name = names[index]
        amount = _amount(groups[name])
        alike = {(users[uuid], left[uuid]): uuid for uuid in
                 reversed(possible[name]) if left[uuid] >= amount}
        for uuid in alike.values():
            rest = search(index + 1, {**left, uuid: left[uuid] - amount})
            if rest is not None:
                return {name: uuid, **rest}
        failed.add(state)
        return None

    return search(0, dict(left))


def _amount(group) -> int:
    return sum(group.resources.values())


def _has_traits(item, group) -> bool:
    return all((trait in item.region.traits) == (wish == profiles.REQUIRED)
               for trait, wish in group.traits.items()
               if trait not in providers.OURS)


def _wish(group) -> str:
    return ', '.join(f'{amount} {name}'
                     for name, amount in group.resources.items())

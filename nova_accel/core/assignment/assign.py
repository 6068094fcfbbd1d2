# SPDX-License-Identifier: Apache-2.0
"""Choose the devices of a server from its allocations."""

import collections
import collections.abc
import dataclasses
import itertools

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import allocations
from nova_accel.core.assignment import assigned_units
from nova_accel.core.placement import inventory
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.core.request import profile_group
from nova_accel.core.solver import arrange

#: The Regions of this host, by provider.
_Here = collections.abc.Mapping[str, inventory.Offered]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a server asks of the devices of a host.

    :param groups: the groups of its flavor
    :param rules: the affinity rules of its flavor
    :param around: the facts of the host that the rules refer to
    :param counts: all allocated units by class; if fewer units of Devices are
        allocated, devices are not chosen yet
    :param elsewhere: units by provider that other servers have allocations
        of; these servers may not be on this host yet
    :param pack: whether to keep large groups of free devices whole
    :param own: providers of which the server has its units already: what is
        withheld there is withheld from other servers only, except for units
        whose reset failed
    """

    groups: profile_group.Groups
    rules: tuple[affinity.Rule, ...] = ()
    around: arrange.HostContext = arrange.HostContext()
    counts: collections.abc.Mapping[str, int] = dataclasses.field(
        default_factory=dict)
    elsewhere: collections.abc.Mapping[str, int] = dataclasses.field(
        default_factory=dict)
    pack: bool = True
    own: frozenset[str] = frozenset()


def assign(allocated: allocations.Allocations, wanted: Wanted,
           offered: collections.abc.Iterable[inventory.Offered],
           holders: collections.abc.Mapping[model.Address, str],
           holder: str,
           mdevs: collections.abc.Mapping[str, int] = {},
           ) -> tuple[assigned_units.Grant, ...]:
    """Choose the functions and mdevs that a server gets.

    :param allocated: the allocations of the server
    :param offered: the Regions that this host offers
    :param holders: the server that holds each function now
    :param holder: the server; functions that it holds are free for it
    :param mdevs: number of mdevs that other servers hold, by provider
    :raises errors.AssignmentError: if the host cannot provide an allocated
        unit; TakenError if another server holds it
    """
    here = {item.uuid: item for item in offered}
    held = _Held(holders, holder, mdevs, wanted.own)
    units = _units(allocated, here)
    booked = _by_class(units, here)
    groups = with_other_units(wanted.groups,
                              booked | collections.Counter(wanted.counts),
                              [item.region for item in here.values()])
    available = tuple(
        _available(item, amount) for uuid, item in here.items() if (amount := (
            units.get(uuid, 0) if _covers(booked, wanted.counts,
                                          item.region.resource_class)
            else min(held.count_free(item),
                     item.region.total - wanted.elsewhere.get(uuid, 0)))) > 0)
    found = _arrange(groups, available, wanted, booked)
    if found.objection:
        others = held.describe_others(here.values())
        raise errors.AssignmentError(
            'device request', found.objection
            + (f': {others}' if others and not units else ''))
    return tuple(sorted((
        assigned_units.Grant(name if name in wanted.groups else '',
                             here[uuid], unit)
        for uuid, names in _groups_of_units(groups, found.chosen).items()
        for name, unit in zip(names, held.take(here[uuid], len(names)),
                              strict=True)), key=_order))


def names_devices(allocated: allocations.Allocations,
                  counts: collections.abc.Mapping[str, int],
                  offered: collections.abc.Iterable[inventory.Offered],
                  ) -> bool:
    """Whether the allocations name devices, and not only classes."""
    here = {item.uuid: item for item in offered}
    return _covers(_by_class(_units(allocated, here), here), counts)


def with_other_units(
        groups: profile_group.Groups,
        counts: collections.abc.Mapping[str, int],
        regions: collections.abc.Collection[
            model.Region | arrange.AvailableUnits],
        ) -> dict[str, device_profile.Group]:
    """Return a flavor's groups, plus a group for each other allocated unit.

    A flavor can also ask for a class without a profile, and for traits with
    it or in granular groups of its own. Each such unit has to have these
    traits: Placement checked only that some device of the class has them.

    :param groups: may be flavor_specs.Groups, which has such requests
    :param counts: all allocated units by class
    :param regions: all Regions of the host, free or not
    """
    asked: collections.Counter[str] = collections.Counter()
    for group in groups.values():
        asked.update(group.resources)
    return {**groups, **{
        f'{resource_class} {number}': device_profile.Group({resource_class: 1},
                                                           traits,
                                                           device_profile.OFF)
        for resource_class, amount in counts.items()
        for number, traits in enumerate(itertools.islice(
            _traits(groups, resource_class, regions),
            max(0, amount - asked[resource_class])))}}


def _traits(groups: profile_group.Groups, resource_class: str,
            regions: collections.abc.Iterable[
                model.Region | arrange.AvailableUnits],
            ) -> collections.abc.Iterator[collections.abc.Mapping[str, str]]:
    """Yield the required traits of each unit that no profile asks for."""
    # A trait of no Region is one of the compute node or of another class.
    known = {trait for region in regions
             if region.resource_class == resource_class
             for trait in region.traits}
    own, unsuffixed = (
        (groups.own, groups.traits) if isinstance(groups, flavor_specs.Groups)
        else ((), {}))
    for group in own:
        # The provider of a class has the traits of all its Regions. If it does
        # not match the group, another provider serves the group, such as that
        # of Nova's vGPUs.
        if all((trait in known or trait in naming.OUR_TRAITS)
               == (strength == device_profile.REQUIRED)
               for trait, strength in group.traits.items()):
            yield from itertools.repeat(group.traits,
                                        group.resources.get(resource_class, 0))
    yield from itertools.repeat({
        trait: strength for trait, strength in unsuffixed.items()
        if trait in known})


def _order(grant: assigned_units.Grant) -> tuple[bool, int, model.Unit]:
    number = grant.group.lstrip('ACEL')
    return not grant.group, int(number or 0), grant.unit


@dataclasses.dataclass(frozen=True)
class _Held:
    """The devices that servers hold, seen from one of the servers."""

    holders: collections.abc.Mapping[model.Address, str]
    holder: str
    mdevs: collections.abc.Mapping[str, int]
    own: frozenset[str] = frozenset()

    def count_free(self, item: inventory.Offered) -> int:
        if item.region.mdevs:
            return item.region.total - self.mdevs.get(item.uuid, 0)
        return item.region.total - len(item.region.available) + len(
            self._free(item))

    def take(self, item: inventory.Offered,
             count: int) -> list[model.Unit]:
        """Return free units of a Region.

        :raises errors.TakenError: if fewer than ``count`` are free
        """
        return (self._take_mdevs(item, count) if item.region.mdevs else
                self._take_functions(item, count))

    def describe_others(
            self, offered: collections.abc.Iterable[inventory.Offered],
            ) -> str:
        """Say which other server holds each function of Regions."""
        return ', '.join(
            f'{address} is held by {self.holders[address]}'
            for item in offered for unit in item.region.units
            for address in unit if self._is_held_by_other(address))

    def _is_held_by_other(self, address: model.Address) -> bool:
        return self.holders.get(address, self.holder) != self.holder

    def _free(self, item: inventory.Offered) -> list[model.Unit]:
        units = (item.region.recoverable if item.uuid in self.own
                 else item.region.available)
        return [unit for unit in units
                if not any(map(self._is_held_by_other, unit))]

    def _take_functions(self, item: inventory.Offered,
                        count: int) -> list[model.Unit]:
        free = self._free(item)
        if len(free) < count:
            taken = self.describe_others([item])
            raise errors.TakenError(
                f'resource provider {item.name}',
                f'Placement has allocations for {count} of its units, '
                + _are_free(len(free), len(item.region.units))
                + (f': {taken}' if taken else ''))
        # Prefer units that are not withheld, and then units that no server
        # holds to those that the server itself held before: a reverted resize
        # needs its old devices again.
        available = set(item.region.available)
        free.sort(key=lambda unit: (
            unit not in available, any(a in self.holders for a in unit),
            unit))
        return free[:count]

    def _take_mdevs(self, item: inventory.Offered,
                    count: int) -> list[model.Unit]:
        total = (item.region.size if item.uuid in self.own
                 else item.region.total)
        taken = self.mdevs.get(item.uuid, 0)
        if total - taken < count:
            raise errors.TakenError(
                f'resource provider {item.name}',
                f'Placement has allocations for {errors.count(count, "mdev")} '
                f'{item.region.variant} of it, '
                + _are_free(max(0, total - taken), total))
        return [(model.MdevAddress(
            naming.mdev_uuid(self.holder, item.uuid, index)),)
            for index in range(count)]


def _are_free(free: int, total: int) -> str:
    return f'{errors.count(free, f"of {total} is", f"of {total} are")} free'


def _units(allocated: allocations.Allocations, here: _Here,
           ) -> dict[str, int]:
    """Count the allocated units by provider of this host."""
    return {uuid: allocations.count_units(amounts,
                                          here[uuid].region.resource_class)
            for uuid, amounts in allocated.items() if uuid in here}


def _by_class(units: collections.abc.Mapping[str, int], here: _Here,
              ) -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    for uuid, amount in units.items():
        found[here[uuid].region.resource_class] += amount
    return found


def _covers(booked: collections.Counter[str],
            counts: collections.abc.Mapping[str, int], *names: str) -> bool:
    """Whether units are allocated for all counts of classes, or of all."""
    return all(counts.get(name, 0) <= booked[name] for name in names or counts)


def _available(item: inventory.Offered, free: int) -> arrange.AvailableUnits:
    return arrange.AvailableUnits(
        item.uuid, item.region.resource_class, item.region.traits, free,
        model.Place.at(item.device.location, str(item.device.address)),
        item.region.total)


def _arrange(groups: profile_group.Groups,
             available: collections.abc.Sequence[arrange.AvailableUnits],
             wanted: Wanted, booked: collections.Counter[str],
             ) -> arrange.Arrangement:
    found = arrange.arrange(groups, available, wanted.rules, wanted.around,
                            wanted.pack)
    if not found.objection or not _covers(booked, wanted.counts):
        return found
    # The devices were chosen before, with their traits. An entry that lost a
    # trait since then must not take a device from a server.
    without_traits = {name: dataclasses.replace(group, traits={}, any_of=())
                      for name, group in groups.items()}
    return arrange.arrange(without_traits, available, wanted.rules,
                           wanted.around, wanted.pack)


def _groups_of_units(groups: profile_group.Groups,
                     chosen: collections.abc.Mapping[str, str],
                     ) -> dict[str, list[str]]:
    """Return by provider the group of each unit that is assigned from it."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for name, uuid in chosen.items():
        found[uuid].extend([name] * sum(groups[name].resources.values()))
    return found

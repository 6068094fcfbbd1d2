# SPDX-License-Identifier: Apache-2.0
"""From what Placement promised to the concrete functions that keep it."""

import collections
import collections.abc
import dataclasses
import itertools

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.solver import arrange

#: Amount by resource class by provider uuid.
Allocations = collections.abc.Mapping[str, collections.abc.Mapping[str, int]]

@dataclasses.dataclass(frozen=True)
class Grant:
    """One unit for one group.

    :param group: ``ACCEL0``, or '' where no group of the flavor's asked
    """

    group: str
    offered: inventory.Offered
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

    groups: collections.abc.Mapping[str, device_profile.Group]
    rules: tuple[affinity.Rule, ...] = ()
    around: arrange.HostContext = arrange.HostContext()
    counts: collections.abc.Mapping[str, int] = dataclasses.field(
        default_factory=dict)
    elsewhere: collections.abc.Mapping[str, int] = dataclasses.field(
        default_factory=dict)
    pack: bool = True


def assign(allocated: Allocations, wanted: Wanted,
           offered: collections.abc.Iterable[inventory.Offered],
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
    :raises errors.AssignmentError: if one unit of the promise cannot be kept;
        TakenError where it is because another server has it
    """
    here = {item.uuid: item for item in offered}
    held = _Held(holders, holder, mdevs)
    units = _units(allocated, here)
    booked = _by_class(units, here)
    groups = with_the_rest(wanted.groups,
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
        others = held.by_others(here.values())
        raise errors.AssignmentError(
            'what its profile asks for', found.objection
            + (f': {others}' if others and not units else ''))
    return tuple(sorted((
        Grant(name if name in wanted.groups else '', here[uuid], unit)
        for uuid, names in _labels(groups, found.chosen).items()
        for name, unit in zip(names, held.take(here[uuid], len(names)),
                              strict=True)), key=_order))


def plan(grants: collections.abc.Iterable[Grant],
         ) -> hostdev.Hostdevs:
    """The hostdevs of a guest, in the order of its profile's groups."""
    seen: collections.Counter = collections.Counter()
    hostdevs = []
    for grant in grants:
        for address in grant.unit:
            key = grant.group, grant.offered.uuid
            hostdevs.append(hostdev.Hostdev(
                address, naming.alias(
                    *key, seen[key], grant.offered.region.ids_of(address),
                    grant.offered.region.variant, _card(grant.offered)),
                grant.offered.region.managed))
            seen[key] += 1
    return tuple(hostdevs)


def is_chosen(allocated: Allocations,
              counts: collections.abc.Mapping[str, int],
              offered: collections.abc.Iterable[inventory.Offered]) -> bool:
    """Whether the ledger names devices, and not only their classes."""
    here = {item.uuid: item for item in offered}
    return _covers(_by_class(_units(allocated, here), here), counts)


def with_the_rest(groups: collections.abc.Mapping[str, device_profile.Group],
                  counts: collections.abc.Mapping[str, int],
                  regions: collections.abc.Collection[
                      model.Region | arrange.AvailableUnits],
                  ) -> dict[str, device_profile.Group]:
    """A flavor's groups, and one for each unit that none of them asks for.

    A flavor can ask by class alone, and gets as good a promise; beside it, or
    in a granular group of its own, also by trait. All such units are to have
    it: Placement has seen no more than that one of the class's devices does.

    :param groups: flavor.Groups, where there may be such groups
    :param counts: units by class that were promised in all
    :param regions: all of the host's, free or not
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


def _traits(groups, resource_class: str, regions,
            ) -> collections.abc.Iterator[collections.abc.Mapping[str, str]]:
    """What is asked of each unit of a class beside the profile's groups."""
    # What no Region has is the compute node's, or another class's.
    there = {trait for region in regions
             if region.resource_class == resource_class
             for trait in region.traits}
    for group in getattr(groups, 'own', ()):
        # The provider of a class has the traits of all its Regions; so one
        # that they rule out was served by another, such as Nova's for vGPUs.
        if all((trait in there or trait in naming.OUR_TRAITS)
               == (strength == device_profile.REQUIRED)
               for trait, strength in group.traits.items()):
            yield from itertools.repeat(group.traits,
                                        group.resources.get(resource_class, 0))
    yield from itertools.repeat({
        trait: strength for trait, strength
        in getattr(groups, 'traits', {}).items() if trait in there})


def count_units(amounts: collections.abc.Mapping[str, int],
                resource_class: str | None = None) -> int:
    """Units in what is allocated of a Device's or Region's provider.

    An operator's provider.yaml can have added other inventory to it.

    :param amounts: by class
    :param resource_class: the Region's, in which units were counted once; if
        it is not known any more, that can be any
    """
    units = sum(amount for name, amount in amounts.items()
                if naming.class_of_units(name))
    return units or sum(amount for name, amount in amounts.items()
                        if resource_class in (None, name))


def without_devices(allocated: Allocations) -> dict[str, dict[str, int]]:
    """A promise of so many of a class, whichever they are."""
    return {uuid: left for uuid, amounts in allocated.items()
            if (left := {name: amount for name, amount in amounts.items()
                         if not naming.class_of_units(name)})}


def unallocated(grants: collections.abc.Iterable[Grant],
                allocated: Allocations) -> dict[str, dict[str, int]]:
    """What was chosen here that the ledger does not have yet.

    :returns: amounts by class by provider
    """
    chosen = collections.Counter(grant.offered for grant in grants)
    return {item.uuid: {naming.unit_class(item.region.resource_class):
                            number - booked}
            for item, number in chosen.items()
            if (booked := count_units(allocated.get(item.uuid, {}),
                                      item.region.resource_class)) < number}


def surplus(grants: collections.abc.Iterable[Grant], allocated: Allocations,
           here: collections.abc.Container[str],
           ) -> dict[str, dict[str, int]]:
    """What the ledger has of devices that were not chosen.

    While a server moves, or until the host that it was evacuated from comes
    back, the ledger has devices of another host as well.

    :param here: uuids of this host's providers; also of those that are not
        offered any more
    :returns: amounts by class by provider
    """
    chosen = collections.Counter(grant.offered.uuid for grant in grants)
    return {uuid: {name: amount - chosen[uuid]}
            for uuid, amounts in allocated.items() if uuid in here
            for name, amount in amounts.items()
            if naming.class_of_units(name) and amount > chosen[uuid]}


def moved(allocated: Allocations, more: Allocations,
          less: Allocations) -> dict[str, dict[str, int]]:
    """A promise with something in place of something else."""
    amounts = {uuid: collections.Counter(held)
               for uuid, held in allocated.items()}
    for uuid, added in more.items():
        amounts.setdefault(uuid, collections.Counter()).update(added)
    for uuid, taken in less.items():
        amounts.setdefault(uuid, collections.Counter()).subtract(taken)
    return {uuid: left for uuid, counter in amounts.items()
            if (left := dict(+counter))}


def check_there(had: collections.abc.Mapping[model.Address, str],
                host: model.Host) -> None:
    """Make sure that a guest gets what it had, and not what is there instead.

    The configuration does not matter: what an entry named once, a server
    keeps.

    :param had: vendor and product id that each is to have, '' if any will do
    :raises errors.AssignmentError: if a function is not there, or another one
        is, or the host or others use it
    """
    there = {function.address: function for function in host.functions}
    for address, ids in had.items():
        if not isinstance(address, model.MdevAddress):
            function = there.get(address)
            _check_same(address, ids, function)
            _check_alone(function, had, host)
            _check_unused(function, host)


def _check_same(address, ids, function) -> None:
    """Check that a function is there, and no other one in its place."""
    if function is None:
        raise errors.AssignmentError(
            f'device {address}', 'is not there any more',
            'put the card back where it was, or move the server')
    if ids not in ('', function.ids):
        # Addresses change when cards are added.
        raise errors.AssignmentError(
            f'device {address}', f'is {function.ids} now, the server had '
            f'{ids}', 'put the card back where it was, or move the server')


def _check_alone(function, had, host) -> None:
    """Check that a server has all of an IOMMU group."""
    group = function.iommu_group
    company = [str(other.address) for other in host.functions
               if group is not None and other.iommu_group == group
               and not other.may_stay and other.address not in had]
    if company:
        raise errors.AssignmentError(
            f'device {function.address}', f'IOMMU group {group} has '
            f'{" and ".join(company)} by now, which the server does not '
            'have', 'put back the kernel command line and the firmware '
            'settings that keep them apart, or move the server')


def _check_unused(function, host) -> None:
    """Check that neither others nor the host have something of a function."""
    vfs = sum(other.physfn == function.address for other in host.functions)
    mdevs = sum(len(mdev_type.instances)
                for mdev_type in function.mdev_types)
    if vfs or mdevs:
        # They would go with its driver, whoever has them.
        raise errors.AssignmentError(
            f'device {function.address}', f'has {vfs} virtual functions and '
            f'{mdevs} mdevs by now, which others can have',
            'remove them, or move the server')
    if function.use:
        raise errors.AssignmentError(
            f'device {function.address}', f'the host uses it: {function.use}',
            'have the host let go of it, and see that it does not take it '
            'again, or move the server')


def _order(grant: Grant):
    number = grant.group.lstrip('ACEL')
    return not grant.group, int(number or 0), grant.unit


@dataclasses.dataclass(frozen=True)
class _Held:
    """Who has what of a host, seen from one of its servers."""

    holders: collections.abc.Mapping[model.Address, str]
    holder: str
    mdevs: collections.abc.Mapping[str, int]

    def count_free(self, item: inventory.Offered) -> int:
        if item.region.mdevs:
            return item.region.total - self.mdevs.get(item.uuid, 0)
        return item.region.total - len(item.region.units) + len(
            self._free(item))

    def take(self, item: inventory.Offered,
             count: int) -> collections.abc.Sequence[model.Unit]:
        """So many units of a Region.

        :raises errors.TakenError: if there are fewer
        """
        return (self._take_mdevs(item, count) if item.region.mdevs else
                self._take_functions(item, count))

    def by_others(self, offered: collections.abc.Iterable[inventory.Offered],
                  ) -> str:
        """What others have of Regions, in words."""
        return ', '.join(
            f'{address} is held by {self.holders[address]}'
            for item in offered for unit in item.region.units
            for address in unit if self._is_anothers(address))

    def _is_anothers(self, address: model.Address) -> bool:
        return self.holders.get(address, self.holder) != self.holder

    def _free(self, item) -> list[model.Unit]:
        return [unit for unit in item.region.units
                if not any(map(self._is_anothers, unit))]

    def _take_functions(self, item, count):
        free = self._free(item)
        if len(free) < count:
            taken = self.by_others([item])
            raise errors.TakenError(
                f'resource provider {item.name}',
                f'Placement promised {count} of it, {len(free)} of '
                f'{len(item.region.units)} are free'
                + (f': {taken}' if taken else ''))
        # What nobody had comes first, then what the server had before: its
        # old definition may be wanted again (a resize reverted).
        free.sort(key=lambda unit: (any(a in self.holders for a in unit),
                                    unit))
        return free[:count]

    def _take_mdevs(self, item, count):
        total = item.region.total
        taken = self.mdevs.get(item.uuid, 0)
        if total - taken < count:
            raise errors.TakenError(
                f'resource provider {item.name}',
                f'Placement promised {count} mdevs {item.region.variant} of '
                f'it, {max(0, total - taken)} of {total} are free')
        return [(model.MdevAddress(
            naming.mdev_uuid(self.holder, item.uuid, index)),)
            for index in range(count)]


def _units(allocated, here) -> dict[str, int]:
    """Units by provider of a Device or Region of this host."""
    return {uuid: count_units(amounts, here[uuid].region.resource_class)
            for uuid, amounts in allocated.items() if uuid in here}


def _by_class(units, here) -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    for uuid, amount in units.items():
        found[here[uuid].region.resource_class] += amount
    return found


def _covers(booked, counts, *names: str) -> bool:
    """Whether the ledger names the devices of classes, or of all."""
    return all(counts.get(name, 0) <= booked[name] for name in names or counts)


def _available(item, free: int) -> arrange.AvailableUnits:
    location = item.device.location
    return arrange.AvailableUnits(
        item.uuid, item.region.resource_class, item.region.traits, free,
        model.Place(location.numa_node, location.root or None,
                      location.switch, str(item.device.address)),
        item.region.total)


def _arrange(groups, available, wanted, booked) -> arrange.Arrangement:
    found = arrange.arrange(groups, available, wanted.rules, wanted.around,
                            wanted.pack)
    if not found.objection or not _covers(booked, wanted.counts):
        return found
    # The traits of devices that were chosen before have been seen to. They
    # tell groups apart here, no more: an entry that lost a trait takes no
    # device from a server.
    plain = {name: dataclasses.replace(group, traits={})
             for name, group in groups.items()}
    return arrange.arrange(plain, available, wanted.rules, wanted.around,
                           wanted.pack)


def _labels(groups, chosen) -> dict[str, list[str]]:
    """For each provider a group name per unit that is taken of it."""
    labels: dict[str, list[str]] = collections.defaultdict(list)
    for name, uuid in chosen.items():
        labels[uuid].extend([name] * sum(groups[name].resources.values()))
    return labels


def _card(item: inventory.Offered) -> model.PciAddress | None:
    """What the alias of an mdev says that it is of."""
    address = item.device.address
    return (address if item.region.mdevs
            and isinstance(address, model.PciAddress) else None)

# SPDX-License-Identifier: Apache-2.0
"""Decide from PCI functions and entries what a Host offers and refuses.

The kind of an entry finds the units of a function. Those that pass the checks
become Regions of Devices; the others are refused, with the reason.
"""

import collections
import collections.abc
import dataclasses
import itertools

from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import kind as kinds
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core import pci_class
from nova_accel.core.device_spec import machine as machines
from nova_accel.core.device_spec import policy as policies
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.device_spec import unit_checks
from nova_accel.core.device_spec import unsafe_host
from nova_accel.core.device_spec import virtual_functions

#: Kinds opened on this machine, by name.
Enumerators = collections.abc.Mapping[str, kinds.Enumerator]

Entries = collections.abc.Sequence[spec_entry.Entry]

_Refused = dict[model.Unit, kinds.Refused]
#: Units that are withheld, with their states.
_Withheld = tuple[tuple[model.Unit, model.WithheldState], ...]
#: A Region without units, a Pool of it, and what of the Pool is withheld.
_Found = tuple[model.Region, kinds.Pool, _Withheld]


def offer(functions: collections.abc.Iterable[model.Function],
          entries: Entries,
          enumerators: Enumerators,
          foreign: collections.abc.Sequence[spec_entry.Claim] = (),
          problems: collections.abc.Iterable[str] = (),
          withheld: collections.abc.Mapping[
              model.Address, collections.abc.Sequence[model.Withheld]] = {},
          held: collections.abc.Callable[[], held_devices.Held] = dict,
          hazards: collections.abc.Sequence[unsafe_host.Hazard] = (),
          policy: policies.Policy = policies.DEFAULT,
          architecture: str = '') -> model.Host:
    """Decide which devices a machine offers.

    :param functions: every PCI function of the machine
    :param entries: ours; the first that matches is used
    :param foreign: what another program claims
    :param problems: problems found when the machine was read
    :param withheld: functions that are not offered in any form, with all
        reasons
    :param held: reads what domains hold; no part of it is offered, and it is
        not offered as another type; called if an entry names a function
    :param hazards: unsafe settings of this host
    :param policy: what the options of the host permit
    :param architecture: as the kernel names it, '' if unknown
    """
    machine, found = machines.Machine(functions), list(problems)
    checks = unit_checks.UnitChecks(machine, found, foreign, withheld, held,
                                    hazards, policy, architecture)
    return _Offer(machine, entries, enumerators, checks, found,
                  policy.strict).host()


class _Offer:
    def __init__(self, machine: machines.Machine, entries: Entries,
                 enumerators: Enumerators, checks: unit_checks.UnitChecks,
                 problems: list[str], is_strict: bool) -> None:
        self._machine = machine
        self._functions, self._named = machine.functions, machine.named
        self._enumerators, self._checks = enumerators, checks
        self._problems, self._is_strict = problems, is_strict
        self._answers: dict[tuple[spec_entry.Entry, model.Address],
                            list[kinds.Pool]] = collections.defaultdict(list)
        self._named.update({
            function.address: self._choose_entries(function, matching)
            for function in self._functions.values()
            if not function.unreadable and (matching := [
                entry for entry in entries if entry.names(
                    function, model.card_of(function, self._functions))])})
        self._cards = {self._functions[address].physfn
                       for address in self._named}
        self._count_vfs(entries)

    def _choose_entries(self, function: model.Function, matching: Entries,
                        ) -> list[spec_entry.Entry]:
        """Return the entries to use of those that name a function."""
        first = matching[0]
        counting = {_type_settings(first): first}
        for other in matching[1:]:
            # Of several types, one entry each.
            if first.several and other.kind == first.kind:
                counting.setdefault(_type_settings(other), other)
            one = counting.get(_type_settings(other), first)
            if _effect(other) != _effect(one):
                self._problems.append(
                    f'{function.address} ({function.ids}): named by '
                    f'{one.label} and by {other.label}; the first '
                    'is used')
        return list(counting.values())

    def _count_vfs(self, entries: Entries) -> None:
        """Report cards whose number of VFs differs from their entry."""
        for card in self._functions.values():
            entry = virtual_functions.choose(card, entries)
            if entry and 0 < card.num_vfs != virtual_functions.wanted(card,
                                                                      entry):
                self._problems.append(
                    f'{card.address} ({card.ids}): has '
                    f'{errors.count(card.num_vfs, "virtual function")}, and '
                    f'{entry.label} says num_vfs '
                    f'{entry.num_vfs}; nova-compute sets their number when it '
                    'starts, if they are not in use')

    def host(self) -> model.Host:
        cards: dict[model.Address, list[_Found]] = (
            collections.defaultdict(list))
        refusals: dict[model.Refusal, None] = {}
        taken: dict[spec_entry.Entry, list[model.Function]] = (
            collections.defaultdict(list))
        for address, entries in self._named.items():
            # An entry can name a PF and its VFs, as they can have the same
            # ids. Once VFs are enabled, it means the VFs.
            if address in self._cards:
                continue
            function = self._functions[address]
            for entry, pool, refused in self._pools(function, entries):
                for unit, why in refused.items():
                    refusals.update(dict.fromkeys(
                        self._refusals(unit, entry, why)))
                if pool:
                    first = self._functions[pool.units[0][0]
                                            ] if pool.units else function
                    taken[entry] += [first] * bool(pool.units)
                    cards[first.physfn or first.address].append(
                        (_region(entry, pool, first), pool,
                         _withheld(pool, refused)))
        self._problems.extend(_of_several_classes(taken))
        return model.Host(
            functions=tuple(function for function in
                            self._functions.values()
                            if not function.unreadable),
            devices=tuple(self._device(address, cards[address])
                          for address in sorted(cards)),
            refusals=tuple(sorted(refusals,
                                  key=lambda refusal: refusal.address)),
            problems=tuple(dict.fromkeys(self._problems)))

    def _pools(self, function: model.Function, entries: Entries,
               ) -> collections.abc.Iterator[tuple[
                   spec_entry.Entry, kinds.Pool | None, _Refused]]:
        """Yield for each entry of a function its Pools and refused units."""
        alone = (function.address,)
        for entry in entries:
            try:
                self._checks.check_named(function, entry)
                for pool in self._enumerators[entry.kind].pools(
                        function, entry, self._machine):
                    if self._is_new(pool, entry, function):
                        yield entry, *self._check_pool(pool, entry)
            except kinds.Refused as refused:
                yield entry, None, {alone: refused}
            except Exception as error:
                # A fault in one device or kind must not hide other devices.
                yield entry, None, {alone: kinds.Refused(
                    f'its kind {entry.kind} failed: '
                    + errors.quote(f'{type(error).__name__}: {error}'),
                    'report it to the author of that kind')}

    def _is_new(self, pool: kinds.Pool, entry: spec_entry.Entry,
                function: model.Function) -> bool:
        """Whether no other function of the card or unit returned a Pool yet.

        The kind is asked about each function of a unit.
        """
        at = (pool.units[0][0] if pool.units
              else function.physfn or function.address)
        known = self._answers[entry, at]
        if pool in known:
            return False
        known.append(pool)
        return True

    def _refusals(self, unit: model.Unit, entry: spec_entry.Entry,
                  why: kinds.Refused,
                  ) -> collections.abc.Iterator[model.Refusal]:
        for address in unit:
            if entry in self._named.get(address, ()):
                function = self._functions[address]
                yield model.Refusal(address, function.ids,
                                    why.reason_for(function), why.remedy,
                                    why.states)

    def _check_pool(self, pool: kinds.Pool, entry: spec_entry.Entry,
                    ) -> tuple[kinds.Pool | None, _Refused]:
        """Return a Pool with its allowed units, and the refused units.

        Units that are withheld are among both.
        """
        refused: _Refused = {}
        for unit in dict.fromkeys(pool.units):
            try:
                self._checks.check_unit(unit, pool, entry)
            except kinds.Refused as why:
                refused[unit] = why
        units = tuple(unit for unit in pool.units
                      if isinstance(refused.get(unit),
                                    None | unit_checks.WithheldUnit))
        if refused and not units:
            return None, refused
        return dataclasses.replace(pool, units=units), refused

    def _device(self, address: model.Address,
                pools: list[_Found]) -> model.Device:
        card = self._functions[address]
        regions: dict[model.Region, dict[kinds.Pool, _Withheld]] = {}
        for region, pool, withheld in pools:
            # Several entries can have equal Pools.
            regions.setdefault(region, {})[pool] = withheld
        named: set[str] = set()
        return model.Device(address, card.ids, card.location, tuple(
            self._with_promise(_with_unique_name(_filled(
                region, alike, self._functions), named))
            for region, alike in sorted(regions.items(), key=_region_order)))

    def _with_promise(self, region: model.Region) -> model.Region:
        """Return a Region with the trait of strict isolation, if it applies.

        The name of the Region does not depend on it.
        """
        refused = {unit for unit, state in region.withheld
                   if state is model.WithheldState.NOT_STRICT}
        return region if not self._is_strict or refused.issuperset(
            region.units) else dataclasses.replace(
                region, traits=region.traits | {naming.STRICT_TRAIT})


def _of_several_classes(taken: collections.abc.Mapping[
        spec_entry.Entry, list[model.Function]],
        ) -> collections.abc.Iterator[str]:
    """Yield what an entry that names only a vendor took beside its devices.

    :param taken: a function of each Pool, by entry
    """
    for entry, functions in taken.items():
        if not entry.is_specific and len(
                {function.class_code >> 16 for function in functions}) > 1:
            names = collections.Counter(pci_class.name(function.class_code)
                                        for function in functions)
            yield (f'{entry.label}: names only a vendor, and takes devices of '
                   'several classes: ' + ', '.join(
                       f'{number} {name}' for name, number in names.items()))


def _region(entry: spec_entry.Entry, pool: kinds.Pool,
            function: model.Function) -> model.Region:
    """Return the Region of a Pool, without units."""
    resource_class = (entry.resource_class or pool.resource_class
                      or naming.default_resource_class(
                          function.vendor_id, function.product_id))
    managed = unit_checks.is_managed(entry, pool)
    traits = entry.traits.union(
        pool.traits, [naming.ONE_TIME_USE_TRAIT] * entry.one_time_use)
    return model.Region(
        naming.region_name(resource_class, traits, managed, pool.variant),
        resource_class, traits, (), managed, entry.kind, pool.variant,
        pool.mdevs, entry.live_migratable, entry.settings,
        reset=entry.reset if pool.resets and not pool.mdevs else '',
        needs_driver=pool.needs_driver, one_time_use=entry.one_time_use,
        cleaner=entry.clean,
        firmware_probe=(entry.firmware_probe if entry.compare_firmware
                        else None))


def _withheld(pool: kinds.Pool, refused: _Refused) -> _Withheld:
    """Return the units of a Pool that are withheld, with their states."""
    return tuple((unit, state)
                 for unit in dict.fromkeys(pool.units) if unit in refused
                 for state in refused[unit].states)


def _filled(region: model.Region,
            pools: collections.abc.Mapping[kinds.Pool, _Withheld],
            functions: model.Functions) -> model.Region:
    """Return a Region with the units of its Pools.

    :param pools: the withheld units by Pool
    """
    limits = [pool.limit for pool in pools if pool.limit is not None]
    return dataclasses.replace(
        region, units=tuple(unit for pool in pools for unit in pool.units),
        instances=frozenset(itertools.chain(*(
            pool.instances for pool in pools))),
        limit=min(limits, default=None),
        withheld=tuple(itertools.chain(*pools.values())),
        ids=tuple((address, functions[address].ids) for pool in pools
                  if not pool.mdevs and not pool.programmed
                  for unit in pool.units for address in unit))


def _with_unique_name(region: model.Region,
                      taken: set[str]) -> model.Region:
    """Return a Region with a name that no other of its card has."""
    if region.name in taken:
        region = dataclasses.replace(
            region, name=naming.unique_region_name(region))
    taken.add(region.name)
    return region


def _region_order(item: tuple[model.Region, collections.abc.Iterable[
        kinds.Pool]]) -> tuple[list[tuple[model.Unit, ...]], str, bool]:
    """Sort Regions by their units, those with a variant by name."""
    region, pools = item
    return ([] if region.variant else [pool.units for pool in pools],
            region.name, not region.live_migratable)


def _type_settings(entry: spec_entry.Entry,
                   ) -> tuple[tuple[str, collections.abc.Hashable], ...]:
    """Return the settings of an entry that select one of several types."""
    return tuple(setting for setting in entry.settings
                 if setting[0] != kinds.LIMIT)


def _effect(entry: spec_entry.Entry) -> tuple[object, ...]:
    """Return what two entries must agree in to be equivalent."""
    return (entry.resource_class, entry.traits, entry.managed, entry.kind,
            entry.settings, entry.live_migratable, entry.num_vfs, entry.reset,
            entry.one_time_use, entry.clean, entry.keeps_data,
            entry.compare_firmware, entry.firmware_probe)

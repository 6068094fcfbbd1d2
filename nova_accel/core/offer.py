# SPDX-License-Identifier: Apache-2.0
"""From PCI functions and entries to what a Host offers, and what it refuses.

An IOMMU group is the smallest thing that can safely be given away, so a
group's functions make one unit: alone a Device, or, where they are virtual
functions, one of a pool on their card. An mdev is a unit by itself, of a pool
on the card that its parent belongs to; the parent stays with the host.
"""

import collections
import collections.abc
import dataclasses

import os_resource_classes as orc

from nova_accel.core import entry as entries_
from nova_accel.core import identity
from nova_accel.core import model

#: The widest PCI domain that libvirt's XML and Nova's PCI tables hold.
MAX_DOMAIN = 0xffff

_NO_IOMMU = ('this host has no IOMMU groups',
             'switch the IOMMU on in firmware and with intel_iommu=on, or '
             'amd_iommu=on, on the kernel command line')


@dataclasses.dataclass(frozen=True)
class _Refused(Exception):
    """Why a unit is refused.

    :param because_of: the function that is the cause, or None for all
    """

    reason: str
    remedy: str = ''
    because_of: model.PciAddress | None = None

    def reason_for(self, function: model.Function) -> str:
        if self.because_of in (None, function.address):
            return self.reason
        return f'{self.because_of} in its IOMMU group: {self.reason}'


def offer(functions: collections.abc.Iterable[model.Function],
          entries: collections.abc.Sequence[entries_.Entry],
          foreign: collections.abc.Sequence[entries_.Entry] = (),
          problems: collections.abc.Iterable[str] = ()) -> model.Host:
    """Decide what is given away.

    :param functions: every PCI function of the machine
    :param entries: ours, the first that matches wins
    :param foreign: entries by which another program claims devices
    :param problems: what the reader of the machine had to report
    """
    return _Offer(functions, entries, foreign, problems).host()


class _Offer:
    def __init__(self, functions, entries, foreign, problems):
        self._functions = {f.address: f for f in
                           sorted(functions, key=lambda f: f.address)}
        self._foreign = foreign
        self._problems = list(problems)
        # For mdevs one entry for each type; of them, the types matter only.
        self._parents: dict[model.PciAddress, list[entries_.Entry]] = {}
        self._entry = self._name(entries)
        self._cards = {self._functions[address].physfn
                       for address in (*self._entry, *self._parents)}
        self._vfs = collections.Counter(
            function.physfn for function in self._functions.values())
        self._groups = collections.defaultdict(list)
        for function in self._functions.values():
            if function.iommu_group is not None:
                self._groups[function.iommu_group].append(function)

    def _name(self, entries) -> dict[model.PciAddress, entries_.Entry]:
        named = {}
        for function in self._functions.values():
            if function.unreadable:
                continue
            matching = [e for e in entries if e.matches(function)]
            if not matching:
                continue
            first = matching[0]
            if first.mdev_type:
                self._parents[function.address] = list({
                    entry.mdev_type: entry for entry in reversed(matching)
                    if entry.mdev_type}.values())
                continue
            named[function.address] = first
            for other in matching[1:]:
                if _kind(other) != _kind(first):
                    self._problems.append(
                        f'{function.address} ({function.ids}): named by '
                        f'{first.label} and by {other.label}; the first '
                        'is used')
        return named

    def host(self) -> model.Host:
        cards: dict[model.PciAddress, list] = collections.defaultdict(list)
        refusals: list[model.Refusal] = []
        for function, entry in self._typed():
            try:
                slots = self._slots(function, entry)
            except _Refused as refused:
                refusals.append(model.Refusal(
                    function.address, function.ids, refused.reason,
                    refused.remedy))
            else:
                cards[function.physfn or function.address].append(
                    (entry, slots))
        for unit in self._units():
            try:
                self._check(unit)
            except _Refused as refused:
                refusals.extend(
                    model.Refusal(f.address, f.ids, refused.reason_for(f),
                                  refused.remedy)
                    for f in unit if f.address in self._entry)
            else:
                cards[unit[0].physfn or unit[0].address].append((
                    self._entry[unit[0].address],
                    [tuple(f.address for f in unit)]))
        refusals = sorted(dict.fromkeys(refusals),
                          key=lambda refusal: refusal.address)
        return model.Host(
            functions=tuple(function for function in
                            self._functions.values()
                            if not function.unreadable),
            devices=tuple(self._device(address, cards[address])
                          for address in sorted(cards)),
            refusals=tuple(refusals),
            problems=tuple(dict.fromkeys(self._problems)))

    def _typed(self):
        """The parents that entries name, with each of their types."""
        for address, entries in self._parents.items():
            # As with whole functions: the VFs are meant once there are any.
            if address not in self._cards:
                for entry in entries:
                    yield self._functions[address], entry

    def _slots(self, function, entry) -> list[model.Unit]:
        """The parent, once for each mdev that it has or could have."""
        if function.unreadable:
            raise _Refused('it cannot be read')
        mdev_type = next((mdev_type for mdev_type in function.mdev_types
                          if mdev_type.name == entry.mdev_type), None)
        if mdev_type is None:
            has = ', '.join(mdev_type.name
                            for mdev_type in function.mdev_types)
            raise _Refused(
                f'it has no mdev type {entry.mdev_type}'
                + (f', but {has}' if has else ''),
                '' if has else 'load the driver that makes mdevs of it')
        self._check_claims(function, entry)
        ours = sum(map(identity.is_mdev_uuid, mdev_type.instances))
        return [(function.address,)] * (mdev_type.available + ours)

    def _units(self):
        """The functions that entries name, in the bundles they travel in."""
        seen = set()
        for address in self._entry:
            function = self._functions[address]
            # Where one entry names a PF and its VFs (they can have the same
            # ids), the VFs are what is meant once they are enabled.
            if address in seen or address in self._cards:
                continue
            # A bridge drags nothing along: it is refused by itself.
            group = [] if function.is_bridge else self._groups.get(
                function.iommu_group, [])
            unit = [f for f in group if not f.is_forwarding_bridge
                    ] or [function]
            seen.update(f.address for f in unit)
            yield tuple(unit)

    def _check(self, unit) -> None:
        if not self._groups:
            raise _Refused(*_NO_IOMMU)
        named = next(f for f in unit if f.address in self._entry)
        for function in unit:
            try:
                self._check_function(function)
            except _Refused as refused:
                raise dataclasses.replace(
                    refused, because_of=function.address) from None
        if named.iommu_group is None:
            raise _Refused('it is in no IOMMU group')
        for function in unit:
            self._check_company(named, function)
        if len({f.physfn for f in unit if f.physfn}) > 1 or (
                any(f.physfn for f in unit)
                and not all(f.physfn for f in unit)):
            raise _Refused(f'IOMMU group {named.iommu_group} mixes virtual '
                           'functions of a card with other functions')

    def _check_function(self, function) -> None:
        if function.unreadable:
            raise _Refused('it cannot be read')
        if function.is_bridge:
            raise _Refused('it is a bridge', 'take it out of device_spec')
        if function.address.domain > MAX_DOMAIN:
            raise _Refused('its PCI domain is above ffff, which libvirt '
                           'cannot name')
        if function.use:
            raise _Refused(f'the host uses it: {function.use}')
        # Its own count and its VFs are not read at the same moment.
        vfs = max(function.num_vfs, self._vfs[function.address])
        if vfs:
            raise _Refused(
                f'it has {vfs} virtual functions enabled',
                'name the virtual functions in device_spec, or write 0 to '
                'its sriov_numvfs')
        if function.physfn and function.physfn not in self._functions:
            raise _Refused(f'its physical function {function.physfn} is not '
                           'there')
        mdevs = sum(len(mdev_type.instances)
                    for mdev_type in function.mdev_types)
        if mdevs:
            raise _Refused(f'it has {mdevs} mediated devices',
                           'remove them, or name their type in device_spec')
        self._check_claims(function, self._entry.get(function.address))

    def _check_claims(self, function, ours) -> None:
        """Refuse what somebody else may take, or take from under it."""
        for claim in self._foreign:
            if claim.matches(function):
                raise _Refused(
                    f'{claim.label} claims it as well'
                    + (f' as {ours.label}' if ours else ''),
                    'leave it to one of the two')
            if function.physfn and claim.matches(
                    self._functions[function.physfn]):
                raise _Refused(
                    f'{claim.label} claims its physical function '
                    f'{function.physfn}', 'leave the card to one of the two')

    def _check_company(self, named, function) -> None:
        ours = self._entry[named.address]
        if self._entry.get(function.address) is not ours:
            raise _Refused(
                f'IOMMU group {named.iommu_group} has {function.address} '
                f'({function.ids}), which {ours.label} does not name',
                'name all functions of the group in one entry')

    def _device(self, address, pools) -> model.Device:
        card = self._functions[address]
        regions: dict[tuple, list[model.Unit]] = {}
        for entry, units in pools:
            kind = (entry.resource_class or self._default_class(entry, units),
                    *_kind(entry)[1:])
            regions.setdefault(kind, []).extend(units)
        return model.Device(address, card.ids, card.location, tuple(
            model.Region(identity.region_name(*kind[:4]), kind[0], kind[1],
                         tuple(units), *kind[2:])
            for kind, units in sorted(regions.items(), key=_place)))

    def _default_class(self, entry, units) -> str:
        return orc.VGPU if entry.mdev_type else (
            identity.default_resource_class(self._functions[units[0][0]]))


def _place(region):
    # By their functions; regions of types, which share theirs, by name.
    (_class, _traits, _managed, mdev_type, _live), units = region
    return [] if mdev_type else units, mdev_type


def _kind(entry):
    return (entry.resource_class, entry.traits, entry.managed,
            entry.mdev_type, entry.live_migratable)

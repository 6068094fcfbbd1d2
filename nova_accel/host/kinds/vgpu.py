# SPDX-License-Identifier: Apache-2.0
"""vGPU types that are set on virtual functions, and cleared after use.

NVIDIA's driver shows a directory ``nvidia`` on each VF if it uses its
vendor-specific VFIO framework and not mdevs. ``creatable_vgpu_types`` lists
the types that can be set on the VF now; ``current_vgpu_type`` is the number of
the type that is set, or 0. VFs share their card, so setting a type on one VF
changes the lists of all. The driver decides which types can be set together
(all the same, several sizes, those of the GPU instances in MIG mode); we
follow its lists. All VFs without a type list the same: what fits once more.
How often it fits follows from :data:`kind.LIMIT` and the types of the others.

Sources: NVIDIA, Virtual GPU Software User Guide, on the vendor-specific VFIO
framework; nvidia-vgpu-vfio in the driver's package, for the format of the
lists, and for EPERM if a type is set over another or cleared twice;
open-gpu-kernel-modules 595.45, kernel_vgpu_mgr.c, for what is listed
(``kvgpumgrGetAvailableInstances``).
"""

import collections
import collections.abc
import contextlib
import dataclasses
import fractions
import math
import re
import typing

import os_resource_classes as orc

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core.placement import inventory
from nova_accel.host import operate
from nova_accel.host import pci
from nova_accel.host import tree as trees

TYPE = 'vgpu_type'
#: The GPU instances that can have vGPUs of the type, as "nvidia-smi mig -lgi"
#: names them: "1g.24gb".
INSTANCE = 'gpu_instance'

CURRENT = 'nvidia/current_vgpu_type'
CREATABLE = 'nvidia/creatable_vgpu_types'

# "558   : NVIDIA A40-4Q", below "ID    : vGPU Name".
_NAME = r'[A-Za-z][ -9;-~]{0,79}'
_LINE = re.compile(fr'([0-9]{{1,9}}) *: *({_NAME})')
_HEADER = re.compile(r'ID *: *vGPU Name')
# "NVIDIA H100-1-10C": slices of the GPU instance, memory in GB.
_MIG_BACKED = re.compile(r'-[0-9]+-[0-9]+[A-Z]+')

_VFS = ('enable the virtual functions of the card: sriov-manage, of NVIDIA\'s '
        'vGPU manager, does it')


@dataclasses.dataclass(frozen=True)
class Type:
    """A vGPU type that an entry names.

    :param number: None if the entry has only the name
    :param name: as the driver lists it, or '' if the entry has only the number
    """

    number: int | None
    name: str = ''

    def __str__(self) -> str:
        return self.name or str(self.number)


#: The vGPUs of a card by the entry of their type.
_Counts = collections.Counter[kind.Entry | None]


@typing.final
class VirtualGpus(kind.Enumerator, kind.Suggester, kind.Preparer,
                  kind.Inspector):
    """Finds vGPUs on VFs, and sets and clears their types."""

    def __init__(self, tree: trees.Tree):
        self._tree = tree
        # Numbers of types by card and name, remembered from earlier lists: a
        # full card lists none.
        self._numbers: dict[tuple[model.Address, str], int] = {}
        # VFs whose type could not be cleared, and why.
        self._stuck: dict[model.Address, str] = {}
        # The last Machine, and the vGPUs of its cards.
        self._counted: tuple[kind.Machine | None, dict[
            model.Address, _Counts]] = None, {}

    def pools(self, function: model.Function, entry: kind.Entry,
              machine: kind.Machine) -> collections.abc.Iterator[kind.Pool]:
        """Offer a VF that has the type, or has none and can have it set."""
        wanted = _type_of_entry(entry)
        card = self._card(function)
        current = self._current(function.address)
        listed = {} if current else self._creatable(card, function.address)
        named = self._named(function, card, machine)
        if not any(first is entry for first in named.values()):
            # An earlier entry names the same type.
            return
        is_available = (named.get(current) is entry if current
                        else _number_of(wanted, listed) is not None)
        vgpus = self._vgpus(card, machine)
        # A Pool without units, too, makes a Region: the Regions of a card,
        # and so the names of its providers, do not depend on the types in use.
        yield kind.Pool(((function.address,),) if is_available else (),
                        str(wanted).replace(' ', '_'),
                        resource_class=orc.VGPU,
                        limit=None if current else _limit(entry, vgpus),
                        managed=False,
                        # The driver resets it when the type is cleared.
                        resets=False)
        if current and current not in named:
            raise kind.Refused(
                f'its vGPU type is {current}, which no entry names',
                f'write 0 to its {CURRENT}; or name the type in an entry, by '
                'its number, as a full card lists no names')
        # While other VFs have types, the type may become available later.
        if not (current or is_available or vgpus):
            raise kind.Refused(f'it cannot have the vGPU type {wanted}: '
                               + _text(listed), _remedy(listed))

    def suggest(self, function: model.Function,
                ) -> collections.abc.Iterator[dict[str, str]]:
        if function.physfn:
            with contextlib.suppress(kind.Refused):
                for number, name in self._creatable(
                        function.physfn, function.address).items():
                    yield {TYPE: f'{number} : {name}'}

    def prepare(self, device: hostdev.Hostdev, item: inventory.Offered,
                config: kind.DeviceConfig) -> None:
        """Set the vGPU type of a VF."""
        address, card = device.address, item.device
        wanted: Type = item.region.setting(TYPE)
        try:
            current = self._current(address)
            numbers = {type_: self._number(type_, card.address, [address])
                       for region in card.regions
                       if (type_ := _type_of(region))}
            if current and current == numbers[wanted]:
                return
            if current and current not in numbers.values():
                if numbers[wanted] is None:
                    # The entry names the type, but a full card does not list
                    # its number. The server was given this VF earlier.
                    return
                raise kind.Refused(
                    f'its type is {current}, which no entry names',
                    f'write 0 to its {CURRENT}')
            self._replace(address, current, wanted, card.address)
        except kind.Refused as refused:
            raise errors.AssignmentError(
                f'device {address} ({card.ids})',
                f'vGPU type {wanted} cannot be set: {refused.reason}',
                refused.remedy) from None

    def prepared(self, host: model.Host) -> set[model.Address]:
        """Return the VFs with a type that an entry names."""
        return {vf for device in host.devices for region in device.regions
                if _type_of(region)
                for unit in region.units for vf in unit
                if self._current_or_0(vf)
                } | set(filter(host.has, tuple(self._stuck)))

    def is_ready(self, address: model.Address) -> bool | None:
        """Whether any vGPU type is set on a VF."""
        if not isinstance(address, model.PciAddress) or self._tree.text(
                f'{pci.path(self._tree, address)}/{CURRENT}') is None:
            return None
        return bool(self._current_or_0(address))

    def release(self, address: model.Address) -> None:
        """Clear the type of a VF; withhold the VF if that fails."""
        try:
            if self._current(address):
                self._write(address, 0)
        except kind.Refused as refused:
            self._stuck[address] = refused.reason
            raise errors.AccelError(
                f'device {address}', 'its vGPU type cannot be cleared: '
                f'{refused.reason}', refused.remedy) from None
        self._stuck.pop(address, None)

    def _card(self, function: model.Function) -> model.Address:
        """Return the card of a VF.

        :raises kind.Refused: if no type can be set on the function
        """
        if function.mdev_types:
            raise kind.Refused('its driver creates mdevs on it',
                               'name their type with mdev_type')
        if function.physfn is None:
            raise kind.Refused('it is not a virtual function', _VFS)
        if not (function.driver or '').startswith('nvidia'):
            raise kind.Refused(
                f'its driver is {function.driver or "none"}, not nvidia',
                'disable the virtual functions of the card and enable them '
                'again, so that NVIDIA\'s vGPU manager binds them')
        stuck = self._stuck.get(function.address)
        if stuck:
            raise kind.Refused(f'its vGPU type cannot be cleared: {stuck}',
                               'see which program has it open')
        return function.physfn

    def _named(self, function: model.Function, card: model.Address,
               machine: kind.Machine) -> dict[int | Type, kind.Entry]:
        """Return the entries for a VF by the number of their type.

        By Type if the number is unknown; the first entry of each type.
        """
        found: dict[int | Type, kind.Entry] = {}
        for entry in machine.named.get(function.address, ()):
            wanted: Type | None = entry.setting(TYPE)
            if wanted:
                found.setdefault(self._number(
                    wanted, card, (vf.address for vf in _vfs(card, machine)))
                    or wanted, entry)
        return found

    def _vgpus(self, card: model.Address, machine: kind.Machine,
               ) -> _Counts:
        """Count the vGPUs of a card by the entry of their type.

        None for types of no entry. They are read once for all VFs.
        """
        counted, cards = self._counted
        if counted is not machine:
            self._counted = machine, (cards := {})
        if card not in cards:
            cards[card] = collections.Counter(
                self._named(vf, card, machine).get(number)
                for vf in _vfs(card, machine)
                if (number := self._current_or_0(vf.address)))
        return cards[card]

    def _number(self, wanted: Type, card: model.Address,
                vfs: collections.abc.Iterable[model.Address],
                ) -> int | None:
        """Return the number of a type, or None if it was never listed.

        :param vfs: VFs of the card whose lists may have it
        """
        for vf in vfs:
            if wanted.number or (card, wanted.name) in self._numbers:
                break
            with contextlib.suppress(kind.Refused):
                self._creatable(card, vf)
        return wanted.number or self._numbers.get((card, wanted.name))

    def _current_or_0(self, vf: model.Address) -> int:
        """As :meth:`_current`; 0 if it cannot be read."""
        try:
            return self._current(vf)
        except kind.Refused:
            return 0

    def _current(self, vf: model.Address) -> int:
        """Return the number of a VF's type, 0 if none is set.

        :raises kind.Refused: if it cannot be read
        """
        text = self._read(vf, CURRENT).strip()
        if not re.fullmatch(r'[0-9]{1,9}', text):
            raise kind.Refused(f'its {CURRENT} is {errors.quote(text)}, not '
                               'a number')
        return int(text)

    def _creatable(self, card: model.Address, vf: model.Address,
                   ) -> dict[int, str]:
        """Return the types that can be set on a VF now: names by number.

        :raises kind.Refused: if they cannot be read
        """
        listed = {}
        for line in self._read(vf, CREATABLE).splitlines():
            match = _LINE.fullmatch(line.strip())
            if match:
                listed[int(match[1])] = match[2]
            elif line.strip() and not _HEADER.fullmatch(line.strip()):
                raise kind.Refused(f'its {CREATABLE} has a line '
                                   f'{errors.quote(line)}')
        self._numbers.update({(card, name): number
                              for number, name in listed.items()})
        return listed

    def _read(self, vf: model.Address, name: str) -> str:
        text = self._tree.text(f'{pci.path(self._tree, vf)}/{name}')
        if text is None:
            raise kind.Refused(f'its {name} cannot be read', 'check that '
                               'NVIDIA\'s vGPU manager runs; the kernel log '
                               'may say why not')
        return text

    def _replace(self, vf: model.Address, current: int, wanted: Type,
                 card: model.Address) -> None:
        """Set a type on a VF; clear another type first."""
        if current:
            self._write(vf, 0)
        listed = self._creatable(card, vf)
        number = _number_of(wanted, listed)
        if number is None:
            raise kind.Refused(_text(listed), _remedy(listed))
        self._write(vf, number)

    def _write(self, vf: model.Address, number: int) -> None:
        try:
            operate.on(self._tree).set_vgpu_type(str(vf), number)
        except OSError as error:
            raise kind.Refused(f'the driver says {error.strerror}') from None
        current = self._current(vf)
        if current != number:
            raise kind.Refused(f'it is still {current}')


def _vfs(card: model.Address, machine: kind.Machine,
         ) -> collections.abc.Iterator[model.Function]:
    return (function for function in machine.functions.values()
            if function.physfn == card)


def _limit(entry: kind.Entry, vgpus: _Counts) -> int | None:
    """Return how many vGPUs of an entry fit on a card that lists its type.

    vGPUs of other entries take their share of what the types have in common:
    each takes a quarter if four of its type fit. In a GPU instance that they
    do not fill, they can take more: it has vGPUs of one size only.

    :param vgpus: the vGPUs of the card
    :returns: None if the entry does not say how many fit on an empty card
    """
    limit: int | None = entry.setting(kind.LIMIT)
    common = _in_common(entry)
    if limit is None:
        return None
    taken = sum(fractions.Fraction(count, other.setting(kind.LIMIT))
                for other, count in vgpus.items()
                if other not in (None, entry) and common is not None
                and _in_common(other) == common and other.setting(kind.LIMIT))
    # One more fits, as the type is listed.
    return min(limit, max(math.floor(limit * (1 - taken)), vgpus[entry] + 1))


def _in_common(entry: kind.Entry) -> str | None:
    """Return what vGPUs of an entry share with those of other entries.

    :returns: the size of their GPU instances; '' for the whole card; None if
        unknown
    """
    instance: str | None = entry.setting(INSTANCE)
    name = entry.setting(TYPE).name
    return instance or (
        '' if name and not _MIG_BACKED.search(name) else None)


def _type_of_entry(entry: kind.Entry) -> Type:
    """Return the type that an entry names.

    :raises kind.Refused: if the entry is not usable for vGPUs
    """
    wanted: Type | None = entry.setting(TYPE)
    if wanted is None:
        raise kind.Refused('its entry names no vGPU type',
                           f'add {TYPE} to the entry')
    if entry.managed:
        raise kind.Refused('its entry says managed yes, but a vGPU needs '
                           'NVIDIA\'s driver on the host',
                           'remove managed from the entry')
    return wanted


def _type_of(region: model.Region) -> Type | None:
    wanted: Type | None = region.setting(TYPE)
    return wanted


def _number_of(wanted: Type, listed: dict[int, str]) -> int | None:
    """Return the number of a type, None if it is not listed."""
    return next((number for number, name in listed.items()
                 if wanted.number in (None, number)
                 and wanted.name in ('', name)), None)


def _text(listed: dict[int, str]) -> str:
    return 'it lists ' + (', '.join(
        f'{number}: {name}' for number, name in listed.items()) or 'none')


def _remedy(listed: dict[int, str]) -> str:
    return '' if listed else (
        'check whether the card is full; in MIG mode, it needs GPU instances')


def _read_instance(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(
            r'[0-9]{1,2}g\.[0-9]{1,4}gb([+-][a-z.]{1,9})*', value):
        raise ValueError('is not the size of a GPU instance, such as 1g.24gb')
    return value


def _read_type(value: object) -> Type:
    """Read a number, a name, or a line with both as the driver lists it."""
    text = str(value).strip() if isinstance(value, str) or type(
        value) is int else ''
    line = _LINE.fullmatch(text)
    if line and int(line[1]):
        return Type(int(line[1]), line[2])
    if re.fullmatch(r'[0-9]{1,9}', text) and int(text):
        return Type(int(text))
    if re.fullmatch(_NAME, text):
        return Type(None, text)
    raise ValueError('is neither the number nor the name of a vGPU type')


KIND = kind.Kind(open=VirtualGpus, keys={
    TYPE: _read_type, INSTANCE: _read_instance,
    kind.LIMIT: kind.read_limit}, several=True,
    files=(CURRENT, CREATABLE))

# SPDX-License-Identifier: Apache-2.0
"""Parse ``device_spec`` entries, and match devices against them.

The keys and matching rules are those of Nova's ``[pci] device_spec``
(nova/pci/devspec.py, read in Nova 34) if they mean the same.
"""

import collections.abc
import contextlib
import dataclasses
import json
import re
import typing

from nova_accel.core import errors
from nova_accel.core import kind as kinds
from nova_accel.core import model
from nova_accel.core.device_spec import entry_keys
from nova_accel.core.device_spec import reset_methods

#: Kinds by name.
Kinds = collections.abc.Mapping[str, kinds.Kind]

#: Keys of Nova's entries for Neutron ports; such devices belong to Nova.
NETWORK_KEYS = frozenset({'devname', 'physical_network', 'trusted',
                           'remote_managed'})

#: Longest value of the option, in characters.
MAX_LENGTH = 1 << 16

_EXAMPLE = 'write {"vendor_id": "10de", "product_id": "20b0"}'

#: An entry, as JSON has it.
Item = dict[str, typing.Any]


class _NoPools:
    def pools(self, function: model.Function, entry: kinds.Entry,
              machine: kinds.Machine) -> tuple[kinds.Pool, ...]:
        return ()


# The kind of other programs' entries, and of pci if it is not installed.
_PLAIN = kinds.Kind(open=lambda _tree: _NoPools())


class Claim(typing.Protocol):
    """Devices that another program claims: by an Entry, for example."""

    @property
    def label(self) -> str:
        """Its name in messages."""

    def matches(self, function: model.Function) -> bool:
        """Whether it claims a function."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A parsed entry.

    :param label: its name in messages, ``device_spec #1``; ``#1.2`` is the
        second object of a list
    :param vendor_id: four hexadecimal digits, None for any; also product_id
    :param address: a pattern for each of domain, bus, slot and function
    :param single: the address if the pattern matches only one; the address of
        a PF then also matches its VFs, as in Nova
    :param devname: the name of a network port, '' for any
    :param parent: the name of a device that is not on a PCI bus, or ''
    :param resource_class: normalised, None for the default
    :param managed: whether libvirt binds and unbinds the driver, None for the
        default of the kind
    :param live_migratable: whether the state of the device can move to
        another host with a running guest
    :param num_vfs: how many virtual functions the cards that it names get,
        :data:`entry_keys.ALL` for as many as possible, None to leave them;
        if set, the virtual functions are offered
    :param reset: how the device is reset, or whether it is offered without;
        one of :data:`nova_accel.core.device_spec.reset_methods.CHOICES`
    :param one_time_use: whether the device is reserved after one server has
        had it, until an operator frees it
    :param clean: the name of the cleaner that cleans the device after each
        server, or ''
    :param keeps_data: whether data may stay on the device for the next server
    :param compare_firmware: whether the device is withheld when its firmware
        has changed
    :param firmware_probe: the name of the command that tells its firmware, or
        ''
    :param kind: the name of the kind's entry point
    :param several: whether other entries can name the same functions as well
    :param settings: values of the kind's keys
    :param item: the entry as it was loaded
    """

    label: str
    vendor_id: str | None = None
    product_id: str | None = None
    address: tuple[re.Pattern[str], ...] = ()
    single: model.PciAddress | None = None
    devname: str = ''
    parent: str = ''
    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    managed: bool | None = None
    live_migratable: bool = False
    num_vfs: int | typing.Literal['all'] | None = None
    reset: str = reset_methods.REQUIRED
    one_time_use: bool = False
    clean: str = ''
    keeps_data: bool = False
    compare_firmware: bool = True
    firmware_probe: str = ''
    kind: str = kinds.PCI
    several: bool = False
    settings: tuple[tuple[str, collections.abc.Hashable], ...] = ()
    item: collections.abc.Mapping[str, typing.Any] = dataclasses.field(
        default_factory=dict, compare=False, repr=False)

    @property
    def is_selective(self) -> bool:
        """Whether ids, address, port or parent name leave a function out."""
        return bool(self.vendor_id) or self.is_specific

    @property
    def is_specific(self) -> bool:
        """Whether it names more than a vendor."""
        return bool(self.names_product or not entry_keys.is_any(self.address))

    @property
    def names_product(self) -> bool:
        """Whether it names products, or devices by their place or name."""
        return bool(self.product_id or self.devname or self.parent
                    or not entry_keys.is_any(self.address, 'bus', 'slot'))

    def setting(self, key: str) -> typing.Any:
        return dict(self.settings).get(key)

    def names(self, function: model.Function,
              card: model.Function | None = None) -> bool:
        """Whether the entry names a function, itself or by num_vfs.

        :param card: the physical function of a virtual one
        """
        return self.matches(function) or bool(
            self.num_vfs and card and self.matches(card))

    def matches(self, function: model.Function) -> bool:
        """Whether ids, address, port or parent name match a function."""
        if self.parent or isinstance(function.address, model.ParentName):
            return self.parent == str(function.address)
        if self.vendor_id not in (None, function.vendor_id):
            return False
        if self.product_id not in (None, function.product_id):
            return False
        if self.devname and self.devname not in function.netdevs:
            return False
        if self.single and function.physfn == self.single:
            return True
        return self._matches_address(function.address)

    def _matches_address(self, address: model.Address) -> bool:
        texts = (f'{getattr(address, part):0{digits}x}'
                 for part, _limit, digits in entry_keys.ADDRESS_PARTS)
        return all(pattern.match(text)
                   for pattern, text in zip(self.address, texts, strict=True))


def parse_all(texts: collections.abc.Iterable[str], known: Kinds,
              option: str = '[nova_accel] device_spec',
              ) -> tuple[list[Entry], list[errors.EntryError]]:
    """Return the usable entries of an option, and errors for the others.

    :param texts: the values of the option, each a JSON object or a list
    :param known: the installed kinds
    """
    entries: list[Entry] = []
    problems: list[errors.EntryError] = []
    for number, text in enumerate(texts, 1):
        label = f'{option} #{number}'
        try:
            items = load(text, label)
        except errors.EntryError as error:
            problems.append(error)
            continue
        for index, item in enumerate(items, 1):
            here = f'{label}.{index}' if len(items) > 1 else label
            try:
                entries.append(parse(item, here, known))
            except errors.EntryError as error:
                problems.append(error)
    return entries, problems


def parse(item: object, label: str, known: Kinds) -> Entry:
    """Return an Entry.

    :param item: an element of the option, loaded
    :raises errors.EntryError: if it is not usable
    """
    entry = _entry(_object(item, label), label, known)
    if not entry.is_selective and not any(
            map(entry.setting, known.get(entry.kind, _PLAIN).naming)):
        raise errors.EntryError(
            label, 'names no device, and would match all devices of the host',
            'add vendor_id and product_id, or address, for example '
            '"vendor_id": "10de", "product_id": "20b0"')
    return entry


def parse_foreign(texts: collections.abc.Iterable[str],
                  option: str) -> list[Entry]:
    """Read which devices the entries of another program match.

    Unknown keys are ignored, and so are entries that the program refuses.
    """
    claims = []
    for number, text in enumerate(texts, 1):
        label = f'{option} #{number}'
        with contextlib.suppress(errors.EntryError):
            for item in filter(_is_object, load(text, label)):
                with contextlib.suppress(errors.EntryError):
                    claims.append(_claim(item, label))
    return claims


def claimed(functions: collections.abc.Iterable[model.Function],
            entries: collections.abc.Sequence[Entry],
            claims: collections.abc.Sequence[Claim],
            ) -> collections.abc.Iterator[tuple[Entry, Claim, model.Function]]:
    """Yield each function that an entry names and another program claims.

    :param entries: ours
    :param claims: those of the other program; it claims the virtual functions
        of a card with the card
    :returns: the first entry and the first claim, and the function
    """
    known = {function.address: function for function in functions}
    for function in known.values():
        card = model.card_of(function, known)
        both = [*filter(None, (function, card))]
        ours = [entry for entry in entries if entry.names(function, card)]
        theirs = [claim for claim in claims if any(map(claim.matches, both))]
        if ours and theirs:
            yield ours[0], theirs[0], function


def _claim(item: Item, label: str) -> Entry:
    """Return an Entry that matches the same devices as in Nova."""
    match: Item = {key: item[key] for key in ('vendor_id', 'product_id')
                   if key in item}
    address = item.get('address') or '*'
    if isinstance(address, dict):
        address = {part: address[part] for part, _limit, _digits
                   in entry_keys.ADDRESS_PARTS if part in address}
    return dataclasses.replace(
        _entry({**match, 'address': address}, label, {}),
        devname=str(item.get('devname') or ''))


def _object(item: object, label: str) -> Item:
    if not _is_object(item):
        raise errors.EntryError(label, 'is not a JSON object: '
                                f'{errors.quote(json.dumps(item))}', _EXAMPLE)
    return item


def load(text: str, label: str) -> list[typing.Any]:
    """Return the elements of one value of the option.

    :raises errors.EntryError: if it is not JSON, or too long
    """
    if len(text) > MAX_LENGTH:
        raise errors.EntryError(label, f'has more than {MAX_LENGTH} '
                                'characters', 'write several entries')
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.EntryError(label, f'is not JSON ({error}): '
                                f'{errors.quote(text)}', _EXAMPLE) from None
    return loaded if isinstance(loaded, list) else [loaded]


def _is_object(item: object) -> typing.TypeGuard[Item]:
    return isinstance(item, dict)


def _entry(item: Item, label: str, known: Kinds) -> Entry:
    kind = _kind(item, label, known)
    kind_spec = known.get(kind, _PLAIN)
    _check_keys(item, label, {'kind', *entry_keys.READERS, *(
        kind_spec.keys if 'kind' in item
        else (key for other in known.values() for key in other.keys))})
    fields: Item = {'label': label, 'kind': kind,
                    'several': kind_spec.several, 'item': item}
    # Run every reader, because readers return the default of an absent key.
    for key, read in entry_keys.READERS.items():
        fields.update(_read(label, key, item.get(key), read))
    fields['settings'] = tuple(
        (key, _read(label, key, item[key], read))
        for key, read in sorted(kind_spec.keys.items())
        if item.get(key) is not None)
    if fields['parent'] and {'vendor_id', 'product_id', 'address'} & set(item):
        raise errors.EntryError(
            label, 'names a parent, which is not on a PCI bus, and also has '
            'keys of PCI devices', 'write either parent, or vendor_id, '
            'product_id and address')
    if fields['live_migratable'] is None:
        fields['live_migratable'] = kind_spec.live_migratable
    return Entry(**fields)


def _kind(item: Item, label: str, known: Kinds) -> str:
    """Return the kind that an entry names, or that its keys belong to."""
    meant = _kinds_by_keys(item, known)
    named = item.get('kind')
    if named is None and len(meant) > 1:
        raise errors.EntryError(
            label, f'has keys of several kinds: {", ".join(sorted(meant))}',
            'write an entry for each, or name the kind')
    if named is None:
        return meant.pop() if meant else kinds.PCI
    if not isinstance(named, str) or named not in known:
        raise errors.EntryError(
            label, f'kind {errors.quote(named)} is not installed',
            f'known kinds: {", ".join(sorted(known))}')
    return named


def _kinds_by_keys(item: Item, known: Kinds) -> set[str]:
    """Return the kinds that the keys of an entry belong to."""
    keys = {key for key in item
            if any(key in kind.keys for kind in known.values())}
    meant = {name for name, kind in known.items() if keys & set(kind.keys)}
    # Several kinds can share a key. Prefer those that have all keys.
    return {name for name in meant if keys <= set(known[name].keys)} or meant


def _check_keys(item: Item, label: str, known: set[str]) -> None:
    unknown = sorted(set(item) - known)
    if unknown:
        raise errors.EntryError(
            label, f'does not know the key {errors.quote(unknown[0])}',
            'devices for Neutron ports belong in [pci] device_spec'
            if unknown[0] in NETWORK_KEYS
            else f'known keys: {", ".join(sorted(known))}')


def _read(label: str, key: str, value: object,
          read: collections.abc.Callable[[typing.Any], typing.Any],
          ) -> typing.Any:
    try:
        return read(value)
    except (ValueError, re.error, OverflowError, RecursionError) as error:
        raise errors.EntryError(
            label, f'{key} {errors.quote(value)} {error}') from None

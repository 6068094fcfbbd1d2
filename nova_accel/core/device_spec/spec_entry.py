# SPDX-License-Identifier: Apache-2.0
"""One ``device_spec`` entry: which devices are ours, and what they are called.

The keys and matching rules are those of Nova's ``[pci] device_spec``
(nova/pci/devspec.py, read in Nova 34) wherever the meaning is the same.
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

# Keys of Nova's entries that steer Neutron ports; such devices are Nova's.
_NETWORK_KEYS = frozenset({'devname', 'physical_network', 'trusted',
                           'remote_managed'})

_EXAMPLE = 'write {"vendor_id": "10de", "product_id": "20b0"}'

# Of an entry that names no kind, and of other programs' entries.
_PLAIN = kinds.Kind(open=lambda _tree: None)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A parsed entry.

    :param label: how messages call it, ``device_spec #1``; ``#1.2`` is the
        second object of a list
    :param vendor_id: four hexadecimal digits, or None for any; as product_id
    :param address: a pattern for each of domain, bus, slot and function
    :param single: the address itself, where the pattern leaves nothing open:
        then a PF's address also names its VFs, as in Nova
    :param devname: one of the names of its network ports, or '' for any
    :param parent: the name of a device on no PCI bus, or ''
    :param resource_class: normalised, or None for the default
    :param managed: whether libvirt binds and unbinds the driver, or None for
        what is usual
    :param live_migratable: whether a running guest can take its device's
        state to another host
    :param num_vfs: how many virtual functions the cards that it names are to
        have, :data:`entry_keys.ALL` for as many as they can, or None to leave
        them be; what is given away are the virtual functions then
    :param reset: how it is to be reset, or whether what cannot be is given
        away; one of :data:`nova_accel.core.device_spec.reset_methods.CHOICES`
    :param one_time_use: whether nobody has it after a server had, until it is
        freed
    :param keeps_data: whether what is written to it may stay there for the
        next server
    :param kind: what it is about, by the name of its entry point
    :param several: whether others can name the same functions as well
    :param settings: what it says to its kind, by key
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
    keeps_data: bool = False
    kind: str = kinds.PCI
    several: bool = False
    settings: tuple[tuple[str, collections.abc.Hashable], ...] = ()

    def setting(self, key: str) -> typing.Any:
        return dict(self.settings).get(key)

    def names(self, function: model.Function,
              card: model.Function | None = None) -> bool:
        """Whether it is about a function.

        :param card: of a virtual function, the physical one
        """
        return self.matches(function) or bool(
            self.num_vfs and card and self.matches(card))

    def matches(self, function: model.Function) -> bool:
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

    def _matches_address(self, address: model.PciAddress) -> bool:
        texts = (f'{getattr(address, part):0{digits}x}'
                 for part, _limit, digits in entry_keys.ADDRESS_PARTS)
        return all(pattern.match(text)
                   for pattern, text in zip(self.address, texts, strict=True))


def parse_all(texts: collections.abc.Iterable[str], known: Kinds,
              option: str = '[nova_accel] device_spec',
              ) -> tuple[list[Entry], list[errors.EntryError]]:
    """Every usable entry of a repeatable option, and what is wrong elsewhere.

    :param texts: the option's values, each a JSON object or a list of them
    :param known: what an entry can be about
    """
    entries: list[Entry] = []
    problems: list[errors.EntryError] = []
    for number, text in enumerate(texts, 1):
        label = f'{option} #{number}'
        try:
            items = _items(text, label)
        except errors.EntryError as error:
            problems.append(error)
            continue
        for index, item in enumerate(items, 1):
            here = f'{label}.{index}' if len(items) > 1 else label
            try:
                entries.append(_entry(_object(item, here), here, known))
            except errors.EntryError as error:
                problems.append(error)
    return entries, problems


def parse_foreign(texts: collections.abc.Iterable[str],
                  option: str) -> list[Entry]:
    """Another program's entries, read only for what they would match.

    Keys that we do not know are that program's business, and so are entries
    that it will refuse.
    """
    claims = []
    for number, text in enumerate(texts, 1):
        label = f'{option} #{number}'
        with contextlib.suppress(errors.EntryError):
            for item in filter(_is_object, _items(text, label)):
                with contextlib.suppress(errors.EntryError):
                    claims.append(_claim(item, label))
    return claims


def _claim(item: dict[str, typing.Any], label: str) -> Entry:
    """What it would match, as Nova reads it."""
    match = {key: item[key] for key in ('vendor_id', 'product_id')
             if key in item}
    address = item.get('address') or '*'
    if isinstance(address, dict):
        address = {part: address[part] for part, _limit, _digits
                   in entry_keys.ADDRESS_PARTS if part in address}
    return dataclasses.replace(
        _entry({**match, 'address': address}, label, {}),
        devname=str(item.get('devname') or ''))


def _object(item: object, label: str) -> dict[str, typing.Any]:
    if not _is_object(item):
        raise errors.EntryError(label, 'is not a JSON object: '
                                f'{errors.quote(json.dumps(item))}', _EXAMPLE)
    return item


def _items(text: str, label: str) -> list[typing.Any]:
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.EntryError(label, f'is not JSON ({error}): '
                                f'{errors.quote(text)}', _EXAMPLE) from None
    return loaded if isinstance(loaded, list) else [loaded]


def _is_object(item: object) -> typing.TypeGuard[dict]:
    return isinstance(item, dict)


def _entry(item: dict[str, typing.Any], label: str, known: Kinds) -> Entry:
    kind = _kind(item, label, known)
    about = known.get(kind, _PLAIN)
    _check_keys(item, label, {'kind', *entry_keys.READERS, *(
        about.keys if 'kind' in item
        else (key for other in known.values() for key in other.keys))})
    fields: dict[str, typing.Any] = {'label': label, 'kind': kind,
                                     'several': about.several}
    # Every reader runs, so that a key that is absent still gets its default.
    for key, read in entry_keys.READERS.items():
        fields.update(_read(label, key, item.get(key), read))
    fields['settings'] = tuple(
        (key, _read(label, key, item[key], read))
        for key, read in sorted(about.keys.items())
        if item.get(key) is not None)
    if fields['parent'] and {'vendor_id', 'product_id', 'address'} & set(item):
        raise errors.EntryError(
            label, 'names a parent that is on no PCI bus, and says where on '
            'one', 'leave it to parent, or to the other keys')
    if fields['live_migratable'] is None:
        fields['live_migratable'] = about.live_migratable
    return Entry(**fields)


def _kind(item, label: str, known: Kinds) -> str:
    """The kind that an entry names, or that its keys belong to."""
    keys = set(item) & set().union(*(kind.keys for kind in known.values()))
    meant = {name for name, kind in known.items() if keys & set(kind.keys)}
    # A key can be several kinds'; the entry's others tell.
    meant = {name for name in meant if keys <= set(known[name].keys)} or meant
    named = item.get('kind')
    if named is None and len(meant) > 1:
        raise errors.EntryError(
            label, f'has keys of several kinds: {", ".join(sorted(meant))}',
            'write an entry for each, or name the kind')
    if named is None:
        return meant.pop() if meant else kinds.PCI
    if not isinstance(named, str) or named not in known:
        raise errors.EntryError(
            label, f'kind {errors.quote(named)} is not there',
            f'known kinds: {", ".join(sorted(known))}')
    return named


def _check_keys(item, label: str, known: set[str]) -> None:
    unknown = sorted(set(item) - known)
    if unknown:
        raise errors.EntryError(
            label, f'does not know the key {errors.quote(unknown[0])}',
            'devices for Neutron ports belong in [pci] device_spec'
            if unknown[0] in _NETWORK_KEYS
            else f'known keys: {", ".join(sorted(known))}')


def _read(label: str, key: str, value: typing.Any, read) -> typing.Any:
    try:
        return read(value)
    except (ValueError, re.error, OverflowError, RecursionError) as error:
        raise errors.EntryError(
            label, f'{key} {errors.quote(value)} {error}') from None

# SPDX-License-Identifier: Apache-2.0
"""The firmware versions that devices have shown, as Placement has them.

nova-compute remembers the first version that it sees of a function of a device
that it offers, and the first other version that it sees later. From then on
the device is withheld, until an operator accepts its firmware: both versions
are forgotten, and the next one that is seen is the first.

The compute node's provider has them as traits. It stays while a device is
missing, refused or in no entry, when the provider of the device may go::

    CUSTOM_NOVA_ACCEL_FIRMWARE_0000_81_00_0_NVME_10_0_13
    CUSTOM_NOVA_ACCEL_OTHER_FIRMWARE_0000_81_00_0_NVME_10_0_14
"""

import collections
import collections.abc
import dataclasses
import hashlib
import re

from nova_accel.core import model
from nova_accel.core import naming

_FIRST = f'{naming.MARKER_TRAIT}_FIRMWARE_'
_OTHER = f'{naming.MARKER_TRAIT}_OTHER_FIRMWARE_'
_PROBE = 'PROBE_'
_TRAIT = re.compile(
    rf'({_FIRST}|{_OTHER})({naming.TRAIT_ADDRESS})'
    rf'(?:_OF_({naming.TRAIT_ADDRESS}))?_((?:{_PROBE})?[A-Z0-9]+)_(\w+)')

#: Most characters of a version that stay readable, and of the digest of a
#: longer one. Placement allows 255 for the whole trait.
_READABLE, _DIGEST = 100, 32
_PLAIN = re.compile(r'[A-Z0-9]+(\.[A-Z0-9]+)*')


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Version:
    """A version of the firmware of a function.

    :param source: what showed it, as in :mod:`nova_accel.host.firmware`, or
        :func:`of_probe`
    :param code: the version, as :func:`encode` returns it
    :param device: the Device that the function is a part of
    :param is_other: whether another version was seen before
    """

    function: model.PciAddress
    source: str
    code: str
    device: model.PciAddress
    is_other: bool = False

    @property
    def trait(self) -> str:
        """The trait that the provider has for it."""
        parts = [self.function] if self.function == self.device else [
            self.function, self.device]
        return (_OTHER if self.is_other else _FIRST) + '_'.join((
            '_OF_'.join(map(naming.address_to_trait, parts)), self.source,
            self.code))


#: What is known of the firmware of a compute node's devices.
Known = collections.abc.Set[Version]


def of_probe(name: str) -> str:
    """Return the source for what a command prints.

    :param name: of the command, as in ``[nova_accel] firmware_probe``
    """
    return f'{_PROBE}{name.upper()}'


def encode(text: str) -> str:
    """Return a version with characters that names of traits may have.

    Two texts that differ have different codes: one that cannot be read back
    from its code has a digest at the end.
    """
    if len(text) <= _READABLE and _PLAIN.fullmatch(text):
        return text.replace('.', '_')
    words = re.sub('[^A-Z0-9]+', '_', text.upper())[:_READABLE].strip('_')
    digest = hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()
    return f'{words}__{digest[:_DIGEST].upper()}'


def decode(code: str) -> str:
    """Return a version for messages; of a long one, words and a digest."""
    words, _mark, digest = code.rpartition('__')
    return (f'{words.lower().replace("_", " ")} ({digest[:8].lower()})'.strip()
            if digest != code else code.replace('_', '.'))


def loads(traits: collections.abc.Iterable[str]) -> frozenset[Version]:
    """Return the versions among the traits of a compute node's provider."""
    return frozenset(
        Version(naming.address_of_trait(function), source, code,
                naming.address_of_trait(device or function), kind == _OTHER)
        for kind, function, device, source, code in (
            match.groups() for match in map(_TRAIT.fullmatch, traits)
            if match))


def after(known: Known, seen: collections.abc.Iterable[Version],
          ) -> frozenset[Version]:
    """Return what is known after some versions were seen.

    :param seen: with ``is_other`` unset
    """
    found = set(known)
    by_place = _by_place(known)
    for version in seen:
        before = by_place[version.function, version.source]
        if not before:
            found.add(version)
        elif all(version.code != other.code for other in before) and not any(
                other.is_other for other in before):
            found.add(dataclasses.replace(version, is_other=True))
    return frozenset(found)


def changes(known: Known) -> dict[model.PciAddress, str]:
    """Return what has changed, by function whose firmware has changed."""
    found = collections.defaultdict(list)
    for (function, source), versions in sorted(_by_place(known).items()):
        was, now = ([decode(version.code) for version in versions
                     if version.is_other is is_other]
                    for is_other in (False, True))
        if now:
            # Quoted, as the owner of a server does not read quotations.
            found[function].append(
                f'{_name(source)} was {(was or ["unknown"])[0]!r}, '
                f'and is {now[0]!r}')
    return {function: '; '.join(texts) for function, texts in found.items()}


def of_device(known: Known, device: str) -> frozenset[Version]:
    """Return the versions of one Device.

    :param device: its address, as text
    """
    return frozenset(version for version in known
                     if str(version.device) == device)


def describe(known: Known) -> list[str]:
    """Return a text for each version."""
    return [f'{_name(version.source)} {decode(version.code)}'
            + (f' of {version.function}'
               if version.function != version.device else '')
            + (', not accepted' if version.is_other else '')
            for version in sorted(known)]


def _name(source: str) -> str:
    """Return the name of a source in messages."""
    return source.lower().replace('_', ' ')


def _by_place(known: Known) -> collections.defaultdict[
        tuple[model.PciAddress, str], list[Version]]:
    """Return versions by function and source."""
    found = collections.defaultdict(list)
    for version in sorted(known):
        found[version.function, version.source].append(version)
    return found

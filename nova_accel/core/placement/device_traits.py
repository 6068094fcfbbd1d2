# SPDX-License-Identifier: Apache-2.0
"""The properties of a Device as traits of its resource provider.

Programs that see only Placement's API learn from them what the Device is and
where it is in its host: ``openstack accel``, for example. The scheduler does
not use them.

======================================= =====================================
``CUSTOM_NOVA_ACCEL_PCI_10DE_2330``     vendor and product id
``CUSTOM_NOVA_ACCEL_NUMA_NODE_0``       place at a level of
                                        :data:`nova_accel.core.model.LEVELS`
``CUSTOM_NOVA_ACCEL_ISLAND_0``          the number of an island of the host
                                        that it is in
``CUSTOM_NOVA_ACCEL_PARTITION_0_OF_8``  the number of a partition, and how
                                        many devices that has, with those
                                        that are not offered
======================================= =====================================
"""

import collections.abc
import dataclasses
import re

from nova_accel.core import model
from nova_accel.core import naming

_PREFIX = f'{naming.MARKER_TRAIT}_'
#: Links of the Device have failed.
FAULTY = f'{_PREFIX}FAILED_LINKS'
_ISLAND = re.compile(rf'{_PREFIX}ISLAND_([0-9]{{1,9}})')
_PARTITION = re.compile(
    rf'{_PREFIX}PARTITION_([0-9]{{1,9}})_OF_([0-9]{{1,4}})')
_IDS = re.compile(rf'{_PREFIX}PCI_([0-9A-F]{{4}})_([0-9A-F]{{4}})')
_PLACES = tuple(f'{_PREFIX}{level.key}_'.upper() for level in model.LEVELS)
_ADDRESS = re.compile(r'([0-9a-f]{4,8})_([0-9a-f]{2})_([0-9a-f]{2})_([0-7])')
_ROOT = re.compile(r'(pci[0-9a-f]{4,8})_([0-9a-f]{2})')


@dataclasses.dataclass(frozen=True)
class Properties:
    """What the traits of a provider tell of its Device.

    :param ids: vendor and product id, ``10de:2330``, or ''
    :param place: the part of the host by the key of its level
    :param islands: numbers of the islands that it is in
    :param partitions: by number of the partitions that it is in, how many
        devices these have
    :param is_faulty: whether links of it have failed
    """

    ids: str = ''
    place: collections.abc.Mapping[str, str] = dataclasses.field(
        default_factory=dict)
    islands: frozenset[int] = frozenset()
    partitions: collections.abc.Mapping[int, int] = dataclasses.field(
        default_factory=dict)
    is_faulty: bool = False


def dumps(device: model.Device, links: model.Links,
          only_node: int | None = None) -> frozenset[str]:
    """Return the traits that tell the properties of a Device.

    :param links: the link domains of its host
    :param only_node: the NUMA node of a Device that does not report one
    """
    address = str(device.address)
    place = model.Place.at(device.location, address)
    if place.numa_node is None:
        place = dataclasses.replace(place, numa_node=only_node)
    ids = re.fullmatch('([0-9a-f]{4}):([0-9a-f]{4})', device.ids)
    return frozenset((
        *(f'{_PREFIX}PCI_{vendor}_{product}'.upper()
          for vendor, product in ([ids.groups()] if ids else ())),
        *(f'{_PREFIX}{level.key}_{_encoded(part)}'.upper()
          for level, part in zip(model.LEVELS, place.parts, strict=True)
          if part is not None),
        *(f'{_PREFIX}ISLAND_{number}'
          for number, _size in _sets(links.islands, address)),
        *(f'{_PREFIX}PARTITION_{number}_OF_{size}'
          for number, size in _sets(links.partitions, address)),
        *[FAULTY] * (address in links.faulty)))


def loads(traits: collections.abc.Collection[str]) -> Properties:
    """Return the properties that the traits of a provider tell."""
    ids = next(filter(None, map(_IDS.fullmatch, sorted(traits))), None)
    return Properties(
        ':'.join(ids.groups()).lower() if ids else '',
        {level.key: _decoded(trait.removeprefix(prefix))
         for level in model.LEVELS
         for prefix in [f'{_PREFIX}{level.key}_'.upper()]
         for trait in traits if trait.startswith(prefix)},
        frozenset(int(match[1]) for match in _matches(_ISLAND, traits)),
        {int(match[1]): int(match[2])
         for match in _matches(_PARTITION, traits)},
        FAULTY in traits)


def is_of_place(trait: str) -> bool:
    """Whether a trait tells a part of the host that a Device is in."""
    return trait.startswith(_PLACES)


def is_of_links(trait: str) -> bool:
    """Whether a trait tells an island or a partition of a Device."""
    return bool(trait == FAULTY or _ISLAND.fullmatch(trait)
                or _PARTITION.fullmatch(trait))


def _sets(sets: tuple[frozenset[str], ...], address: str,
          ) -> collections.abc.Iterator[tuple[int, int]]:
    """Yield number and size of each set that has an address."""
    for number, addresses in enumerate(sets):
        if address in addresses:
            yield number, len(addresses)


def _matches(pattern: re.Pattern[str],
             traits: collections.abc.Iterable[str],
             ) -> collections.abc.Iterator[re.Match[str]]:
    return filter(None, map(pattern.fullmatch, traits))


def _encoded(part: int | str) -> str:
    return re.sub('[^0-9A-Za-z]', '_', str(part))


def _decoded(text: str) -> str:
    """Return the name of a part of a host as sysfs has it."""
    text = text.lower()
    if match := _ADDRESS.fullmatch(text):
        return '{}:{}:{}.{}'.format(*match.groups())
    if match := _ROOT.fullmatch(text):
        return ':'.join(match.groups())
    return text

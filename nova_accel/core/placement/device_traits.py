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
``CUSTOM_NOVA_ACCEL_PARTITION_0``       the number of a partition
======================================= =====================================
"""

import collections.abc
import dataclasses
import re

from nova_accel.core import model
from nova_accel.core import naming

_PREFIX = f'{naming.MARKER_TRAIT}_'
_ISLAND, _PARTITION = f'{_PREFIX}ISLAND_', f'{_PREFIX}PARTITION_'
_IDS = re.compile(rf'{_PREFIX}PCI_([0-9A-F]{{4}})_([0-9A-F]{{4}})')
_ADDRESS = re.compile(r'([0-9a-f]{4,8})_([0-9a-f]{2})_([0-9a-f]{2})_([0-7])')
_ROOT = re.compile(r'(pci[0-9a-f]{4,8})_([0-9a-f]{2})')


@dataclasses.dataclass(frozen=True)
class Properties:
    """What the traits of a provider tell of its Device.

    :param ids: vendor and product id, ``10de:2330``, or ''
    :param place: the part of the host by the key of its level
    :param islands: numbers of the islands that it is in
    :param partitions: numbers of the partitions that it is in
    """

    ids: str = ''
    place: collections.abc.Mapping[str, str] = dataclasses.field(
        default_factory=dict)
    islands: frozenset[int] = frozenset()
    partitions: frozenset[int] = frozenset()


def dumps(device: model.Device, links: model.Links) -> frozenset[str]:
    """Return the traits that tell the properties of a Device.

    :param links: the link domains of its host
    """
    address = str(device.address)
    parts = {level.key: level.part(device.location)
             for level in model.LEVELS}
    ids = re.fullmatch('([0-9a-f]{4}):([0-9a-f]{4})', device.ids)
    return frozenset((
        *(f'{_PREFIX}PCI_{vendor}_{product}'.upper()
          for vendor, product in [ids.groups()] * bool(ids)),
        *(f'{_PREFIX}{key}_{_encoded(part)}'.upper()
          for key, part in parts.items() if part is not None),
        *_numbered(_ISLAND, links.islands, address),
        *_numbered(_PARTITION, links.partitions, address)))


def loads(traits: collections.abc.Collection[str]) -> Properties:
    """Return the properties that the traits of a provider tell."""
    ids = next(filter(None, map(_IDS.fullmatch, sorted(traits))), None)
    return Properties(
        ':'.join(ids.groups()).lower() if ids else '',
        {level.key: _decoded(trait.removeprefix(prefix))
         for level in model.LEVELS
         for prefix in [f'{_PREFIX}{level.key}_'.upper()]
         for trait in traits if trait.startswith(prefix)},
        _numbers(_ISLAND, traits), _numbers(_PARTITION, traits))


def _numbered(prefix: str, sets: tuple[frozenset[str], ...],
              address: str) -> collections.abc.Iterator[str]:
    for number, addresses in enumerate(sets):
        if address in addresses:
            yield f'{prefix}{number}'


def _numbers(prefix: str, traits: collections.abc.Iterable[str],
             ) -> frozenset[int]:
    return frozenset(
        int(number) for trait in traits
        if (number := trait.removeprefix(prefix)) != trait
        and re.fullmatch('[0-9]{1,9}', number))


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

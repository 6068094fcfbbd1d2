# SPDX-License-Identifier: Apache-2.0
"""How much room a host has for later servers.

Room is counted in Devices. A Region of which half is free counts as half a
Device, so a pool of 64 virtual functions weighs no more than one GPU.
"""

import collections
import collections.abc
import dataclasses

from nova_accel.core import model
from nova_accel.core.solver import arrange

# The kind and the name of a place, and how many Devices of it are worth
# something at least.
_Place = tuple[str, int | str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """The room that a host has left.

    A place is what a rule can ask Devices to share: a card, switch, root, NUMA
    node or island. The free Devices of a place are worth the square of their
    number, because servers can use them together. So the last two of an
    island cost less than two of a whole one, and Devices of a large island
    cost more than those of a small one. A partition has worth only while all
    of it is free.

    :param left: how many Devices stay free
    :param broken: the worth that is lost
    """

    left: float
    broken: float


def after(available: collections.abc.Collection[arrange.AvailableUnits],
          taken: collections.abc.Mapping[str, int],
          links: model.Links) -> Room:
    """Return the room that is left of the resource classes taken.

    :param available: the host's available units, before anything is taken
    :param taken: units by provider
    """
    classes = {units.resource_class for units in available
               if taken.get(units.provider)}
    left = 0.
    frees: dict[_Place, list[float]] = collections.defaultdict(
        lambda: [0., 0.])
    for units in available:
        if units.resource_class in classes:
            before = _part(units.total, units.free)
            after_it = _part(units.total,
                             units.free - taken.get(units.provider, 0))
            left += after_it
            for place in _places(units.place, links):
                free = frees[place]
                free[0] += before
                free[1] += after_it
    return Room(left, sum(
        _worth(place, before) - _worth(place, after_it)
        for place, (before, after_it) in frees.items()
        if before != after_it))


def free_share(units: collections.abc.Collection[tuple[int, int]]) -> float:
    """Return the share of a host's Devices that is free, 0 to 1.

    :param units: total and free of each Region
    """
    return sum(_part(*each) for each in units) / max(1, len(units))


def _part(total: int, free: int) -> float:
    # Other hosts may report any numbers, also some too large for a float.
    return min(max(free, 0), total) / total if total > 0 else 0.


def _places(place: model.Place,
            links: model.Links) -> collections.abc.Iterator[_Place]:
    yield 'device', place.device, 0
    for level, part in zip(model.LEVELS, place.parts, strict=True):
        if part is not None:
            yield level.key, part, 0
    for number, addresses in enumerate(links.islands):
        if place.device in addresses:
            yield 'island', number, 0
    for number, addresses in enumerate(links.partitions):
        if place.device in addresses:
            yield 'partition', number, len(addresses)


def _worth(place: _Place, free: float) -> float:
    _kind, _name, least = place
    return free * free if free >= least else 0.

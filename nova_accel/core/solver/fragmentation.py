# SPDX-License-Identifier: Apache-2.0
"""How much room a server's Devices would leave for those that come later.

Counted in Devices: a Region of which half is free is half a Device. So a
pool of sixty-four virtual functions weighs no more than one GPU.
"""

import collections
import collections.abc
import dataclasses

from nova_accel.core import model
from nova_accel.core.solver import arrange


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """What becomes of a host.

    What Devices can be asked to share is a place: a card, a switch, a root, a
    NUMA node, an island. The free Devices of a place are worth the square of
    their number, since each is worth more with each other; so the last two of
    an island cost less than two of one that is whole, and a large one costs
    more than a small one. A partition is worth something as long as it is
    whole.

    :param left: how many Devices stay free
    :param broken: the worth that is lost
    """

    left: float
    broken: float


def after(available: collections.abc.Collection[arrange.AvailableUnits],
          taken: collections.abc.Mapping[str, int],
          links: model.Links) -> Room:
    """The room that is left, of the classes of which something is taken.

    :param available: what of a host is free, before anything is taken
    :param taken: units by provider
    """
    classes = {units.resource_class for units in available
               if taken.get(units.provider)}
    left = 0.
    frees: dict[tuple, list[float]] = collections.defaultdict(
        lambda: [0., 0.])
    for units in available:
        if units.resource_class in classes:
            before = _part(units.total, units.free)
            then = _part(units.total,
                         units.free - taken.get(units.provider, 0))
            left += then
            for place in _places(units.place, links):
                free = frees[place]
                free[0] += before
                free[1] += then
    return Room(left, sum(
        _worth(place, before, links) - _worth(place, then, links)
        for place, (before, then) in frees.items() if before != then))


def free_share(units: collections.abc.Collection[tuple[int, int]]) -> float:
    """Which part of a host's Devices is free, 0 to 1.

    :param units: total and free of each Region
    """
    return sum(_part(*each) for each in units) / max(1, len(units))


_PARTITION = 'partition'


def _part(total: int, free: int) -> float:
    # What others say of themselves may be anything, and more than a float.
    return min(max(free, 0), total) / total if total > 0 else 0.


def _places(place, links) -> collections.abc.Iterator[tuple]:
    yield 'device', place.device
    for key, value in (('pcie_switch', place.pcie_switch),
                       ('pcie_root', place.pcie_root),
                       ('numa_node', place.numa_node)):
        if value is not None:
            yield key, value
    for key, sets in (('island', links.islands),
                      (_PARTITION, links.partitions)):
        for number, addresses in enumerate(sets):
            if place.device in addresses:
                yield key, number


def _worth(place, free: float, links) -> float:
    if place[0] == _PARTITION and free < len(links.partitions[place[1]]):
        return 0.
    return free * free

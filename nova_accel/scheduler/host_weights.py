# SPDX-License-Identifier: Apache-2.0
"""Weigh hosts that have the devices of a request against each other.

Seam: ``nova.weights.normalize``.
"""

import collections.abc
import typing

from nova import weights

from nova_accel.core.solver import fragmentation


def parts(penalties: collections.abc.Iterable[int],
          rooms: collections.abc.Iterable[fragmentation.Room],
          ranks: collections.abc.Sequence[int] = (),
          ) -> dict[str, list[float]]:
    """Return the hosts' weights by the name of the multiplier.

    They are 0 to 1, and for alternatives 0 or less.

    :param penalties: of the preferred rules that the devices violate, by host
    :param rooms: the room that is left, by host
    :param ranks: of the alternatives of the profile that the hosts have, 0
        for the best
    """
    rooms = list(rooms)
    return {
        # Not normalized: the next alternative is as far behind on any host.
        **({'accel_alternative_weight_multiplier': [
            float(-rank) for rank in ranks]} if any(ranks) else {}),
        'accel_preferred_weight_multiplier': _preferences(list(penalties)),
        'accel_pack_weight_multiplier': _normal(-room.left for room in rooms),
        'accel_island_weight_multiplier': _normal(
            -room.broken for room in rooms)}


def sums(hosts: collections.abc.Iterable,
         parts: collections.abc.Mapping[str, list[float]],
         multiplier: collections.abc.Callable[[typing.Any, str], float],
         ) -> list[float]:
    """Return the weight of each host.

    :param parts: its weights by the name of the multiplier
    :param multiplier: returns that of a host and a name
    """
    return [sum(multiplier(host, name) * weight
                for name, weight in zip(parts, own, strict=True))
            for host, own in zip(hosts, zip(*parts.values(), strict=True),
                                 strict=True)]


def _preferences(penalties: list[int]) -> list[float]:
    """Return 1 for the least penalty, at most 0.5 for any other.

    The weights are not normalized, so the best host is ahead by at least 0.5,
    however bad the worst is.
    """
    least = min(penalties, default=0)
    return [1 / (1 + penalty - least) for penalty in penalties]


def _normal(values: collections.abc.Iterable[float]) -> list[float]:
    # Normalizing scales the largest difference to 1, so rounding errors must
    # not remain as the only difference.
    return list(weights.normalize([round(value, 6) for value in values]))

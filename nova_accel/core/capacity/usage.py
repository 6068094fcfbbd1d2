# SPDX-License-Identifier: Apache-2.0
"""How many units are used, free and withheld."""

import collections
import collections.abc
import dataclasses

from nova_accel.core.placement import listing


@dataclasses.dataclass(frozen=True)
class Usage:
    """The units of some Regions.

    :param withheld: units that nobody has and that new servers cannot get, by
        reason
    """

    used: int
    free: int
    withheld: collections.abc.Mapping[str, int]

    @property
    def total(self) -> int:
        return self.used + self.free + sum(self.withheld.values())


def of(regions: collections.abc.Iterable[listing.Units],
       totals: collections.abc.Mapping[str, int]) -> Usage:
    """Return the usage of Regions.

    :param totals: all units, by provider
    """
    used = free = 0
    withheld: collections.Counter[str] = collections.Counter()
    for units in regions:
        used += units.used
        free += units.free
        withheld[', '.join(units.reasons)] += (
            totals[units.provider] - units.used - units.free)
    # A server can hold more than the total, if that has changed since then.
    return Usage(used, free, dict(+withheld))

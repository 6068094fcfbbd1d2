# SPDX-License-Identifier: Apache-2.0
"""Servers of one request, which come to the same hosts one after the other.

Nova looks for candidates once for all of them, and claims the first of a
host's for each, also where an earlier server has just been given it
(https://bugs.launchpad.net/nova/+bug/1874664). So the candidates that cannot
be had twice are dropped here, and those with most left come first.

Seam: ``nova.scheduler.host_manager.HostState`` (one for each request;
num_instances, which Nova counts up with each server that it puts there).
Checked with Nova 33 and 34.
"""

import collections

from nova_accel.core import summary

# Our attribute of a HostState.
_ATTRIBUTE = 'nova_accel_siblings'


class Siblings:
    """What the servers of a request have been given of one host."""

    def __init__(self, host_state):
        self._units = summary.loads(
            (host_state.stats or {}).get(summary.KEY), host_state.uuid).units
        self._count = host_state.num_instances
        self._first: dict = {}
        self._given: collections.Counter[str] = collections.Counter()

    @classmethod
    def of(cls, host_state) -> 'Siblings':
        """Those of a host; the last of them, if one came, counted in."""
        siblings = getattr(host_state, _ATTRIBUTE, None)
        if siblings is None:
            siblings = cls(host_state)
            setattr(host_state, _ATTRIBUTE, siblings)
        siblings._count_in(host_state.num_instances)
        return siblings

    def _count_in(self, count: int) -> None:
        if count > self._count:
            self._given.update(_amounts(self._first))
        self._count = count

    def leave(self, candidates: list[dict]) -> list[dict]:
        """The candidates that are left, those with most left first."""
        left = [(self._left(candidate), candidate)
                for candidate in candidates]
        # Stable: among equals, the order stays.
        left.sort(key=lambda item: -item[0][1])
        return [candidate for (possible, _free), candidate in left
                if possible]

    def expect(self, candidates: list[dict]) -> None:
        """Remember which candidate the next server would be given."""
        self._first = candidates[0] if candidates else {}

    def _left(self, candidate) -> tuple[bool, int]:
        """Whether it can be had, and how much of it the next finds."""
        totals, frees = [0], []
        for provider, amount in _amounts(candidate).items():
            # VCPU and the like have providers that are none of ours.
            if provider in self._units:
                total, free = self._units[provider]
                given = self._given[provider] + amount
                totals.append(total - given)
                frees.append(free - given)
        return min(totals) >= 0, min(frees, default=0)


def _amounts(candidate) -> dict[str, int]:
    return {provider: sum(allocation['resources'].values())
            for provider, allocation in candidate.get(
                'allocations', {}).items()}

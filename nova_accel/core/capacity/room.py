# SPDX-License-Identifier: Apache-2.0
"""How many more servers of a flavor fit, and why the rest does not."""

import collections.abc
import dataclasses

from nova_accel.core.capacity import fit
from nova_accel.core.capacity import view
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget

# A search that takes more steps gives up: of most hosts, some hundred
# milliseconds.
_MAX_STEPS = 2_500

#: Names of hosts, by their view and why they get no new servers. What is
#: computed for a view is valid for all of them.
Alike = collections.abc.Mapping[tuple[view.View, str],
                                collections.abc.Collection[str]]


@dataclasses.dataclass(frozen=True)
class Room:
    """What a host can serve of a flavor.

    :param servers: how many more servers fit, one after the other
    :param left: units by class that stay free then
    :param obstacle: why no more servers fit
    :param alternatives: how many of the servers get each alternative, by
        number
    """

    servers: int
    left: collections.abc.Mapping[str, int]
    obstacle: arrange.Arrangement
    alternatives: collections.abc.Mapping[int, int] = dataclasses.field(
        default_factory=dict)


class Rooms:
    """The room of hosts for a flavor; each view is computed once.

    Only devices are regarded. vCPUs, memory, disk and the NUMA topology of the
    guest can limit the number of servers further.

    :param wanted: the request of the flavor, with its profile expanded
    :param classes: the resource classes that devices of the cloud have; other
        classes that the flavor asks for are not devices
    :param budget: of search steps, shared by all hosts; None for a limit of
        each search
    :ivar counts: how many units of devices a server gets, by class
    """

    def __init__(self, wanted: flavor_request.Request,
                 classes: collections.abc.Container[str],
                 budget: search_budget.Budget | None = None) -> None:
        self._wanted = wanted
        self._budget = budget
        self.counts = {
            name: amount for name, amount in wanted.amounts.items()
            if name in classes or any(name in group.resources for group
                                      in wanted.groups.values())}
        self._known: dict[view.View, Room] = {}

    @property
    def classes(self) -> frozenset[str]:
        """The resource classes of the devices that the flavor asks for."""
        return frozenset(self.counts)

    def of(self, host: view.View, closed: str = '') -> Room:
        """Return the room of a host.

        :param closed: why the host gets no new servers, '' if it does
        :raises errors.ProfileError: if a rule cannot be understood
        """
        host = view.of_classes(host, self.classes)
        room = self._open(host)
        if closed and room.servers:
            return self._none(host, arrange.Arrangement(objection=closed,
                                                        kind='service'))
        return room

    def total(self, hosts: Alike) -> tuple[int, int]:
        """Return how many more servers fit, and how many units are stranded.

        :raises errors.ProfileError: as :meth:`of`
        """
        found = [(self.of(*looks), len(names))
                 for looks, names in hosts.items()]
        return (sum(room.servers * count for room, count in found),
                sum(sum(room.left.values()) * count for room, count in found))

    def _open(self, host: view.View) -> Room:
        """Return the room of a host that gets new servers."""
        passed: list[tuple[view.View, int, int]] = []
        while host not in self._known:
            found = fit.fit(self._wanted, self.counts, host.units, host.links,
                            True, self._budget or search_budget.Budget(
                                most=_MAX_STEPS))
            if found.arranged.objection:
                self._known[host] = self._none(host, found.arranged)
                break
            times = _times(host, found.taken)
            passed.append((host, times, found.arranged.alternative))
            host = host.without({provider: times * amount
                                 for provider, amount in found.taken.items()})
        room = self._known[host]
        for earlier, times, alternative in reversed(passed):
            room = dataclasses.replace(
                room, servers=room.servers + times, alternatives={
                    **room.alternatives,
                    alternative: room.alternatives.get(alternative, 0) + times
                })
            self._known[earlier] = room
        return room

    def _none(self, host: view.View, obstacle: arrange.Arrangement) -> Room:
        return Room(0, {name: free for name in sorted(self.classes)
                        if (free := host.free(name))}, obstacle)


def _times(host: view.View, taken: collections.abc.Mapping[str, int]) -> int:
    """Return how many servers can take units of the same Regions.

    The solver packs: the next server gets units of the same Regions, while
    these have enough. So a pool of 64 virtual functions costs one search.
    """
    return min(units.free // taken[units.provider] for units in host.units
               if units.provider in taken)

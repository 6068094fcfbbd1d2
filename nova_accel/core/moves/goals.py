# SPDX-License-Identifier: Apache-2.0
"""What a plan of moves has to reach.

A goal says how many moves are needed at least, and who may have to leave. Both
are about the hosts that are its targets; what else has to move so that these
servers find a place is the search's concern.
"""

import abc
import collections
import collections.abc
import dataclasses
import heapq

from nova_accel.core.capacity import room
from nova_accel.core.moves import fleet as fleets
from nova_accel.core.moves import node
from nova_accel.core.moves import state as states

#: Sets of servers of which one has to leave.
Sets = collections.abc.Iterable[tuple[str, ...]]

# A set of servers after its size, and their host.
_Leaving = tuple[tuple[int, int], tuple[str, ...], str]

# More moves than any plan has.
_NEVER = 1 << 10


class Goal(abc.ABC):
    """What a plan of moves has to reach."""

    #: Names of the hosts that no server may go to.
    closed: frozenset[str] = frozenset()

    @abc.abstractmethod
    def units(self, fleet: fleets.Fleet) -> collections.Counter[str]:
        """Return how many free units the goal needs, by resource class.

        Moves do not change how many units are free in the whole fleet.
        """

    def parts(self) -> list['Goal']:
        """Return easier goals that lead to this one, which is the last."""
        return [self]

    def held_up(self, fleet: fleets.Fleet) -> list[fleets.Server]:
        """Return servers that would have to move and cannot."""
        return []

    @abc.abstractmethod
    def missing(self, state: states.State, most: int) -> int:
        """Return a number of moves that are needed at least.

        One move lowers it by one at most. It is 0 only if the goal is reached.

        :param most: if more are needed, any larger number is returned
        """

    @abc.abstractmethod
    def leaving(self, state: states.State, most: int) -> Sets:
        """Return the sets of servers that may have to leave a target.

        The smallest are first.

        :param most: the limit of a set's size
        """


class Drain(Goal):
    """No server has devices of a host.

    :param host: its name
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self.closed = frozenset([host])

    def held_up(self, fleet: fleets.Fleet) -> list[fleets.Server]:
        return [server for uuid in fleet.on[self._host]
                if (server := fleet.servers[uuid]).obstacle]

    def units(self, fleet: fleets.Fleet) -> collections.Counter[str]:
        needed: collections.Counter[str] = collections.Counter()
        for uuid in fleet.on[self._host]:
            needed.update(fleet.counts(uuid))
        return needed

    def missing(self, state: states.State, most: int) -> int:
        return len(state.at(self._host).servers)

    def leaving(self, state: states.State, most: int) -> Sets:
        return sorted(
            ((uuid,) for uuid in state.at(self._host).servers),
            key=lambda servers: _size(state.fleet, servers))


@dataclasses.dataclass(frozen=True)
class _Known:
    """What is known of the hosts of a fleet before any move.

    :param most: the limit of servers that leave a host
    :param costs: how many servers have to leave, by host
    :param hosts: numbers of hosts by their costs
    :param leaving: in order
    """

    most: int
    costs: collections.abc.Mapping[str, tuple[int, ...] | None]
    hosts: collections.Counter[tuple[int, ...] | None]
    leaving: list[_Leaving]


class Room(Goal):
    """There is room for some servers with a profile, one after the other.

    :param rooms: the room of hosts for one
    :param count: how many
    :param host: the name of the only host that they may be on, '' for any
    """

    def __init__(self, rooms: room.Rooms, count: int, host: str = '') -> None:
        self._rooms, self._count, self._host = rooms, count, host
        self._known: dict[fleets.Fleet, _Known] = {}

    def parts(self) -> list[Goal]:
        return [*(Room(self._rooms, count, self._host)
                  for count in range(1, self._count)), self]

    def units(self, fleet: fleets.Fleet) -> collections.Counter[str]:
        return collections.Counter({
            name: self._count * amount
            for name, amount in self._rooms.counts.items()})

    def missing(self, state: states.State, most: int) -> int:
        known = self._present(state, most)
        hosts = known.hosts.copy()
        for name, found in state.changed.items():
            hosts[known.costs.get(name)] -= 1
            hosts[self._costs(found, most)] += 1
        present = [(costs, number) for costs, number in hosts.items() if costs]
        # Hosts are filled with servers for which none has to leave first.
        count = self._count - sum(
            number * costs.count(0) for costs, number in present)
        if count <= 0:
            return 0
        # For each number of servers, the least moves on the hosts so far.
        least = [0, *[_NEVER] * count]
        for costs, number in present:
            dear = costs[costs.count(0):count + costs.count(0)]
            for _host in range(min(number, count) if dear else 0):
                least = [0, *(min([least[servers], *(
                    least[servers - more] + dear[more - 1]
                    for more in range(1, min(servers, len(dear)) + 1))])
                    for servers in range(1, count + 1))]
        return least[-1]

    def leaving(self, state: states.State, most: int) -> Sets:
        present = (one for one in self._present(state, most).leaving
                   if len(one[1]) <= most and one[2] not in state.changed)
        return (servers for _size, servers, _name in heapq.merge(
            present, sorted(one for found in state.changed.values()
                            for one in self._leaving(found, most))))

    def _present(self, state: states.State, most: int) -> '_Known':
        """Return what is known of the hosts before any move."""
        fleet = state.fleet
        known = self._known.get(fleet)
        if known is None or known.most < most:
            found = [one for one in map(
                state.before, [self._host] if self._host else fleet.hosts)
                if self._is_target(one, most)]
            # Read what is needed at once.
            fleet.read(one.name for one in found)
            costs = {one.name: self._costs(one, most) for one in found}
            known = self._known[fleet] = _Known(
                most, costs, collections.Counter(costs.values()),
                sorted(leaving for one in found
                       for leaving in self._leaving(one, most)))
        return known

    def _is_target(self, found: node.Node, most: int) -> bool:
        """Whether a host can have room after some moves."""
        return (self._host in ('', found.name) and not found.host.closed
                and found.name != fleets.SPARE
                and found.can_get(self._rooms.counts, most))

    def _costs(self, found: node.Node, most: int) -> tuple[int, ...] | None:
        """Return how many servers have to leave a host at least.

        :returns: for room for one server, for two, and so on, as long as
            ``most`` servers are enough; None if they are not for one
        """
        return tuple(min(map(len, sets)) for sets
                     in self._rooms_for(found, most)) or None

    def _leaving(self, found: node.Node, most: int) -> list[_Leaving]:
        """Return the sets of servers that may have to leave a host."""
        return [(_size(found.fleet, servers), servers, found.name)
                for sets in self._rooms_for(found, most)
                for servers in sets if servers]

    def _rooms_for(self, found: node.Node, most: int,
                   ) -> collections.abc.Iterator[list[tuple[str, ...]]]:
        """Yield the sets that leave room for one server, two, and so on."""
        if not self._is_target(found, most):
            return
        for count in range(1, self._count + 1):
            sets = list(self._sets(found, count, most))
            if not sets:
                return
            yield sets

    def _sets(self, found: node.Node, count: int, most: int) -> Sets:
        """Return the sets that leave room for so many servers on a host."""
        return found.vacated((self._rooms, count), {
            name: count * amount
            for name, amount in self._rooms.counts.items()}, most,
            lambda left: left.room(self._rooms) >= count)


def _size(fleet: fleets.Fleet, servers: tuple[str, ...]) -> tuple[int, int]:
    """Sort sets of servers: few are better, and then small ones."""
    return len(servers), sum(sum(fleet.counts(uuid).values())
                             for uuid in servers)


class Passing(Goal):
    """Another goal is reached, and no server is left on the spare host.

    :param goal: for a fleet with a spare host
    """

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self.closed = goal.closed

    def units(self, fleet: fleets.Fleet) -> collections.Counter[str]:
        return self._goal.units(fleet)

    def missing(self, state: states.State, most: int) -> int:
        return max(self._goal.missing(state, most),
                   len(state.at(fleets.SPARE).servers))

    def leaving(self, state: states.State, most: int) -> Sets:
        return [*self._goal.leaving(state, most),
                *((uuid,) for uuid in state.at(fleets.SPARE).servers)]


def lacking(goal: Goal, fleet: fleets.Fleet) -> dict[str, tuple[int, int]]:
    """Return the resource classes of which a goal needs more than is free.

    :returns: how many units are needed and how many are free, by class
    """
    free: collections.Counter[str] = collections.Counter()
    for host in fleet.hosts.values():
        if not host.closed and host.name not in goal.closed:
            for units in host.units:
                free[units.resource_class] += units.free
    return {name: (needed, free[name])
            for name, needed in sorted(goal.units(fleet).items())
            if needed > free[name]}

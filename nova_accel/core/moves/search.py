# SPDX-License-Identifier: Apache-2.0
"""Search for the fewest moves that reach a goal.

Branch and bound with a growing limit of moves. A goal tells how many moves are
needed at least (:mod:`.goals`). While no move is to spare, only servers on a
target of the goal move. Each move to spare can make another server leave a
host, so that the one that wants to go there finds a place. If such moves are
not enough, all are tried: which devices a server gets on a host depends on the
servers that are there before it. For the same reason, no model of OR-tools
fits.
"""

import collections.abc
import dataclasses
import enum
import functools
import itertools

from nova_accel.core.moves import fleet as fleets
from nova_accel.core.moves import goals
from nova_accel.core.moves import node
from nova_accel.core.moves import state as states

#: The most moves of plans that are searched completely.
EXACT = 8
#: The most moves beyond the least that can be needed.
_MORE = 8
# A quick search takes the first of many candidates at each step, and gives up
# after a number of steps.
_WIDTH, _QUICK_SETS, _QUICK_STEPS = 3, 30, 200


@dataclasses.dataclass(frozen=True)
class Move:
    """One server goes to another host.

    :param arrival: what it gets there
    """

    server: fleets.Server
    source: str
    destination: str
    arrival: node.Arrival

    @property
    def way(self) -> str:
        """How it gets there, live or cold."""
        return self.arrival.way


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the search found.

    :param moves: in order; None if none was found
    :param is_least: whether no plan has fewer moves; if there is none, whether
        all plans of up to :data:`EXACT` moves were searched
    """

    moves: tuple[Move, ...] | None
    is_least: bool


class _Way(enum.Enum):
    """How to search; with the share of the time that is kept for others."""

    #: The best of the useful moves, and some hundred steps.
    QUICK = 0.
    #: All moves that are certainly useful.
    USEFUL = 1 / 2
    #: All moves.
    ALL = 3 / 4


#: A host to which a server may move, and what it gets there.
Place = tuple[node.Node, node.Arrival]
#: A server that may move next, its new host, and what it gets there.
Candidate = tuple[str, node.Node, node.Arrival]


class Search:
    """A search for the fewest moves.

    :param goal: what they have to reach
    :param time_left: returns the share of the time for it that is left, 1 to 0
    :param say: takes the number of moves that is tried, and of the states that
        were examined so far
    :param exact: the most moves of plans that are searched completely
    """

    def __init__(self, fleet: fleets.Fleet, goal: goals.Goal,
                 time_left: collections.abc.Callable[[], float] = lambda: 1.,
                 say: collections.abc.Callable[[int, int], None]
                 = lambda limit, examined: None, exact: int = EXACT) -> None:
        self._fleet, self._goal = fleet, goal
        self._time_left, self._say, self._exact = time_left, say, exact
        self._start = states.State(node.Nodes(fleet, self._check))
        self._way = _Way.QUICK
        self._limit = self._examined = self._steps = 0
        #: By the look of a server, the hosts that admit it before any move.
        self._present: dict[fleets.Look, list[Place]] = {}
        #: States from which so many moves are too few.
        self._failed: dict[tuple[_Way, frozenset[node.Node]], int] = {}

    def run(self) -> Plan:
        """Return the plan with the fewest moves, or the best one found."""
        if (goals.lacking(self._goal, self._fleet)
                or self._goal.held_up(self._fleet)):
            return Plan(None, True)
        try:
            least = self._least()
        except _OverError:
            return Plan(None, False)
        if least > self._exact + _MORE:
            return Plan(None, True)
        return self._from(least) if least else Plan((), True)

    def _from(self, least: int) -> Plan:
        """Return the best plan of so many moves and more."""
        best = self._in_parts()
        # All plans of up to so many moves were searched.
        searched = least - 1
        for limit in range(least, max(self._exact, least + _MORE) + 1):
            if best is not None and limit >= len(best):
                break
            known = searched
            for way in _Way if limit <= max(self._exact, least) else [
                    _Way.QUICK]:
                moves, is_complete = self._try(self._start, limit, way)
                if moves is not None:
                    return Plan(tuple(moves), limit == known + 1)
                # While no move is to spare, the useful moves are all.
                if is_complete and known == limit - 1 and (
                        way == _Way.ALL or limit == least):
                    searched = limit
                    break
        if best is not None:
            return Plan(tuple(best), len(best) == searched + 1)
        return Plan(None, searched >= self._exact)

    def _least(self) -> int:
        """Return a number of moves that are needed at least.

        :returns: any larger number if too many are needed to search for them
        """
        limit = 0
        while (missing := self._goal.missing(self._start, limit)) > limit:
            self._check()
            if limit == self._exact + _MORE:
                break
            limit = min(missing, limit + 1)
        return missing

    def _in_parts(self) -> list[Move] | None:
        """Return the moves to the parts of the goal, one after the other.

        They are often more than are needed.
        """
        whole, state, moves = self._goal, self._start, []
        try:
            for self._goal in whole.parts():
                found = self._part(state)
                if found is None:
                    return None
                for move in found:
                    state = state.after(move.server.uuid, move.destination,
                                        move.arrival)
                moves += found
        finally:
            self._goal = whole
        return moves

    def _part(self, state: states.State) -> list[Move] | None:
        """Return moves to the present goal, the first ones found."""
        for limit in range(self._exact + _MORE + 1):
            moves, _is_complete = self._try(state, limit, _Way.QUICK)
            if moves is not None:
                return moves
        return None

    def _try(self, state: states.State, limit: int, way: _Way,
             ) -> tuple[list[Move] | None, bool]:
        """Search plans of so many moves.

        :returns: the moves, None if none were found; and whether the search
            is complete
        """
        self._limit, self._way = limit, way
        self._steps = _QUICK_STEPS + 2 * limit
        try:
            return self._moves(state, limit), way != _Way.QUICK
        except _OverError:
            return None, False

    def _check(self) -> None:
        """End the search if its time or its steps are over."""
        if self._time_left() <= self._way.value or (
                self._way == _Way.QUICK and self._steps < 0):
            raise _OverError

    def _moves(self, state: states.State, left: int) -> list[Move] | None:
        """Return moves that lead from a state to the goal, None if there are
        none.

        :param left: how many moves there may be
        """
        self._examined += 1
        self._steps -= 1
        self._check()
        self._say(self._limit, self._examined)
        missing = self._goal.missing(state, left)
        if not missing:
            return []
        key = self._way, state.key
        if missing > left or self._failed.get(key, 0) >= left:
            return None
        for uuid, at, arrival in self._candidates(state, left,
                                                  left - missing):
            found = self._moves(state.after(uuid, at.name, arrival), left - 1)
            if found is not None:
                return [Move(self._fleet.servers[uuid], state.host_of(uuid),
                             at.name, arrival), *found]
        if self._way != _Way.QUICK:
            self._failed[key] = left
        return None

    def _candidates(self, state: states.State, left: int, spare: int,
                    ) -> collections.abc.Iterator[Candidate]:
        """Yield the moves that a plan may begin with."""
        is_quick = self._way == _Way.QUICK
        leaving = list(self._goal.leaving(state, left))
        if is_quick:
            leaving = list(itertools.islice((
                servers for servers in leaving if all(
                    self._had_place(state, uuid) for uuid in servers)),
                _QUICK_SETS)) or leaving[:_WIDTH]
        wanted = dict.fromkeys(itertools.chain.from_iterable(leaving))
        targets = {state.host_of(uuid) for uuid in wanted}
        has_groups = any(self._fleet.servers[uuid].group for uuid in wanted)

        @functools.cache
        def places(uuid: str) -> list[Place]:
            found = self._places(state, uuid)
            return (found if spare or has_groups
                    else list(_unlike(found, targets)))

        if not spare and targets <= self._goal.closed and not all(
                map(places, wanted)):
            return
        width = _WIDTH if is_quick else None
        if is_quick:
            leaving = list(itertools.islice((
                servers for servers in leaving
                if spare or all(map(places, servers))), width))
        # Those with the fewest places first.
        have_to = itertools.chain.from_iterable(
            sorted(servers, key=lambda uuid: len(places(uuid)))
            for servers in leaving)
        for uuid in _once(itertools.chain(
                have_to, self._others(state, wanted, spare))):
            yield from ((uuid, at, arrival)
                        for at, arrival in places(uuid)[:width])

    def _others(self, state: states.State,
                wanted: collections.abc.Iterable[str], spare: int,
                ) -> collections.abc.Iterable[str]:
        """Return the servers that may move besides those that have to.

        :param wanted: those that have to
        :param spare: how many others may move
        """
        if self._way == _Way.ALL and spare:
            return (uuid for at in state.hosts() for uuid in at.movable)
        return self._blocking(state, wanted, spare)

    def _places(self, state: states.State, uuid: str) -> list[Place]:
        """Return the hosts that a server may move to, the best first."""
        at_home, server = state.host_of(uuid), self._fleet.servers[uuid]
        if server.group:
            found = self._admitting(state, uuid, state.hosts())
        else:
            # Most hosts are as they were before any move.
            found = [
                *(place for place in self._before(state, uuid)
                  if place[0].name not in state.changed),
                *self._admitting(state, uuid, state.changed.values())]
        # Of equal hosts, the one with the most servers is the hardest to
        # empty.
        return sorted((place for place in found if place[0].name != at_home),
                      key=lambda place: (
                          place[1].way != fleets.LIVE, place[1].left,
                          -len(place[0].servers), place[0].name))

    def _before(self, state: states.State, uuid: str) -> list[Place]:
        """Return the hosts that admitted a server before any move."""
        look = state.look(uuid)
        if look not in self._present:
            self._present[look] = self._admitting(state, uuid, map(
                state.before, self._fleet.hosts))
        return self._present[look]

    def _had_place(self, state: states.State, uuid: str) -> bool:
        """Whether a host may have admitted a server before any move."""
        return bool(self._fleet.servers[uuid].group
                    or self._before(state, uuid))

    def _admitting(self, state: states.State, uuid: str,
                   hosts: collections.abc.Iterable[node.Node]) -> list[Place]:
        """Return the hosts that admit a server, also if it is there."""
        return [(at, arrival) for at in hosts
                if at.name not in self._goal.closed
                and (arrival := state.arrival(uuid, at))]

    def _blocking(self, state: states.State,
                  wanted: collections.abc.Iterable[str], spare: int,
                  ) -> collections.abc.Iterator[str]:
        """Yield the servers that keep others from a host.

        :param wanted: those that have to move
        :param spare: how many other servers may move for that
        """
        if not spare:
            return
        for uuid in wanted:
            for at in state.hosts():
                if (at.name in self._goal.closed
                        or at.name == state.host_of(uuid)
                        or not state.may_go(uuid, at.host)):
                    continue
                for servers in self._blockers(state, uuid, at, spare):
                    yield from servers
                    if servers:
                        yield from self._blocking(state, servers,
                                                  spare - len(servers))

    def _blockers(self, state: states.State, uuid: str, at: node.Node,
                  most: int) -> list[tuple[str, ...]]:
        """Return the sets of servers that keep a server from a host."""
        return at.vacated(
            state.look(uuid), self._fleet.counts(uuid), most,
            lambda left: state.arrival(uuid, left) is not None)


def _unlike(places: collections.abc.Iterable[Place],
            targets: collections.abc.Container[str],
            ) -> collections.abc.Iterator[Place]:
    """Leave out hosts that are like another one for servers that come."""
    seen = set()
    for at, arrival in places:
        look = (at.name if at.name in targets else '', at.view, at.host.zone,
                frozenset(at.resources.items()))
        if look not in seen:
            seen.add(look)
            yield at, arrival


def _once(items: collections.abc.Iterable[str],
          ) -> collections.abc.Iterator[str]:
    """Yield each item once, when it first comes."""
    seen = set()
    for item in items:
        if item not in seen:
            seen.add(item)
            yield item


class _OverError(Exception):
    """Raised if the time or the steps of a search are over."""

# SPDX-License-Identifier: Apache-2.0
"""A host at one step of a plan: what is free there, and what would fit."""

import collections
import collections.abc
import dataclasses
import functools
import itertools

from nova_accel.core.capacity import fit
from nova_accel.core.capacity import room
from nova_accel.core.capacity import view
from nova_accel.core.moves import fleet as fleets
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget

# As for the room of hosts: a search that takes more steps gives up.
_MAX_STEPS = 2_500

#: Units by provider.
Units = collections.abc.Mapping[str, int]
#: Ways to move, each with the request then, and the models that it requires of
#: devices.
Ways = tuple[tuple[str, flavor_request.Request, frozenset[str]], ...]


@dataclasses.dataclass(frozen=True)
class Arrival:
    """What a server would get on a host.

    :param way: how it gets there, live or cold
    :param left: sorts hosts: the best one has the least room left
    """

    way: str
    units: tuple[tuple[str, int], ...]
    left: tuple[float, float] = 0., 0.


class Nodes:
    """Nodes, one for each host and the servers on it, however they got there.

    :param fleet: the present state
    :param check: called before each new one; what it raises passes through
    """

    def __init__(self, fleet: fleets.Fleet, check: collections.abc.Callable[
            [], None] = lambda: None) -> None:
        self.fleet, self._check = fleet, check
        self._known: dict[tuple[str, frozenset[str], frozenset[
            tuple[str, Arrival]]], Node] = {}

    def of(self, name: str, gone: frozenset[str] = frozenset(),
           come: frozenset[tuple[str, Arrival]] = frozenset()) -> 'Node':
        """Return a host.

        :param gone: uuids of the present servers that have left it
        :param come: uuids of other servers, and what they got
        """
        key = name, gone, come
        if key not in self._known:
            self._check()
            self._known[key] = Node(self, name, gone, come)
        return self._known[key]


class Node:
    """A host and the servers on it. Equal ones are identical.

    :param nodes: has all of them; the other parameters are those of
        :meth:`Nodes.of`
    """

    def __init__(self, nodes: Nodes, name: str, gone: frozenset[str],
                 come: frozenset[tuple[str, Arrival]]) -> None:
        self._nodes, self._gone = nodes, gone
        self._come = dict(come)
        self.fleet = nodes.fleet
        self.host = self.fleet.hosts[name]
        self._arrivals: dict[tuple[flavor_request.Request, Ways],
                             Arrival | None] = {}
        self._rooms: dict[room.Rooms, int] = {}
        self._ways: dict[str, Ways] = {}
        self._amounts: dict[str, list[int]] = {}
        self._vacated: dict[collections.abc.Hashable, tuple[
            int, list[tuple[str, ...]]]] = {}

    @property
    def name(self) -> str:
        return self.host.name

    @functools.cached_property
    def servers(self) -> tuple[str, ...]:
        """The uuids of the servers with devices."""
        return (*(uuid for uuid in self.fleet.on[self.name]
                  if uuid not in self._gone), *sorted(self._come))

    @functools.cached_property
    def movable(self) -> tuple[str, ...]:
        """The uuids of those that can move."""
        return tuple(uuid for uuid in self.servers
                     if not self.fleet.servers[uuid].obstacle)

    def without(self, servers: collections.abc.Iterable[str]) -> 'Node':
        """Return the host after servers have left it."""
        servers = frozenset(servers)
        return self._nodes.of(
            self.name, self._gone | (servers - self._come.keys()),
            frozenset((uuid, arrival) for uuid, arrival in self._come.items()
                      if uuid not in servers))

    def having(self, uuid: str, arrival: Arrival) -> 'Node':
        """Return the host after a server has come."""
        return self._nodes.of(self.name, self._gone, frozenset(
            (*self._come.items(), (uuid, arrival))))

    def held(self, uuid: str) -> Units:
        """Return the units that a server here has."""
        return (dict(self._come[uuid].units) if uuid in self._come
                else self.fleet.held(uuid).units)

    @functools.cached_property
    def units(self) -> fit.Units:
        """All units, free or not."""
        change = self._change(lambda uuid: self.fleet.held(uuid).units)
        for name in self.host.kept_back:
            del change[name]
        for arrival in self._come.values():
            change.subtract(dict(arrival.units))
        return tuple(dataclasses.replace(
            units, free=units.free + change[units.provider])
            if units.provider in change else units
            for units in self.host.units)

    @functools.cached_property
    def resources(self) -> collections.Counter[str]:
        """Free amounts of the host's own resources."""
        found = self._change(lambda uuid: self.fleet.held(uuid).resources)
        found.update(self.host.resources)
        for uuid in self._come:
            found.subtract(self.fleet.held(uuid).resources)
        return found

    def _change(self, of: collections.abc.Callable[[str], Units],
                ) -> collections.Counter[str]:
        """Return what the servers that have left had."""
        found: collections.Counter[str] = collections.Counter()
        for uuid in self._gone:
            found.update(of(uuid))
        return found

    @functools.cached_property
    def view(self) -> view.View:
        """What the host looks like."""
        return view.canonical(self.units, self.host.links)

    def free(self, resource_class: str) -> int:
        """Return the number of free units of a class."""
        return self._free[resource_class]

    @functools.cached_property
    def _free(self) -> collections.Counter[str]:
        found: collections.Counter[str] = collections.Counter()
        for units in self.units:
            found[units.resource_class] += units.free
        return found

    def can_get(self, counts: collections.abc.Mapping[str, int],
                most: int) -> bool:
        """Whether so many units may be free if some servers leave.

        This needs nothing that has to be read.

        :param counts: by resource class
        :param most: how many servers may leave
        """
        return all(self.free(name) + sum(self._largest(name)[:most]) >= amount
                   for name, amount in counts.items())

    def _largest(self, resource_class: str) -> list[int]:
        """Return how many units servers ask for, the largest first."""
        if resource_class not in self._amounts:
            self._amounts[resource_class] = sorted((
                self.fleet.counts(uuid).get(resource_class, 0)
                for uuid in self.movable), reverse=True)
        return self._amounts[resource_class]

    def arrival(self, uuid: str, source: 'Node') -> Arrival | None:
        """Return what a server would get here, None if it does not fit.

        :param source: the host that it is on
        """
        server = self.fleet.servers[uuid]
        resources = self.fleet.held(uuid).resources
        if any(self.resources[name] < amount
               for name, amount in resources.items()):
            return None
        ways = source.ways(uuid)
        key = server.wanted, ways
        if key not in self._arrivals:
            self._arrivals[key] = next(filter(None, (
                self._fit(server, *way) for way in ways)), None)
        return self._arrivals[key]

    def _fit(self, server: fleets.Server, way: str,
             wanted: flavor_request.Request,
             models: frozenset[str]) -> Arrival | None:
        """Choose devices as nova-scheduler does.

        :param wanted: its request for this way
        :param models: if there are any, those of the devices must be among
            them
        """
        counts = self.fleet.counts(server.uuid)
        if any(self.free(name) < amount for name, amount in counts.items()):
            return None
        units = tuple(each for each in self.units
                      if fleets.models(each) <= models or not models)
        found = fit.fit(wanted, counts, units, self.host.links, True,
                        search_budget.Budget(most=_MAX_STEPS),
                        with_reason=False)
        if found.arranged.objection:
            return None
        return Arrival(way, tuple(sorted(found.taken.items())),
                       (found.room.left, found.room.broken))

    def ways(self, uuid: str) -> Ways:
        """Return how a server here can move, the preferred way first."""
        if uuid not in self._ways:
            server = self.fleet.servers[uuid]
            models = self._models_if_live(uuid)
            self._ways[uuid] = tuple(
                (way, self._wanted_if_live(uuid), models)
                if way == fleets.LIVE else (way, server.wanted, frozenset())
                for way in server.ways if way != fleets.LIVE or models)
        return self._ways[uuid]

    def _wanted_if_live(self, uuid: str) -> flavor_request.Request:
        """Return the request of a server that keeps its alternative."""
        wanted, held = self.fleet.servers[uuid].wanted, self.held(uuid)
        if not wanted.alternatives:
            return wanted
        found = arrange.arrange(wanted.groups, [
            dataclasses.replace(each, free=held[each.provider])
            for each in self.host.units if each.provider in held])
        return (wanted if found.objection else
                wanted.pinned(found.alternative))

    def _models_if_live(self, uuid: str) -> frozenset[str]:
        """Return the models of a server's devices; none if it moves cold.

        Which of its devices is which is not known here, so all devices of a
        class must be alike.
        """
        units = self.held(uuid)
        held = [each for each in self.host.units if each.provider in units]
        models = frozenset().union(*map(fleets.models, held))
        if (self.fleet.held(uuid).live
                and not self.fleet.servers[uuid].wanted.gpu_cliques
                and len(models) <= len({each.resource_class
                                        for each in held})):
            return models
        return frozenset()

    def room(self, rooms: room.Rooms) -> int:
        """Return how many more servers fit here, one after the other.

        :param rooms: those of hosts for these servers
        """
        if rooms not in self._rooms:
            self._rooms[rooms] = rooms.of(self.view).servers
        return self._rooms[rooms]

    def vacated(self, what: collections.abc.Hashable,
                counts: collections.abc.Mapping[str, int], most: int,
                is_enough: collections.abc.Callable[['Node'], bool],
                ) -> list[tuple[str, ...]]:
        """Return the smallest sets of servers whose leaving is enough.

        No set contains another one. Of sets that look alike, one is returned.

        :param what: what it is enough for, to which the answer is remembered
        :param counts: the units by resource class that have to be free
        :param most: the limit of a set's size
        :param is_enough: tells this of the host without the servers
        """
        if not self.can_get(counts, most):
            return []
        known, found = self._vacated.get(what, (-1, []))
        if known < most:
            found = self._smallest(counts, most, is_enough)
            self._vacated[what] = most, found
        return [servers for servers in found if len(servers) <= most]

    def _smallest(self, counts: collections.abc.Mapping[str, int], most: int,
                  is_enough: collections.abc.Callable[['Node'], bool],
                  ) -> list[tuple[str, ...]]:
        """Return the sets of :meth:`vacated`."""
        found: list[tuple[str, ...]] = []
        enough: list[collections.Counter[fleets.Look]] = []
        for size in range(min(most, len(self.movable)) + 1):
            if () in found:
                break
            for servers in self._combinations(size):
                if any(self.free(name) + sum(
                        self.fleet.counts(uuid).get(name, 0)
                        for uuid in servers) < amount
                        for name, amount in counts.items()):
                    continue
                looks = collections.Counter(map(self._look, servers))
                if not any(other <= looks for other in enough) and is_enough(
                        self.without(servers)):
                    found.append(servers)
                    enough.append(looks)
        return found

    @functools.cached_property
    def _alike(self) -> dict[fleets.Look, list[str]]:
        """The servers that can move, by their look."""
        found = collections.defaultdict(list)
        for uuid in self.movable:
            found[self._look(uuid)].append(uuid)
        return dict(found)

    def _combinations(self, size: int,
                      ) -> collections.abc.Iterator[tuple[str, ...]]:
        """Yield sets of servers that can leave, one of those that are alike.
        """
        alike = self._alike
        for looks in itertools.combinations_with_replacement(alike, size):
            counts = collections.Counter(looks)
            if all(count <= len(alike[look])
                   for look, count in counts.items()):
                yield tuple(uuid for look, count in counts.items()
                            for uuid in alike[look][:count])

    def _look(self, uuid: str) -> fleets.Look:
        """Return all that tells a server from others on this host."""
        server, held = self.fleet.servers[uuid], self.fleet.held(uuid)
        return (server.wanted, server.ways, server.zone, server.group,
                held.live, frozenset(held.resources.items()),
                frozenset(self.held(uuid).items()))

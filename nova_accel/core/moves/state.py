# SPDX-License-Identifier: Apache-2.0
"""Where all servers are at one step of a plan, and who may go where."""

import collections.abc

from nova_accel.core.moves import fleet as fleets
from nova_accel.core.moves import node


class State:
    """Where all servers are.

    :param nodes: the present state
    :param changed: hosts that are different now, by name
    :param moved: hosts of the servers that were moved, by uuid
    """

    def __init__(self, nodes: node.Nodes,
                 changed: collections.abc.Mapping[str, node.Node] = {},
                 moved: collections.abc.Mapping[str, str] = {}) -> None:
        self.fleet = nodes.fleet
        #: The hosts that are different now, by name.
        self.changed = changed
        self._nodes, self._moved = nodes, moved

    @property
    def key(self) -> frozenset[node.Node]:
        """What tells this state from others of the fleet."""
        return frozenset(self.changed.values())

    def at(self, name: str) -> node.Node:
        """Return a host as it is now."""
        return self.changed.get(name) or self._nodes.of(name)

    def before(self, name: str) -> node.Node:
        """Return a host as it was before any move."""
        return self._nodes.of(name)

    def hosts(self) -> collections.abc.Iterator[node.Node]:
        """Yield all hosts."""
        return map(self.at, self.fleet.hosts)

    def host_of(self, uuid: str) -> str:
        """Return the name of the host of a server."""
        return self._moved.get(uuid, self.fleet.servers[uuid].host)

    def arrival(self, uuid: str, at: node.Node) -> node.Arrival | None:
        """Return what a server would get on another host.

        It is None if the server may not go there.

        :param at: a host of this state, or after servers have left it
        """
        if not self.may_go(uuid, at.host) or not self._has_place(uuid, at):
            return None
        return at.arrival(uuid, self.at(self.host_of(uuid)))

    def may_go(self, uuid: str, host: fleets.Host) -> bool:
        """Whether a server may go to another host, whoever is there."""
        server = self.fleet.servers[uuid]
        if (server.obstacle or host.closed
                or server.zone not in ('', host.zone)):
            return False
        # Nova keeps a server on the present hosts of such a group.
        hosts = self._hosts_of_group(server)
        return hosts is None or host.name in hosts

    def look(self, uuid: str) -> fleets.Look:
        """Return all that tells which hosts a server may go to."""
        server = self.fleet.servers[uuid]
        source = self.at(self.host_of(uuid))
        return (server.wanted, source.ways(uuid), server.zone, server.group,
                self._hosts_of_group(server),
                frozenset(self.fleet.held(uuid).resources.items()))

    def _hosts_of_group(self, server: fleets.Server) -> frozenset[str] | None:
        """Return the only hosts that affinity permits, None for all."""
        if server.group is None or server.group.policy != fleets.AFFINITY:
            return None
        return frozenset(self.host_of(member)
                         for member in server.group.members
                         if member in self.fleet.servers)

    def _has_place(self, uuid: str, at: node.Node) -> bool:
        """Whether anti-affinity permits a server on a host."""
        group = self.fleet.servers[uuid].group
        if group is None or group.policy != fleets.ANTI_AFFINITY:
            return True
        others = group.members - {uuid}
        return len(others.intersection(at.servers)) + sum(
            self.fleet.servers[member].host == at.name
            for member in others & self.fleet.without_devices) < group.most

    def after(self, uuid: str, destination: str,
              arrival: node.Arrival) -> 'State':
        """Return the state after a server has moved."""
        source = self.host_of(uuid)
        changed = {**self.changed,
                   source: self.at(source).without([uuid]),
                   destination: self.at(destination).having(uuid, arrival)}
        return State(self._nodes, {
            name: found for name, found in changed.items()
            if found is not self._nodes.of(name)},
            {**self._moved, uuid: destination})

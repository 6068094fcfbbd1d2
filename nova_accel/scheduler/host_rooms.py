# SPDX-License-Identifier: Apache-2.0
"""How many servers of a request fit on a host that passes the filters."""

import collections
import collections.abc

from nova_accel.core import host_domain
from nova_accel.core.capacity import room
from nova_accel.core.capacity import summaries
from nova_accel.core.placement import inventory
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import search_budget
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices


class HostRooms:
    """The room of hosts for the servers of a request.

    :param servers: their number; no host has room for more
    :param limit: returns how many servers may be on the host of that name
    """

    def __init__(self, wanted: flavor_request.Request, servers: int,
                 limit: collections.abc.Callable[[str], float]):
        self._wanted = wanted
        self._servers = servers
        self._limit = limit
        self._steps = search_budget.Budget(
            search_budget.REQUEST_STEPS, least=search_budget.FIRST_STEPS,
            most=search_budget.FIRST_STEPS)
        self._rooms: dict[frozenset[str], room.Rooms] = {}

    def of(self, host_state) -> host_domain.Room:
        """Return the room of a host, before a server of the request has it.

        :param host_state: nova.scheduler.host_manager.HostState
        """
        most = int(min(self._servers, self._limit(host_state.host)))
        answer = candidates.of(host_state)
        if answer is None:
            return host_domain.Room(most, most)
        most = int(min(most, sum(
            answer.times(candidate['allocations'])
            for candidate in host_state.allocation_candidates)))
        return host_domain.Room(
            min(most, self._of_devices(host_state, answer, most)), most)

    def _of_devices(self, host_state, answer, most: int) -> int:
        root, classes = host_state.uuid, self._wanted.classes
        counts = choose_devices.units(
            inventory.counting(root, classes),
            host_state.allocation_candidates[0]['allocations'])
        if not counts or most <= 1:
            return most
        rooms = self._rooms.setdefault(frozenset(counts), room.Rooms(
            self._wanted, counts, self._steps))
        return rooms.of(summaries.view_of(summaries.shape(
            answer.ours(root), root, summaries.Asked(
                classes, self._wanted.all_traits)))).servers

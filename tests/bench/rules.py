# SPDX-License-Identifier: Apache-2.0
"""Rules to choose a host, on simulated hosts with two NUMA nodes of four GPUs.

All rules but one get the devices that nova_accel's solver chooses on a host.
"""

import collections
import collections.abc
import dataclasses
import functools
import random

OURS, SMALLER, FEWEST, MOVES = (
    'nova_accel', 'nova_accel, the smaller node first',
    'Best fit, then the fewest servers', 'Any server can move')
SERVED = 'Served'
#: Why a request is not served.
CAUSES = SCATTERED, NO_ROOM, TOO_FEW = (
    'Room after moves', 'No room even after moves', 'Too few free devices')
OUTCOMES = SERVED, *CAUSES
#: How many of the latest requests are the demand that a rule has seen.
SEEN = 100

ALL, OF_A_NODE = 0xff, 4


@dataclasses.dataclass(frozen=True)
class Option:
    """A server on a host.

    :param before, after: bit masks of the free devices
    :param left, broken: as of :class:`.fragmentation.Room`
    :param servers: how many servers the host has already
    """

    before: int
    after: int
    left: float
    broken: float
    servers: int


class Fleet:
    """Hosts, each as a bit mask of free devices and a number of servers."""

    def __init__(self, hosts: int, rule: str, chance: random.Random):
        self._rule, self._chance = rule, chance
        self._hosts = [(ALL, 0)] * hosts
        self._servers: collections.Counter[int] = collections.Counter()
        self._seen: collections.deque[int] = collections.deque(maxlen=SEEN)
        #: The latest requests, by size.
        self.demand: collections.Counter[int] = collections.Counter()

    def whole(self) -> int:
        return self._hosts.count((ALL, 0))

    def place(self, size) -> tuple[int, int, int] | None:
        """Return the size, a host and the bit mask of its devices."""
        self._seen.append(size)
        self.demand = collections.Counter(self._seen)
        found = (self._choose(size) if self._rule != MOVES else
                 (size, 0, 0) if self.cause(size) == SCATTERED else None)
        if found:
            self._claim(*found, 1)
        return found

    def release(self, size, host, taken) -> None:
        self._claim(size, host, taken, -1)

    def cause(self, size) -> str:
        """Return why a request is not served."""
        wanted = self._servers + collections.Counter([size])
        if packs(wanted, len(self._hosts)):
            return SCATTERED
        return (TOO_FEW if _devices(wanted) > 8 * len(self._hosts)
                else NO_ROOM)

    def _choose(self, size):
        options = {key: option for key in set(self._hosts)
                   if (option := _option(*key, size))}
        if self._rule == SMALLER:
            options = {key: _smaller_first(option, size)
                       for key, option in options.items()}
        costs = dict(zip(options, self._costs(options.values()), strict=True))
        least = min(costs.values(), default=0)
        hosts = [host for host, key in enumerate(self._hosts)
                 if key in costs and costs[key] - least < 1e-6]
        if not hosts:
            return None
        host = self._chance.choice(hosts)
        option = options[self._hosts[host]]
        return size, host, option.before & ~option.after

    def _costs(self, options) -> list[float]:
        if self._rule in COSTS:
            return [COSTS[self._rule](option, self) for option in options]
        return _our_costs(options)

    def _claim(self, size, host, taken, sign):
        self._servers[size] += sign
        free, servers = self._hosts[host]
        self._hosts[host] = free ^ taken, servers + sign


def _our_costs(options) -> list[float]:
    from nova_accel import conf
    from nova_accel.scheduler import host_weights
    multipliers = {option.name: option.default for option in conf.OPTIONS}
    return [-weight for weight in host_weights.sums(
        options, host_weights.parts([0] * len(options), options),
        lambda _option, name: multipliers[name])]


def _nodes(mask) -> tuple[int, int]:
    """Return the free devices of both NUMA nodes, the most first."""
    return tuple(sorted(map(int.bit_count, divmod(mask, 1 << OF_A_NODE)),
                        reverse=True))


def _best_fit(option, fleet):
    return option.left


def _by_node(option, fleet):
    """The fullest node, then the fullest host (best fit by partition)."""
    before, after = _nodes(option.before), _nodes(option.after)
    taken = collections.Counter(before) - collections.Counter(after)
    return 100 * sum(taken.elements()) + option.left


def _gradient(option, fleet):
    """The least growth of fragmentation (Weng et al., ATC 2023).

    That is the number of free devices of a host that a request cannot use,
    weighted by the requests seen.
    """
    def fragments(mask):
        most, least = _nodes(mask)
        return (most + least) * sum(
            count for size, count in fleet.demand.items()
            if size > (most if size <= OF_A_NODE else most + least))

    return (fragments(option.after) - fragments(option.before)
            + option.left / 1000)


def _reserve(option, fleet):
    """Keep as many whole hosts, and then nodes, as requests for eight."""
    before, after = _nodes(option.before), _nodes(option.after)
    breaks_host = option.before == ALL and option.after > 0
    breaks_node = (before.count(OF_A_NODE) > after.count(OF_A_NODE)
                   and after[0] > 0)
    scarce = fleet.whole() <= fleet.demand[8]
    return option.left + scarce * 100 * (2 * breaks_host + breaks_node)


def _fewest(option, fleet):
    return option.left + option.servers / 100


COSTS = {'Best fit': _best_fit, 'Best fit by node': _by_node,
          'Fragmentation gradient': _gradient,
          'Reserve of whole hosts': _reserve,
          FEWEST: _fewest}
NAMES = OURS, SMALLER, *COSTS, MOVES


@functools.cache
def _option(mask: int, servers: int, size: int) -> Option | None:
    """Return what nova_accel's solver chooses."""
    from nova_accel.core import model
    from nova_accel.core.capacity import fit
    from nova_accel.core.request import flavor_request
    from nova_accel.core.solver import arrange
    from nova_accel.core.solver import search_budget
    from tests.bench import fleet
    from tests.functional import cloud
    machine = fleet.machine()
    spec = fleet.request(size, 'required' if size <= OF_A_NODE
                         else 'preferred')
    found = fit.fit(
        flavor_request.Request(spec.flavor.extra_specs), {cloud.GPU: size},
        tuple(arrange.AvailableUnits(
            str(number), cloud.GPU, frozenset(), mask >> number & 1,
            model.Place.at(device.location, str(device.address)), 1)
            for number, device in enumerate(machine.devices)),
        machine.links, True, search_budget.Budget())
    if found.arranged.objection:
        return None
    return Option(mask, mask & ~sum(1 << int(number)
                                    for number in found.taken),
                  found.room.left, found.room.broken, servers)


def _smaller_first(option: Option, size: int) -> Option:
    """Return other devices for a server that needs both nodes of a host."""
    for node in (0xf, 0xf0):
        rest = option.before & ~node
        if (size > OF_A_NODE and option.before & node == node
                and 0 < rest.bit_count() < OF_A_NODE):
            return dataclasses.replace(
                option, after=node & node << size - rest.bit_count())
    return option


def _devices(servers) -> int:
    return sum(size * count for size, count in servers.items())


def packs(servers: collections.abc.Mapping[int, int], hosts: int) -> bool:
    """Whether so many servers of each size fit, if each can be anywhere.

    Up to four devices are on one node. A server with five to seven devices
    fills a node, and leaves three to one on the other. Three devices waste
    nothing there, so they go there first, then two.
    """
    whole = 2 * (hosts - sum(servers[size] for size in (5, 6, 7, 8)))
    threes = servers[3] - servers[5]
    pairs = servers[2] - servers[6] + min(0, threes)
    return (_devices(servers) <= 8 * hosts
            and servers[4] + max(0, threes) + -(-max(0, pairs) // 2) <= whole)

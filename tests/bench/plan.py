# SPDX-License-Identifier: Apache-2.0
"""Benchmark of plans of moves, on hosts that are nearly full.

The hosts have eight GPUs, four on each NUMA node and two behind each PCIe
switch. Servers with one to eight GPUs come until no more fit; random ones
leave until the load is reached. What Placement and Nova would answer is in
memory.
"""

import collections.abc
import dataclasses
import random
import statistics
import time

from nova_accel.core import model
from nova_accel.core.capacity import fit
from nova_accel.core.capacity import room
from nova_accel.core.moves import fleet as fleets
from nova_accel.core.moves import goals
from nova_accel.core.moves import search
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget
from tests.bench import frame
from tests.bench import report as report_

_GPU = 'CUSTOM_GPU'
_DEVICES = 8

#: By scale: numbers of hosts, and fleets of each.
_SCALES = {frame.QUICK: ((20,), 1), frame.MEDIUM: ((100, 1000), 3),
           frame.FULL: ((100, 1000), 10)}
#: The share of devices that servers have.
_LOADS = (.9, .95)
#: Numbers of GPUs of servers, and how often they are asked for.
_SIZES = {1: 4, 2: 3, 4: 2, 8: 1}
#: The time for each plan, in seconds.
_LIMIT = 60

_EIGHT, _EIGHTS, _DRAIN, _DRAIN_EIGHT = _GOALS = (
    'room for one server with eight', 'room for four servers with eight',
    'drain of a host', 'drain of a host that has a server with eight')


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    sizes, fleets_ = _SCALES[scale]
    cells = []
    for hosts in sizes:
        for load in _LOADS:
            for seed in range(fleets_):
                booked = _booked(hosts, load, seed)
                for name in _GOALS:
                    cells.append({'hosts': hosts, 'load': load, 'goal': name,
                                  **_measure(booked, name, seed)})
                    say(str(cells[-1]))
    return {'cells': cells}


def _measure(booked, name, seed) -> dict:
    reads: list[int] = []

    def read(servers):
        reads.append(len(servers))
        return {server.uuid: booked.held[server.uuid] for server in servers}

    begin = time.perf_counter()
    cloud = fleets.Fleet(booked.hosts.values(), booked.servers.values(), read)
    found = search.Search(cloud, _goal(cloud, name, seed), lambda: 1 - (
        time.perf_counter() - begin) / _LIMIT).run()
    return {'seconds': round(time.perf_counter() - begin, 4),
            'moves': None if found.moves is None else len(found.moves),
            'fewest': found.is_least, 'read': sum(reads),
            'servers': len(booked.servers)}


def _goal(cloud, name, seed) -> goals.Goal:
    if name in (_EIGHT, _EIGHTS):
        return goals.Room(room.Rooms(_request(_DEVICES), cloud.classes),
                          4 if name == _EIGHTS else 1)
    return goals.Drain(random.Random(seed).choice([
        host for host, servers in cloud.on.items()
        if servers and (len(servers) == 1) == (name == _DRAIN_EIGHT)]))


def _request(size: int) -> flavor_request.Request:
    # Four of eight are on one NUMA node.
    numa = device_profile.REQUIRED if size <= 4 else device_profile.PREFERRED
    return flavor_request.parse(flavor_specs.expand(device_profile.Profile(
        f'gpu-{size}', (device_profile.Group({_GPU: 1}, {}, numa),) * size),
        {}))


@dataclasses.dataclass
class _Booked:
    """Hosts and servers, and what the servers have."""

    hosts: dict[str, fleets.Host]
    servers: dict[str, fleets.Server]
    held: dict[str, fleets.Held]

    def boot(self, host: str, size: int) -> None:
        units = self.hosts[host].units
        found = fit.fit(_request(size), {_GPU: size}, units, model.Links(),
                        True, search_budget.Budget(), with_reason=False)
        if not found.arranged.objection:
            uuid = f's{len(self.servers)}'
            self.servers[uuid] = fleets.Server(uuid, uuid, host,
                                               _request(size))
            self.held[uuid] = fleets.Held(dict(found.taken))
            self._take(host, found.taken, 1)

    def delete(self, uuid: str) -> None:
        self._take(self.servers.pop(uuid).host, self.held.pop(uuid).units, -1)

    def _take(self, host, taken, sign) -> None:
        one = self.hosts[host]
        self.hosts[host] = dataclasses.replace(one, units=tuple(
            dataclasses.replace(units, free=units.free - sign * taken.get(
                units.provider, 0)) for units in one.units))


def _booked(hosts: int, load: float, seed: int) -> _Booked:
    chance = random.Random(seed)
    booked = _Booked({f'host{number}': _host(f'host{number}')
                      for number in range(hosts)}, {}, {})
    for name in booked.hosts:
        for size in chance.choices(list(_SIZES), list(_SIZES.values()), k=8):
            booked.boot(name, size)
        for _rest in range(_DEVICES):
            booked.boot(name, 1)
    left = [*booked.servers]
    chance.shuffle(left)
    # Whole hosts do not become free.
    left.sort(key=lambda uuid: len(booked.held[uuid].units) == _DEVICES,
              reverse=True)
    held = hosts * _DEVICES
    while held > load * hosts * _DEVICES:
        held -= len(booked.held[left[-1]].units)
        booked.delete(left.pop())
    return booked


def _host(name: str) -> fleets.Host:
    return fleets.Host(name, tuple(arrange.AvailableUnits(
        f'{name} {number}', _GPU, frozenset({fleets.model_trait('H100')}), 1,
        model.Place(number // 4, f'r{number // 4}', f's{number // 2}',
                    f'd{number}'), 1) for number in range(_DEVICES)))


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = figures['cells']
    most = max(cell['hosts'] for cell in cells)
    last = [cell for cell in cells if cell['hosts'] == most
            and cell['load'] == min(_LOADS)]
    found = [cell for cell in last if cell['moves'] is not None]
    return report_.Report(
        'Plans of moves',
        (f'On {most:,} hosts with eight GPUs each, of which servers have '
         f'{100 * min(_LOADS):.0f} %, a plan takes at most '
         f'**{report_.significant(max(cell["seconds"] for cell in last))} '
         f's**. {len(found)} of {len(last)} plans were found, and '
         f'{sum(cell["fewest"] for cell in found)} are certain to have the '
         'fewest moves.',
         'Servers with one, two, four or eight GPUs filled the hosts; random '
         'ones with up to four have left. These need their GPUs on one NUMA '
         'node. The '
         'answers of Placement and Nova are in memory. Placement is asked '
         'about each server in the column *Read*. The search ends after '
         f'{_LIMIT} seconds.'),
        (_table(cells),))


def _table(cells) -> report_.Table:
    keys = list(dict.fromkeys((cell['hosts'], cell['load'], cell['goal'])
                              for cell in cells))

    def row(key):
        of = [cell for cell in cells
              if (cell['hosts'], cell['load'], cell['goal']) == key]
        moves = [cell['moves'] for cell in of if cell['moves'] is not None]
        hosts, load, goal = key
        return (f'{hosts:,}', f'{100 * load:.0f} %', goal,
                f'{len(moves)} of {len(of)}',
                f'{min(moves)} to {max(moves)}' if moves else '',
                str(sum(cell['fewest'] for cell in of
                        if cell['moves'] is not None)),
                *(report_.significant(how(cell['seconds'] for cell in of))
                  for how in (statistics.median, max)),
                f'{max(cell["read"] for cell in of):,}')
    return report_.Table(
        'Plans', ('Hosts', 'Load', 'Goal', 'Found', 'Moves',
                  'Certainly the fewest', 'Median s', 'Most s', 'Read'),
        tuple(map(row, keys)))

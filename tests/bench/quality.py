# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a day of random requests: the share that is served.

It compares nova_accel (the shortlist, the real filter and all real weighers)
with Nova's weighers and the first free devices, with a random choice, and with
an upper bound. All get the same requests. :mod:`tests.bench.fleet` keeps the
allocations.
"""

import collections
import collections.abc
import contextlib
import heapq
import logging
import random
import statistics

from tests.bench import frame
from tests.bench import report as report_

# By scale: hosts, seeds, and loads. A load is the requested share of devices.
_SCALES = {frame.QUICK: (10, 1, (0.9,)), frame.MEDIUM: (200, 1, (0.9,)),
           frame.FULL: (200, 3, (0.8, 0.9, 1.))}

OURS, PREFERRED, SPREAD, STACKED, FIRST, CHANCE = (
    'ours', 'preferred', 'spread', 'stacked', 'first', 'chance')
_NAMES = {OURS: 'Filter and weigher', PREFERRED: 'The same, node preferred',
          SPREAD: 'Filter alone', STACKED: 'First candidate, stacked',
          FIRST: 'First candidate', CHANCE: 'At random'}
_BOUND = 'Upper bound'

#: Hours of the day, hours before it, and mean lifetime of a server in hours.
HOURS, BEFORE, LIFE = 24, 8, 4
_SIZES = range(1, 9)

_NOVAS = 'nova.scheduler.weights.all_weighers'
_OURS = 'nova_accel.scheduler.weigher.AcceleratorWeigher'


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    hosts, seeds, loads = _SCALES[scale]
    from tests.bench import bound
    cells, bounds = [], []
    for load in loads:
        for seed in range(seeds):
            day = arrivals(seed, load * hosts * 8)
            bounds.append({'load': load, 'seed': seed,
                           **bound.shares(day, hosts, 8)})
            say(f'load {load}, seed {seed}, bound: {bounds[-1]}')
            for side in _NAMES:
                cells.append({'side': side, 'load': load, 'seed': seed,
                              **_day(hosts, side, day, seed)})
                say(f'load {load}, seed {seed}, {side}: '
                    f'{_share(cells[-1]["asked"], cells[-1]["served"]):.1%}')
    return {'hosts': hosts, 'cells': cells, 'bounds': bounds}


def arrivals(seed: int, devices: float,
             sizes: collections.abc.Sequence[int] = _SIZES,
             ) -> list[tuple[float, int, float]]:
    """Return start in hours, number of devices and end of each request.

    :param devices: the number that is requested at a time
    :param sizes: of requests, each equally likely
    """
    rng = random.Random(seed)
    rate = devices / (statistics.mean(sizes) * LIFE)
    found, now = [], -float(BEFORE)
    while (now := now + rng.expovariate(rate)) < HOURS:
        found.append((now, rng.choice(sizes),
                      now + rng.expovariate(1 / LIFE)))
    return found


def _day(hosts, side, requests, seed) -> dict:
    """Return counts of requests by size, and means of free shares."""
    from tests.bench import fleet as fleet_
    fleet = fleet_.Fleet(hosts)
    asked, served, near, keepable, kept = (
        collections.Counter() for _each in range(5))
    hours: collections.Counter[str] = collections.Counter()
    whole, nodes, together = [], [], []
    leaving: list[tuple[float, int, tuple]] = []
    with _chooser(side, seed) as choose:
        for number, (now, size, until) in enumerate(requests):
            while leaving and leaving[0][0] <= now:
                fleet.release(*heapq.heappop(leaving)[2])
            can_be_near = now >= 0 and _can_be_near(fleet, size)
            found = choose(fleet, size)
            if found:
                fleet.claim(*found)
                heapq.heappush(leaving, (until, number, found))
            if now < 0:
                continue
            asked[size] += 1
            served[size] += bool(found)
            is_near = bool(found) and _is_near(*found)
            near[size] += is_near
            if found and can_be_near:
                keepable[size] += 1
                kept[size] += is_near
            hours['asked'] += size * (until - now)
            hours['served'] += bool(found) * size * (until - now)
            state = _whole(fleet)
            whole.append(state[0])
            nodes.append(state[1])
            together.append(state[2])
    return {'asked': asked, 'served': served, 'near': near,
            'keepable': keepable, 'kept': kept, 'hours': hours,
            'whole_hosts': statistics.mean(whole),
            'whole_nodes': statistics.mean(nodes),
            'free_in_whole_hosts': statistics.mean(together)}


@contextlib.contextmanager
def _chooser(side, seed):
    """Yield a function that chooses a host and devices of a fleet."""
    rng = random.Random(seed)
    if side == CHANCE:
        yield lambda fleet, size: _by_chance(fleet, size, rng)
        return
    import nova.conf
    conf = nova.conf.CONF
    conf([], project='nova', default_config_files=[])
    # The options to fill hosts one after the other.
    stacked = {'ram_weight_multiplier': -1., 'cpu_weight_multiplier': -1.,
               'disk_weight_multiplier': -1.} if side == STACKED else {}
    for name, value in stacked.items():
        conf.set_override(name, value, 'filter_scheduler')
    try:
        yield _by_nova(side)
    finally:
        for name in stacked:
            conf.clear_override(name, 'filter_scheduler')


def _by_nova(side):
    from nova.scheduler import filters
    from nova.scheduler import weights

    from nova_accel.scheduler import filter as filter_
    from nova_accel.scheduler import shortlist
    from tests.bench import fleet as fleet_
    handler = weights.HostWeightHandler()
    weighers = [weigher() for weigher in handler.get_matching_classes(
        [_NOVAS, *([_OURS] if side in (OURS, PREFERRED) else [])])]
    ours = ([filter_.AcceleratorFilter()]
            if side in (OURS, PREFERRED, SPREAD) else [])
    # Do not log each request that finds no host.
    logging.getLogger('nova.filters').setLevel(logging.WARNING)

    def rounds(fleet, size, spec):
        states = fleet.states(size)
        if side not in (OURS, PREFERRED):
            yield states
            return
        for examined in shortlist.rounds(
                spec, ['server'],
                {state.uuid: state.allocation_candidates for state in states},
                fleet.summaries):
            roots = {summary['root_provider_uuid']
                     for summary in examined.values()}
            yield [state for state in states if state.uuid in roots]

    def choose(fleet, size):
        spec = fleet_.request(size, 'preferred' if size > fleet_.OF_A_NODE
                              or side == PREFERRED else 'required')
        for states in rounds(fleet, size, spec):
            states = filters.HostFilterHandler().get_filtered_objects(
                ours, states, spec)
            if states:
                break
        else:
            return None
        best = handler.get_weighed_objects(weighers, states, spec)[0].obj
        host = fleet.by_root[best.uuid]
        return host, (fleet_.chosen(best) if ours
                      else fleet.free(host)[:size])

    return choose


def _by_chance(fleet, size, rng):
    hosts = fleet.ask(size)
    if not hosts:
        return None
    host = rng.choice(hosts)
    return host, rng.sample(fleet.free(host), size)


def _is_near(host, devices) -> bool:
    """Return whether devices that fit on one NUMA node are on one."""
    return len(devices) > 4 or len(
        {host.devices[device] for device in devices}) == 1


def _can_be_near(fleet, size) -> bool:
    """Return whether a host has so many free devices on one NUMA node."""
    return 1 < size <= 4 and any(
        max(collections.Counter(
            host.devices[device] for device in fleet.free(host)).values(),
            default=0) >= size for host in fleet.hosts)


def _whole(fleet) -> tuple[float, float, float]:
    """Return the shares of free hosts and free nodes.

    Also return the share of the free devices that are on free hosts. All
    devices of a free host or node are free.
    """
    hosts = nodes = free = 0
    for host in fleet.hosts:
        left = fleet.free(host)
        free += len(left)
        hosts += len(left) == len(host.devices)
        nodes += sum(
            count == 4 for count in collections.Counter(
                host.devices[device] for device in left).values())
    return (hosts / len(fleet.hosts), nodes / len(fleet.hosts) / 2,
            hosts * 8 / free if free else 0.)


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = [_counted(cell) for cell in figures['cells']]
    loads = sorted({cell['load'] for cell in cells})

    def mean(side, load, value) -> float:
        return statistics.mean(
            value(cell) for cell in cells
            if (cell['side'], cell['load']) == (side, load))

    return report_.Report(
        'A day of requests',
        (_outcome(loads[-1], mean),
         f'The {figures["hosts"]} hosts have eight GPUs each, four on each '
         f'NUMA node. For {HOURS} hours, servers request one to eight '
         'devices; each number is equally likely. A server lives for '
         f'{LIFE} hours on average (exponential distribution). The {BEFORE} '
         'hours before do not count. The load is the requested share of all '
         'devices at a time. Requests that are not served are not repeated. '
         'Requests for up to four devices require one NUMA node; only the '
         'filter knows NUMA nodes. *Node preferred* requests it as a '
         'preference. *Kept* is the share of servers with their devices on '
         'one node, if a host has so many free devices on one node. The upper '
         'bound is from a linear program that knows all requests in advance '
         'and serves parts of them. A server gets processors, memory and disk '
         'in proportion to its devices. All sides get the same requests. The '
         f'figures are means of {len({cell["seed"] for cell in cells})} days '
         'with different seeds.'),
        tuple(_table(load, mean, [
            bound for bound in figures['bounds'] if bound['load'] == load])
            for load in loads),
        tuple(_plots(loads, mean)))


def _outcome(load, mean) -> str:
    def both(side) -> str:
        return (f'{mean(side, load, _near):.0%} and '
                f'{mean(side, load, _eights):.0%}')

    return (
        f'At a load of {load:.0%}, the filter and the weigher serve '
        f'{mean(OURS, load, _near):.0%} of all requests as requested, and '
        f'{mean(OURS, load, _eights):.0%} of the requests for all eight '
        "devices of a host. Nova's way spreads servers and takes the first "
        f'candidate; it serves {both(FIRST)}. Configured to stack servers, it '
        f'serves {both(STACKED)}: it ignores NUMA nodes, so it can choose '
        f'from more devices. A random choice serves {both(CHANCE)}.')


def _counted(cell) -> dict:
    """Return a cell with sizes as numbers. JSON has them as text."""
    return {**cell, **{name: {int(size): count for size, count
                              in cell[name].items()}
                       for name in ('asked', 'served', 'near', 'keepable',
                                    'kept')}}


def _share(asked, served, sizes=_SIZES) -> float:
    return (sum(served.get(size, 0) for size in sizes)
            / max(1, sum(asked.get(size, 0) for size in sizes)))


def _near(cell) -> float:
    return _share(cell['asked'], cell['near'])


def _eights(cell) -> float:
    return _share(cell['asked'], cell['served'], [8])


_COLUMNS = {
    'Requests served': lambda cell: _share(cell['asked'], cell['served']),
    'Device hours served': lambda cell: (
        cell['hours']['served'] / cell['hours']['asked']),
    'Served as requested': _near,
    'For 8 devices: served': _eights,
    'For 2 to 4 devices: on one node': lambda cell: _share(
        cell['asked'], cell['near'], (2, 3, 4)),
    'Kept': lambda cell: _share(cell['keepable'], cell['kept']),
    'Free hosts': lambda cell: cell['whole_hosts'],
    'Free nodes': lambda cell: cell['whole_nodes'],
    'Free devices on free hosts': lambda cell: cell['free_in_whole_hosts'],
}


def _table(load, mean, bounds) -> report_.Table:
    most = [f'{statistics.mean(bound[name] for bound in bounds):.1%}'
            for name in ('requests', 'hours')]
    return report_.Table(
        f'Load {load:.0%}', ('', *_COLUMNS), (*(
            (name, *(f'{mean(side, load, value):.1%}'
                     for value in _COLUMNS.values()))
            for side, name in _NAMES.items()),
            (_BOUND, *most, *[''] * (len(_COLUMNS) - len(most)))))


def _plots(loads, mean) -> collections.abc.Iterator[report_.Plot]:
    if len(loads) < 2:
        return
    for name, title, value in (
            ('asked', 'Requests served as requested', _near),
            ('eights', 'Requests for eight devices served', _eights),
            ('whole', 'Free devices on hosts without servers',
             _COLUMNS['Free devices on free hosts'])):
        yield report_.Plot(
            name, title, 'load, %', '%', {
                label: [(100 * load, 100 * mean(side, load, value))
                        for load in loads] for side, label in _NAMES.items()},
            log=False)

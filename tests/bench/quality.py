# SPDX-License-Identifier: Apache-2.0
"""A day of random requests: who is served, and what stays whole.

Ours, the shortlist, the real filter and all real weighers, against Nova's own
weighers with the first devices that are free, against chance, and against what
nobody can exceed; all with the same requests. Placement's ledger is kept by
:mod:`tests.bench.fleet`.
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

# Hosts, seeds, and devices asked for at a time, as a part of all.
_SCALES = {frame.QUICK: (10, 1, (0.9,)), frame.MEDIUM: (200, 1, (0.9,)),
           frame.FULL: (200, 3, (0.8, 0.9, 1.))}

OURS, PREFERRED, SPREAD, STACKED, FIRST, CHANCE = (
    'ours', 'preferred', 'spread', 'stacked', 'first', 'chance')
_NAMES = {OURS: 'Filter and weigher', PREFERRED: 'The same, node preferred',
          SPREAD: 'Filter alone', STACKED: 'First candidate, stacked',
          FIRST: 'First candidate', CHANCE: 'At random'}
_BOUND = 'Bound, knowing the future'

#: Hours of the day, hours before it, and how long a server lives on average.
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
            arrivals = _arrivals(seed, load * hosts * 8)
            bounds.append({'load': load, 'seed': seed,
                           **bound.shares(arrivals, hosts, 8)})
            say(f'load {load}, seed {seed}, bound: {bounds[-1]}')
            for side in _NAMES:
                cells.append({'side': side, 'load': load, 'seed': seed,
                              **_day(hosts, side, arrivals, seed)})
                say(f'load {load}, seed {seed}, {side}: '
                    f'{_share(cells[-1]["asked"], cells[-1]["served"]):.1%}')
    return {'hosts': hosts, 'cells': cells, 'bounds': bounds}


def _arrivals(seed, devices) -> list[tuple[float, int, float]]:
    """When, how many devices, and until when; times in hours."""
    rng = random.Random(seed)
    rate = devices / (statistics.mean(_SIZES) * LIFE)
    found, now = [], -float(BEFORE)
    while (now := now + rng.expovariate(rate)) < HOURS:
        found.append((now, rng.choice(_SIZES),
                      now + rng.expovariate(1 / LIFE)))
    return found


def _day(hosts, side, arrivals, seed) -> dict:
    """Requests by size, how many were served, and as they asked; shares."""
    from tests.bench import fleet as fleet_
    fleet = fleet_.Fleet(hosts)
    asked, served, near, keepable, kept = (
        collections.Counter() for _each in range(5))
    hours: collections.Counter[str] = collections.Counter()
    whole, nodes, together = [], [], []
    leaving: list[tuple[float, int, tuple]] = []
    with _chooser(side, seed) as choose:
        for number, (now, size, until) in enumerate(arrivals):
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
    """From a fleet and a number of devices to a host and its devices."""
    rng = random.Random(seed)
    if side == CHANCE:
        yield lambda fleet, size: _by_chance(fleet, size, rng)
        return
    import nova.conf
    conf = nova.conf.CONF
    conf([], project='nova', default_config_files=[])
    # What operators have who want their hosts filled one after the other.
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
    # Of each request that finds no host it has something to say.
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
    """Whether those that fit on one NUMA node are on one."""
    return len(devices) > 4 or len(
        {host.devices[device] for device in devices}) == 1


def _can_be_near(fleet, size) -> bool:
    """Whether some host has that many free devices on one NUMA node."""
    return 1 < size <= 4 and any(
        max(collections.Counter(
            host.devices[device] for device in fleet.free(host)).values(),
            default=0) >= size for host in fleet.hosts)


def _whole(fleet) -> tuple[float, float, float]:
    """Of all hosts, nodes, and free devices: which part is, or is in, a whole
    one."""
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
         f'On {figures["hosts"]} hosts with eight GPUs each, four of each on '
         f'one NUMA node, in {HOURS} hours of requests for one to eight '
         f'devices, each as likely as the others; for {LIFE} hours on average '
         f'(exponential), after {BEFORE} hours that are not counted. The load '
         'is what is asked for at a time, as a part of all devices; what '
         'cannot be served is not tried again. Up to four devices are asked '
         'for on one NUMA node, which only the filter knows of; *node '
         'preferred* asks for it as a preference. *Kept* is how often the '
         'devices are on one node if some host has so many on one. The bound '
         'is that of a linear program which knows all requests and serves '
         'parts of them. Processors, memory and disk are shared out with the '
         'devices. All sides had the same requests; the figures are means of '
         'as many such days as there are seeds: '
         f'{len({cell["seed"] for cell in cells})}.'),
        tuple(_table(load, mean, [
            bound for bound in figures['bounds'] if bound['load'] == load])
            for load in loads),
        tuple(_plots(loads, mean)))


def _outcome(load, mean) -> str:
    def both(side) -> str:
        return (f'{mean(side, load, _near):.0%} and '
                f'{mean(side, load, _eights):.0%}')

    return (
        f'At a load of {load:.0%}, filter and weigher serve as they asked, of '
        'all requests and of those for all eight devices of a host, '
        f'{both(OURS)}. Nova\'s way, which spreads servers and takes the '
        f'first candidate, serves {both(FIRST)}; told to stack servers, '
        f'{both(STACKED)}: it minds no NUMA node, and so has more to choose '
        f'from. At random it is {both(CHANCE)}.')


def _counted(cell) -> dict:
    """With sizes as numbers: JSON has made them text."""
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
    'As they asked': _near,
    'Of those for 8 devices': _eights,
    'Of those for 2 to 4, on one node': lambda cell: _share(
        cell['asked'], cell['near'], (2, 3, 4)),
    'Kept': lambda cell: _share(cell['keepable'], cell['kept']),
    'Hosts whole': lambda cell: cell['whole_hosts'],
    'Nodes whole': lambda cell: cell['whole_nodes'],
    'Free devices in whole hosts': lambda cell: cell['free_in_whole_hosts'],
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
            ('asked', 'Requests served as they asked', _near),
            ('eights', 'Requests for eight devices served', _eights),
            ('whole', 'Free devices that are in whole hosts',
             _COLUMNS['Free devices in whole hosts'])):
        yield report_.Plot(
            name, title, 'load, %', '%', {
                label: [(100 * load, 100 * mean(side, load, value))
                        for load in loads] for side, label in _NAMES.items()},
            log=False)

# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the filter and the weigher alone, with up to 10,000 hosts.

A scheduler sees fewer at once: by default, Nova requests 1,000 candidates.
"""

import collections.abc
import random
import statistics
import time
import tracemalloc

from tests.bench import frame
from tests.bench import report as report_

# Numbers of hosts, and repetitions of each measurement, by scale.
_SCALES = {frame.QUICK: ((100,), 2), frame.MEDIUM: ((1000, 10_000), 5),
           frame.FULL: ((100, 1000, 10_000), 9)}
_COUNTS = (1, 2, 4, 8)
#: Use of the hosts' devices.
EMPTY, MIXED = 'no server', 'in use at random'


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    sizes, rounds = _SCALES[scale]
    cells = []
    for hosts in sizes:
        for use in (EMPTY, MIXED):
            fleet = _fleet(hosts, use)
            for count in _COUNTS:
                if use == EMPTY or count < max(_COUNTS):
                    cells.append({'hosts': hosts, 'use': use, 'count': count,
                                  **_measure(fleet, count, rounds)})
                    say(f'{hosts} hosts, {use}, {count} devices: '
                        f'{cells[-1]["filter"]:.3f} s')
    return {'cells': cells}


def _fleet(hosts, use):
    from tests.bench import fleet
    made = fleet.Fleet(hosts)
    rng = random.Random(hosts)
    if use == MIXED:
        for host in made.hosts:
            devices = list(host.devices)
            made.claim(host, rng.sample(devices, rng.randint(1, 6)))
    return made


def _measure(fleet, count, rounds) -> dict:
    """Return medians of seconds; and peak and remaining bytes."""
    from nova.scheduler import weights

    from nova_accel.scheduler import filter as filter_
    from nova_accel.scheduler import weigher
    from tests.bench import fleet as fleet_
    spec = fleet_.request(count, _wish(count))
    ours, handler = filter_.AcceleratorFilter(), weights.HostWeightHandler()
    filtering, weighing, passed = [], [], []
    for _round in range(rounds):
        states = fleet.states(count)
        begin = time.perf_counter()
        passed = list(ours.filter_all(states, spec))
        between = time.perf_counter()
        handler.get_weighed_objects([weigher.AcceleratorWeigher()], passed,
                                    spec)
        filtering.append(between - begin)
        weighing.append(time.perf_counter() - between)
    states = fleet.states(count)
    tracemalloc.start()
    list(ours.filter_all(states, spec))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {'candidates': len(states), 'passed': len(passed),
            'filter': statistics.median(filtering),
            'weigher': statistics.median(weighing),
            'peak_bytes': peak, 'kept_bytes': kept}


def _wish(count: int) -> str:
    # Four of eight are on one NUMA node.
    return 'required' if count <= 4 else 'preferred'


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = figures['cells']
    most = max(cell['hosts'] for cell in cells)
    last = [cell for cell in cells if cell['hosts'] == most]
    rates = [_rate(cell) for cell in last]
    per_host = [cell['peak_bytes'] / cell['candidates'] for cell in last]
    number = report_.significant
    return report_.Report(
        'The filter alone',
        (f'Of {most:,} hosts with eight GPUs each, the filter examines '
         f'{number(min(rates))} to {number(max(rates))} candidates a second, '
         'and chooses the devices of each. It uses at most '
         f'{number(max(per_host))} bytes for each host, including what it '
         'writes into the candidates.',
         'Requests for up to four devices require one NUMA node. Hosts have '
         'no servers, or one to six random devices of the eight are in use. '
         'The filter searches hosts that look alike only once. Each time is '
         "the median of several. The weigher's time includes Nova's code that "
         'calls it.'),
        (_table(cells),),
        tuple(_plots(cells)))


def _rate(cell) -> float:
    return cell['candidates'] / cell['filter']


def _table(cells) -> report_.Table:
    number = report_.significant
    return report_.Table(
        'Filter and weigher',
        ('Hosts', 'Devices', 'In use', 'Candidates', 'Passed', 'Filter, s',
         'Candidates a second', 'Peak, bytes a candidate', 'Weigher, s'),
        tuple((f'{cell["hosts"]:,}', str(cell['count']), cell['use'],
               f'{cell["candidates"]:,}', f'{cell["passed"]:,}',
               number(cell['filter']), number(_rate(cell)),
               number(cell['peak_bytes'] / cell['candidates']),
               number(cell['weigher'])) for cell in cells))


def _plots(cells) -> collections.abc.Iterator[report_.Plot]:
    if len({cell['hosts'] for cell in cells}) < 2:
        return
    wanted = [(use, count) for use in (EMPTY, MIXED) for count in (1, 4)]
    yield report_.Plot(
        'hosts', 'The filter', 'hosts', 'seconds', {
            f'{count} of 8, {use}': [
                (cell['hosts'], cell['filter']) for cell in cells
                if (cell['use'], cell['count']) == (use, count)]
            for use, count in wanted})

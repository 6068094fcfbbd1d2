# SPDX-License-Identifier: Apache-2.0
"""Benchmark of rules to choose a host, without Nova.

It simulates the days of :mod:`tests.bench.quality` on the same hosts, also
with other mixes of requests.
"""

import collections
import collections.abc
import heapq
import random
import statistics

from tests.bench import frame
from tests.bench import quality
from tests.bench import report as report_
from tests.bench import rules

# By scale: hosts and seeds. The seeds are not those of the quality benchmark.
_SCALES = {frame.QUICK: (20, 2), frame.MEDIUM: (200, 5),
           frame.FULL: (200, 20)}
_FIRST_SEED, _LOADS = 1000, (0.9, 1.)

#: By mix: the sizes of requests, each equally likely.
MIXES = {'1 to 8': range(1, 9), '1, 2, 4, 8': (1, 2, 4, 8),
         'mostly 1': (*[1] * 11, *[2] * 4, *[4] * 3, *[8] * 2)}
#: The requests that are counted together: all, and by parts of the day.
_EVERY, _HOURS = 'all', 6


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    hosts, seeds = _SCALES[scale]
    cells = []
    for mix, sizes in MIXES.items():
        for load in _LOADS:
            for rule in rules.NAMES:
                days = [_day(hosts, rule, quality.arrivals(
                    seed, load * hosts * 8, sizes), seed)
                    for seed in range(_FIRST_SEED, _FIRST_SEED + seeds)]
                cells.append({
                    'mix': mix, 'load': load, 'rule': rule,
                    'served': {kind: [_share(day, kind) for day in days]
                               for kind in (_EVERY, '8')},
                    'outcomes': {outcome: sum(
                        (day[outcome] for day in days), collections.Counter())
                        for outcome in rules.OUTCOMES}})
                say(f'{mix}, load {load}, {rule}: '
                    f'{_share(cells[-1]["outcomes"], _EVERY)}%')
    return {'hosts': hosts, 'cells': cells}


def _day(hosts, rule, arrivals, seed) -> dict[str, collections.Counter]:
    """Return, by outcome, how many requests of each kind had it."""
    fleet = rules.Fleet(hosts, rule, random.Random(seed))
    outcomes = {name: collections.Counter() for name in rules.OUTCOMES}
    leaving: list[tuple[float, int, tuple]] = []
    for number, (now, size, until) in enumerate(arrivals):
        while leaving and leaving[0][0] <= now:
            fleet.release(*heapq.heappop(leaving)[2])
        found = fleet.place(size)
        if found:
            heapq.heappush(leaving, (until, number, found))
        if now >= 0:
            hour = int(now) // _HOURS * _HOURS
            outcomes[rules.SERVED if found else fleet.cause(size)].update(
                (_EVERY, str(size), f'hours {hour} to {hour + _HOURS}'))
    return outcomes


def _share(outcomes, kind, outcome=rules.SERVED) -> float:
    """Return the percentage of the requests of a kind with an outcome."""
    return round(100 * _count(outcomes, [kind], [outcome]) / max(
        1, _count(outcomes, [kind], outcomes)), 4)


def _count(outcomes, kinds, among) -> int:
    return sum(outcomes[outcome].get(kind, 0)
               for outcome in among for kind in kinds)


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = {(cell['mix'], cell['load'], cell['rule']): cell
             for cell in figures['cells']}
    return report_.Report(
        'Rules to choose a host',
        (_losses(cells), _adopted(cells),
         f'The days are those of the benchmark above, on {figures["hosts"]} '
         'hosts, with other seeds and also with other mixes of requests: '
         'servers with 1, 2, 4 or 8 devices, equally likely; and 55% of the '
         'servers with one device, 20% with two, 15% with four and 10% with '
         'eight. It is a simulation without Nova. On a host, all rules but '
         '*the smaller node first* get the devices that nova_accel chooses. '
         '*Best fit* leaves the fewest devices free on the host; *by node*, '
         'first on the NUMA node. The *fragmentation gradient* (Weng et al., '
         'USENIX ATC 2023) adds the fewest free devices that the latest '
         f'{rules.SEEN} requests could not use. The *reserve* keeps as many '
         'free hosts as these requests were for eight devices, and then free '
         'nodes, if another host has room. *Any server can move* serves a '
         'request if it fits after any moves. It refuses fewer large '
         'requests, so it can serve fewer requests in all. Differences have '
         'their standard error.'),
        (_table(cells, _EVERY, 'Requests served'),
         _table(cells, '8', 'Requests for eight devices served'),
         *(_outcomes(cells, load) for load in _LOADS)))


def _losses(cells) -> str:
    mix = next(iter(MIXES))
    ours, moved = ([cells[mix, load, rule]['outcomes'] for load in _LOADS]
                   for rule in (rules.OURS, rules.MOVES))

    def refused(days) -> str:
        return both([100 - _share(each, _EVERY) for each in days], 1)

    def parts(kinds, causes) -> str:
        return both([100 * _count(each, kinds, causes) / max(
            1, _count(each, [_EVERY], rules.CAUSES)) for each in ours])

    def both(percentages, digits=0) -> str:
        return ' and '.join(f'{each:.{digits}f}%' for each in percentages)

    return (
        f'At loads of {both(100 * load for load in _LOADS)} with {mix} '
        f'devices, nova_accel refuses {refused(ours)} of the requests. Of '
        f'these, {parts("678", rules.CAUSES)} are for six to eight devices, '
        f'and {parts([_EVERY], [rules.SCATTERED])} would fit if other servers '
        'could move: enough devices are free, but not on one host or node. '
        'The first six hours lose the least, because the hosts are still '
        'filling. If any server could move at each request, '
        f'{refused(moved)} would be refused.')


def _adopted(cells) -> str:
    def more(rule, mix, load) -> tuple[float, float]:
        return _more(cells[mix, load, rule], cells[mix, load, rules.OURS],
                     _EVERY)

    def points(rule, mix) -> str:
        mean, error = more(rule, mix, _LOADS[-1])
        return f'{mean:+.2f} ± {error:.2f}'

    better = [rule for rule in rules.COSTS if all(
        mean > 2 * error for mean, error in (
            more(rule, mix, load) for mix in MIXES for load in _LOADS))]
    first, second, *_rest = MIXES
    return (
        'A server that needs both nodes fills one. If nova_accel took the '
        'node with fewer free devices first, the requests served would change '
        f'by {points(rules.SMALLER, first)} points at {_LOADS[-1]:.0%}. '
        f'{", ".join(better) or "No other rule to choose a host"} serves more '
        'with every mix and load by more than two standard errors. '
        f'*{rules.FEWEST}* changes them by {points(rules.FEWEST, first)} '
        f'with {first} devices, and {points(rules.FEWEST, second)} with '
        f'{second}. So the weigher has none of these rules.')


def _more(cell, ours, kind) -> tuple[float, float]:
    """Return the mean difference from ours, and its standard error."""
    differences = [one - other for one, other in zip(
        cell['served'][kind], ours['served'][kind], strict=True)]
    return (statistics.mean(differences),
            statistics.stdev(differences) / len(differences) ** 0.5)


def _table(cells, kind, title) -> report_.Table:
    def text(mix, load, rule) -> str:
        cell, ours = cells[mix, load, rule], cells[mix, load, rules.OURS]
        if rule == rules.OURS:
            return f'{statistics.mean(cell["served"][kind]):.2f}%'
        mean, error = _more(cell, ours, kind)
        return f'{mean:+.2f} ± {error:.2f}'

    return report_.Table(
        f'{title}: percentage, and points more than nova_accel',
        ('', *(f'{mix}, load {load:.0%}' for mix in MIXES for load in _LOADS)),
        tuple((rule, *(text(mix, load, rule)
                       for mix in MIXES for load in _LOADS))
              for rule in rules.NAMES))


def _outcomes(cells, load) -> report_.Table:
    mix = next(iter(MIXES))
    ours, moved = (cells[mix, load, rule]['outcomes']
                   for rule in (rules.OURS, rules.MOVES))
    return report_.Table(
        f'Outcomes with nova_accel, {mix} devices, load {load:.0%}',
        ('Devices, or time', *rules.OUTCOMES, 'Served with moves'),
        tuple((kind, *(f'{_share(ours, kind, outcome):.1f}%'
                       for outcome in rules.OUTCOMES),
               f'{_share(moved, kind):.1f}%')
              for kind in sorted(ours[rules.SERVED], key=_order)))


def _order(kind) -> tuple[int, str]:
    """Sort sizes first, then hours, then all."""
    return (kind == _EVERY, len(kind), kind)

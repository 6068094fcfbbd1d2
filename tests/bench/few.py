# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a rule that few of thousands of hosts keep.

It runs with and without the shortlist. Without it, Nova examines the hosts
that Placement returns first, as without nova_accel.
"""

import collections.abc
import contextlib
import random
import statistics

from tests.bench import frame
from tests.bench import report as report_
from tests.bench import worker

SHORTLIST, FIRST = 'shortlist', 'first'
_NAMES = {SHORTLIST: 'nova_accel', FIRST: 'without the shortlist'}

#: By scale: hosts, numbers of hosts that keep the rule, requests for each
#: number, candidates that Nova requests, and hosts on the shortlist.
_SCALES = {frame.QUICK: (20, (1,), 1, 5, 2),
           frame.MEDIUM: (1000, (3, 1), 3, 200, 50),
           frame.FULL: (5000, (5, 3, 1), 10, 1000, 50)}
#: Timeouts in seconds: for the start of the hosts, and for a request.
_START, _LIMIT = 2400, 120


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    hosts, numbers, requests, limit, size = _SCALES[scale]
    chance = random.Random(hosts)
    cells = []
    with contextlib.closing(worker.Lazy(_START, _make, hosts)) as cloud:
        for fitting in numbers:
            for _request in range(requests):
                able = chance.sample(range(1, hosts + 1), fitting)
                for side in _NAMES:
                    answer = cloud.ask({
                        'fitting': able, 'limit': limit,
                        'size': size if side == SHORTLIST else 0}, _LIMIT)
                    cells.append({'side': side, 'fitting': fitting, **answer})
                    say(f'{_NAMES[side]}, {fitting} of {hosts} hosts: '
                        f'{answer}')
    return {'hosts': hosts, 'limit': limit, 'cells': cells}


def _make(connection, hosts):
    from tests.bench import scattered
    return scattered.Scattered(connection, hosts)


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = figures['cells']
    numbers = sorted({cell['fitting'] for cell in cells}, reverse=True)

    def of(side, fitting):
        return [cell for cell in cells
                if (cell['side'], cell['fitting']) == (side, fitting)]

    def row(fitting):
        yield str(fitting)
        for side in _NAMES:
            found = of(side, fitting)
            yield f'{sum(cell["found"] for cell in found)} of {len(found)}'
            yield report_.significant(statistics.median(
                cell['seconds'] for cell in found))

    wrong = [sum(not cell['found'] for cell in cells if cell['side'] == side)
             for side in _NAMES]
    return report_.Report(
        'Few hosts that keep a rule',
        (f'Of {len(cells) // 2} requests, **{wrong[0]}** find no host with '
         f'nova_accel, and {wrong[1]} find no host without the shortlist.',
         f'A real Placement and a real ``SchedulerManager`` have '
         f'{figures["hosts"]:,} hosts with eight GPUs. On each host, four '
         'GPUs are in use. A server requests four GPUs on one NUMA node. Few '
         'hosts have their free GPUs on one node, and Placement does not know '
         'which. These hosts are random for each request. Without the '
         f'shortlist, Nova examines the first {figures["limit"]:,} hosts '
         'that Placement returns.'),
        (report_.Table(
            'Requests that get a host, and median seconds of '
            'select_destinations',
            ('Hosts that keep the rule', *(
                text for name in _NAMES.values()
                for text in (name, 'seconds'))),
            tuple(tuple(row(fitting)) for fitting in numbers)),))

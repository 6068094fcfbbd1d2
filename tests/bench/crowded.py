# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a request for all eight devices of a host.

On all hosts but one, a device is in use, as in a cloud with many servers. The
sides are those of :mod:`tests.bench.scheduling`.
"""

import collections.abc
import contextlib

from tests.bench import frame
from tests.bench import report as report_
from tests.bench import scheduling

#: Numbers of hosts, and timeout of a request in seconds, by scale.
_SCALES = {frame.QUICK: ((2,), 60), frame.MEDIUM: ((2, 10, 100), 120),
           frame.FULL: ((2, 10, 100, 1000), 600)}
COUNT = 8


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    hosts, limit = _SCALES[scale]
    cells, gave_up = [], set()
    for number in hosts:
        for side, name in scheduling.NAMES.items():
            answer = {'failed': scheduling.NOT_TRIED}
            if side not in gave_up:
                with contextlib.closing(
                        scheduling.deployment(side, number)) as there:
                    answer = there.ask({'count': COUNT, 'one_node': False,
                                        'crowded': True}, limit)
                say(f'{name}, {number} hosts: '
                    + (answer.get('failed') or f'{answer["seconds"]:.3f} s'))
            if 'failed' in answer:
                # With more hosts, it would not finish either.
                gave_up.add(side)
            cells.append({'side': side, 'hosts': number, 'count': COUNT,
                          'one_node': False, **answer})
    return {'limit': limit, 'cells': cells}


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = scheduling.Cells(figures)
    return report_.Report(
        'One host among many', (_WHAT, *(
            scheduling.against(cells, side, COUNT)
            for side in (scheduling.DEFAULTS, scheduling.TUNED))),
        (scheduling.seconds(cells),),
        (scheduling.plot(cells, 'hosts', 'The only host with eight free GPUs',
                         'hosts', {hosts: (hosts, COUNT)
                                   for hosts in cells.hosts}),))


_WHAT = (
    'As in *Devices from many hosts*, but on all hosts except one, a device '
    'is in use. A server with eight devices fits on that host only. Both '
    'sides find it. With k groups of one device, that host has many '
    'allocation candidates.')

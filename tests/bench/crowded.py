# SPDX-License-Identifier: Apache-2.0
"""All eight devices of a host, where all hosts but one have one in use.

What a cloud looks like in which others boot servers, too. Both sides as in
:mod:`tests.bench.scheduling`.
"""

import collections.abc
import contextlib

from tests.bench import frame
from tests.bench import report as report_
from tests.bench import scheduling

#: Hosts, and seconds after which a request is given up.
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
                # What did not finish will not with more hosts.
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
        (scheduling.plot(cells, 'hosts', 'The one host that has eight free',
                         'hosts', {hosts: (hosts, COUNT)
                                   for hosts in cells.hosts}),))


_WHAT = (
    'As above, but of all hosts save one a device is in use: a server that '
    'wants eight can only be on that one. Both sides find it; with k groups '
    'of one device there are many ways to be on it.')

# SPDX-License-Identifier: Apache-2.0
"""Benchmark of hosts that all differ, and of profiles with demanding rules.

It compares nova_accel with Nova's NUMATopologyFilter on the same hosts.
"""

import collections.abc

from tests.bench import frame
from tests.bench import report as report_

REQUIRED, PREFERRED = 'required', 'preferred'
RANK, EXAMINE, FILTER, NOVAS = 'rank', 'examine', 'filter', 'novas'
FIRST, AGAIN = 'first', 'again'

#: Numbers of hosts by scale.
_SCALES = {frame.QUICK: (60,), frame.MEDIUM: (300,), frame.FULL: (1000,)}
#: The size of the shortlist.
SIZE = 50


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    from tests.bench import partitioned
    cells = []
    for hosts in _SCALES[scale]:
        fleet = partitioned.Fleet(hosts)
        for policy in (REQUIRED, PREFERRED):
            cells.append({'hosts': hosts, 'policy': policy,
                          **fleet.measure(policy)})
            say(str(cells[-1]))
    return {'cells': cells}


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = figures['cells']
    hardest = cells[-1]
    number = report_.significant

    def per_host(cell, what, when=FIRST) -> str:
        return number(1000 * cell[what][when] / cell['candidates'])

    def row(cell):
        yield f'{cell["hosts"]:,}'
        yield cell['policy']
        yield f'{cell["candidates"]:,}'
        for what in (RANK, EXAMINE):
            for when in (FIRST, AGAIN):
                yield number(cell[what][when])
        for what, when in ((FILTER, FIRST), (FILTER, AGAIN), (NOVAS, FIRST)):
            yield per_host(cell, what, when)

    return report_.Report(
        'Hosts that all differ',
        (f'nova_accel ranks {hardest["candidates"]:,} hosts, hardly two of '
         f'them alike, in **{number(hardest[RANK][FIRST])} s**. When the same '
         f'request comes again, it takes {number(hardest[RANK][AGAIN])} s. '
         f'The filter then takes {number(hardest[EXAMINE][FIRST])} s for the '
         f'{SIZE} best hosts. Without the shortlist, the filter takes '
         f'{per_host(hardest, FILTER)} ms for a host, and '
         f"Nova's NUMATopologyFilter takes {per_host(hardest, NOVAS)} ms.",
         'Each host has 16 GPUs in partitions of 2, 4, 8 and 16, and 8 '
         'network cards, on 8 PCIe switches. A random 30 % of all devices are '
         'in use. A server requests four GPUs of one link domain, and four '
         'network cards, each with a GPU behind its switch. These rules are '
         'required or preferred. Candidates are the hosts with four free GPUs '
         'and four free network cards. The NUMATopologyFilter gets a guest '
         'with 16 pinned processors on one NUMA node. All seconds are '
         'processor time.'),
        (report_.Table(
            'Seconds for all hosts, and milliseconds for a host',
            ('Hosts', 'Rules', 'Candidates', 'Rank, s', 'again',
             f'Filter {SIZE}, s', 'again', 'Filter all, ms a host', 'again',
             'NUMATopologyFilter, ms a host'),
            tuple(tuple(row(cell)) for cell in cells)),))

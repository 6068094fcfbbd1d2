# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the scheduler and Placement with 1 to 1000 hosts.

Each host has eight GPUs. The benchmark compares nova_accel with Nova's own
way: PCI devices in Placement, with default options, and tuned with the options
that Placement's documentation recommends.
"""

import collections.abc
import contextlib
import itertools

from tests.bench import frame
from tests.bench import report as report_
from tests.bench import worker

OURS, TUNED, DEFAULTS = 'ours', 'tuned', 'defaults'
NAMES = {OURS: 'nova_accel', TUNED: "Nova's way, tuned",
          DEFAULTS: "Nova's way, defaults"}

#: By scale: numbers of hosts, numbers of devices, and timeout of a request in
#: seconds.
_SCALES = {
    frame.QUICK: ((2,), (1, 2), 60),
    frame.MEDIUM: ((1, 10, 100), (1, 4, 8), 60),
    frame.FULL: ((1, 10, 100, 1000), (0, 1, 2, 4, 6, 8), 600),
}
#: Numbers of devices that are also requested on one NUMA node.
_ON_ONE_NODE = (2, 4)
#: Timeout in seconds for the start of a deployment.
_START = 300

NOT_TRIED = 'not tried'


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    hosts, counts, limit = _SCALES[scale]
    questions = [(count, False) for count in counts] + [
        (count, True) for count in counts if count in _ON_ONE_NODE]
    cells = []
    # Requests that did not finish. With more hosts or devices, they would
    # not finish either.
    too_much: set[tuple[str, int, bool]] = set()
    for number in hosts:
        with contextlib.ExitStack() as stack:
            sides = {side: stack.enter_context(contextlib.closing(
                deployment(side, number)))
                for side in NAMES}
            # Ask the sides in turn, so that changes of the machine's speed
            # affect all sides.
            for (count, one_node), side in itertools.product(questions, sides):
                answer = {'failed': NOT_TRIED}
                if not any((side, one_node) == (slow, where) and count >= most
                           for slow, most, where in too_much):
                    answer = sides[side].ask(
                        {'count': count, 'one_node': one_node}, limit)
                    say(_progress(side, number, count, one_node, answer))
                if 'failed' in answer:
                    too_much.add((side, count, one_node))
                cells.append({'side': side, 'hosts': number, 'count': count,
                              'one_node': one_node, **answer})
    return {'limit': limit, 'cells': cells}


def deployment(side: str, hosts: int) -> worker.Lazy:
    """Return a lazy worker for a side with a number of hosts."""
    return worker.Lazy(_START, _make, side, hosts)


def _make(connection, side, hosts):
    from tests.bench import deployment
    return deployment.SIDES[side](connection, hosts)


def _progress(side, hosts, count, one_node, answer) -> str:
    outcome = answer.get('failed') or (
        f'{answer["seconds"]:.3f} s, {answer["candidates"]} candidates, '
        f'{answer["outcome"]}')
    return (f'{NAMES[side]}, {say_hosts(hosts)}, devices: {count}'
            f'{" of one node" if one_node else ""}: {outcome}')


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = Cells(figures)
    return report_.Report(
        'Devices from many hosts', (_WHAT, *_outcome(cells)),
        (seconds(cells), _candidates(cells)), tuple(_plots(cells)))


_WHAT = (
    'This measures how long a scheduler takes to choose and claim devices: '
    '``select_destinations`` of a real ``SchedulerManager`` with a real '
    'Placement in one process. Each host has eight GPUs, all of them free. '
    "*Nova's way* is ``[pci] report_in_placement`` and ``[filter_scheduler] "
    'pci_in_placement`` with the PciPassthroughFilter and the '
    'NUMATopologyFilter; *tuned* sets Placement to '
    '``max_allocation_candidates = 1000``, '
    '``allocation_candidates_generation_strategy = breadth-first`` and '
    '``optimize_for_wide_provider_trees = true``. nova_accel uses the '
    'defaults of Placement. Each time is the median of up to seven requests.')


class Cells:
    """Results by side, hosts, devices and whether these are on one node."""

    def __init__(self, figures):
        self.limit = figures['limit']
        self._cells = {
            (cell['side'], cell['hosts'], cell['count'], cell['one_node']):
            cell for cell in figures['cells']}
        self.hosts = sorted({key[1] for key in self._cells})
        self.requests = sorted({key[2:] for key in self._cells},
                               key=lambda request: request[::-1])

    def get(self, side, hosts, count, one_node=False) -> dict:
        return self._cells[side, hosts, count, one_node]

    def seconds(self, side, hosts, count, one_node=False) -> float | None:
        return self.get(side, hosts, count, one_node).get('seconds')

    def ratio(self, side, hosts, count, one_node=False) -> float | None:
        """Return how many times as long as nova_accel a side takes."""
        ours = self.seconds(OURS, hosts, count, one_node)
        theirs = self.seconds(side, hosts, count, one_node)
        return theirs / ours if ours and theirs else None

    def hosts_of(self, side, count) -> list[int]:
        """Return the numbers of hosts with which a side finished."""
        return [hosts for hosts in self.hosts
                if self.seconds(side, hosts, count)]


def _outcome(cells) -> collections.abc.Iterator[str]:
    most = max(count for count, _one_node in cells.requests)
    for side in (DEFAULTS, TUNED):
        yield against(cells, side, most)
    yield from _wrong(cells)
    last = cells.hosts[-1]
    many, one = (cells.seconds(OURS, last, count) for count in (most, 1))
    if many and one:
        yield (f'On {say_hosts(last)}, nova_accel takes '
               f'**{many / one:.1f} times** as long for {most} devices as for '
               f'one: {_number(many)} s and {_number(one)} s.')
    yield from _added(cells, last, most)


def _added(cells, hosts, count) -> collections.abc.Iterator[str]:
    """Yield the time that devices add to a request without devices."""
    if (0, False) not in cells.requests:
        return
    without = {side: cells.seconds(side, hosts, 0) for side in (OURS, TUNED)}
    having = {side: cells.seconds(side, hosts, count) for side in without}
    if not all((*without.values(), *having.values())):
        return
    ours, tuned = (having[side] - without[side] for side in without)
    if ours > 0:
        yield (f'On {say_hosts(hosts)}, a request without devices takes '
               f'{_number(without[OURS])} s with {NAMES[OURS]}. A request for '
               f'{count} of 8 devices takes {_number(ours)} s more with '
               f'{NAMES[OURS]}, and {_number(tuned)} s more with '
               f'*{NAMES[TUNED]}*: {_number(tuned / ours)} times as much.')


def _wrong(cells) -> collections.abc.Iterator[str]:
    """Yield the wrong answers of each side."""
    for side, name in NAMES.items():
        wrong = ['{1} on {0} hosts'.format(*_asked(hosts, request))
                 for request in cells.requests for hosts in cells.hosts
                 if cells.get(side, hosts, *request).get(
                     'outcome', 'right') != 'right']
        if wrong:
            yield (f'All devices are free, but *{name}* does not find them: '
                   f'{"; ".join(wrong)}.')


def against(cells, side, count) -> str:
    finished = cells.hosts_of(side, count)
    if finished:
        ratios = '; '.join(
            f'{_number(ratio)} on {say_hosts(hosts)}'
            for hosts in finished if (ratio := cells.ratio(side, hosts, count))
        )
        most = ('It finished with all numbers of hosts'
                if finished[-1] == cells.hosts[-1] else
                f'With more than {say_hosts(finished[-1])}, it did not finish '
                f'within {cells.limit} s')
        return (f'For {count} of 8 devices, *{NAMES[side]}* takes this '
                f"multiple of nova_accel's time: {ratios}. {most}.")
    ours = cells.seconds(OURS, cells.hosts[0], count)
    bound = (f', so the other takes at least {_number(cells.limit / ours)} '
             'times as long' if ours else '')
    return (f'For {count} of 8 devices, *{NAMES[side]}* did not finish within '
            f'{cells.limit} s with any number of hosts. With '
            f'{say_hosts(cells.hosts[0])}, nova_accel takes '
            f'{_number(ours) if ours else "?"} s{bound}.')


def seconds(cells) -> report_.Table:
    def row(hosts, request):
        yield from _asked(hosts, request)
        yield say_time(cells.get(OURS, hosts, *request))
        for side in (TUNED, DEFAULTS):
            ratio = cells.ratio(side, hosts, *request)
            yield say_time(cells.get(side, hosts, *request))
            yield _number(ratio) if ratio else ''
    return report_.Table(
        'Seconds of select_destinations, and their ratios to nova_accel',
        ('Hosts', 'Devices', NAMES[OURS], NAMES[TUNED], 'ratio',
         NAMES[DEFAULTS], 'ratio'),
        tuple(tuple(row(hosts, request)) for request in cells.requests
              for hosts in cells.hosts))


def _candidates(cells) -> report_.Table:
    def cell(answer):
        if 'failed' in answer:
            return _failure(answer)
        return (f'{answer["candidates"]}, '
                f'{_number(answer["placement_seconds"])} s, '
                f'{answer["outcome"]}')
    return report_.Table(
        'Allocation candidates, seconds in Placement, and whether the claim '
        'is right',
        ('Hosts', 'Devices', *NAMES.values()),
        tuple((*_asked(hosts, request), *(
            cell(cells.get(side, hosts, *request)) for side in NAMES))
            for request in cells.requests for hosts in cells.hosts))


def _plots(cells) -> collections.abc.Iterator[report_.Plot]:
    most = max(count for count, _one_node in cells.requests)
    counts = [count for count, one_node in cells.requests
              if count and not one_node]
    last = cells.hosts[-1]
    yield plot(cells, 'hosts', f'{most} of 8 devices', 'hosts', {
        hosts: (hosts, most) for hosts in cells.hosts})
    yield plot(cells, 'devices', f'Devices from {say_hosts(last)}',
               'devices', {count: (last, count) for count in counts})


def plot(cells, name, title, x, keys) -> report_.Plot:
    def points(value, side):
        return [(at, found) for at, key in keys.items()
                if (found := value(side, *key))]
    return report_.Plot(
        name, title, x, 'seconds',
        {label: line for side, label in NAMES.items()
         if (line := points(cells.seconds, side))},
        {label: line for side, label in NAMES.items()
         if side != OURS and (line := points(cells.ratio, side))},
        ratio='times nova_accel')


def _asked(hosts, request) -> tuple[str, str]:
    count, one_node = request
    return (str(hosts), f'{count} of one node' if one_node else str(count))


def say_time(answer) -> str:
    return (_failure(answer) if 'failed' in answer else
            _number(answer['seconds']))


def _failure(answer) -> str:
    return '' if answer['failed'] == NOT_TRIED else answer['failed']


def say_hosts(number) -> str:
    return f'{number} host{"s" if number > 1 else ""}'


_number = report_.significant

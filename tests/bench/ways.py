# SPDX-License-Identifier: Apache-2.0
"""Benchmark of ways to ask Placement for k of a host's eight devices.

A way has resource providers and a request. The benchmark measures Placement
alone: its time, and the hosts in its answer. :mod:`tests.bench.filtering`
measures the filter.
"""

import collections.abc
import contextlib
import dataclasses
import itertools

from tests.bench import frame
from tests.bench import report as report_
from tests.bench import worker

DEVICES, ISLAND = 8, 4
#: The number of candidates that Nova requests.
LIMIT = 1000

GPU, UNIT = 'CUSTOM_GPU', 'CUSTOM_UNIT_OF_CUSTOM_GPU'
#: The name of the compute node's own provider in a tree.
NODE = ''

#: States of the hosts: all devices are free; one device of each host but the
#: last is in use; the same, but the inventories are not updated yet.
FREE, CROWDED, STALE = 'free', 'crowded', 'stale'

#: Amounts by resource class, by provider.
Amounts = collections.abc.Mapping[str, collections.abc.Mapping[str, int]]


@dataclasses.dataclass(frozen=True)
class Way:
    """
    :param says: the label in tables and plots
    :param tree: takes the number of devices of each of a host's servers,
        returns the inventories that have to be in Placement. They are always
        the same where Placement counts the devices.
    :param held: the allocation of a server with one device
    :param groups: takes a number of devices, returns the request's groups
    :param most: the largest number of devices that can be requested
    :param tuned: whether Placement is tuned
    :param plotted: whether the plots show the way
    """

    says: str
    tree: collections.abc.Callable[[tuple[int, ...]], Amounts]
    held: Amounts
    groups: collections.abc.Callable[[int], list[str]]
    most: int = DEVICES
    tuned: bool = False
    plotted: bool = True

    def query(self, count: int) -> str:
        """Return the parameters of ``GET /allocation_candidates``."""
        groups = self.groups(count)
        return '&'.join((
            'resources=VCPU:1,MEMORY_MB:256', f'limit={LIMIT}',
            'group_policy=none', *(
                f'resources_ACCEL{index}={group}'
                for index, group in enumerate(groups))))


def _devices(servers: tuple[int, ...]) -> Amounts:
    return {f'gpu{number}': {GPU: 1} for number in range(DEVICES)}


def _islands(servers: tuple[int, ...]) -> Amounts:
    return {f'numa{number}': {GPU: ISLAND}
            for number in range(DEVICES // ISLAND)}


def _bundles(servers: tuple[int, ...]) -> Amounts:
    free = DEVICES - sum(servers)
    # The total includes the bundles of servers, as Placement subtracts what is
    # used.
    return {NODE: {_bundle(size): free // size + servers.count(size)
                   for size in (1, 2, 4, 8)}}


def _bundle(size: int) -> str:
    return f'CUSTOM_GPUS_{size}'


def _class(servers: tuple[int, ...]) -> Amounts:
    return {'class': {GPU: DEVICES},
            **{name: {UNIT: 1} for name in _devices(servers)}}


def _singly(count: int) -> list[str]:
    return [f'{GPU}:1'] * count


def _together(count: int) -> list[str]:
    return [f'{GPU}:{count}']


_GPU0 = {'gpu0': {GPU: 1}}
_NUMA0 = {'numa0': {GPU: 1}}

EACH, TUNED, ISLANDS, ISLAND_GROUPS, BUNDLES, REWRITTEN, CLASS = (
    'each', 'tuned', 'islands', 'island groups', 'bundles', 'rewritten',
    'class')

WAYS = {
    EACH: Way('k groups of one, a provider for each device', _devices, _GPU0,
              _singly),
    TUNED: Way('k groups of one, a provider for each device; tuned', _devices,
               _GPU0, _singly, tuned=True),
    ISLAND_GROUPS: Way('k groups of one, a provider for each island of four',
                       _islands, _NUMA0, _singly),
    ISLANDS: Way('one group of k, a provider for each island of four',
                 _islands, _NUMA0, _together, most=ISLAND, plotted=False),
    BUNDLES: Way('one bundle of k, counted on the host', _bundles,
                 {NODE: {_bundle(1): 1}}, lambda count: [
                     f'{_bundle(count)}:1'], plotted=False),
    REWRITTEN: Way('one group of one, a provider for each device; a filter '
                   'adds the others', _devices, _GPU0,
                   lambda count: _singly(1)),
    CLASS: Way('**nova_accel: one group of k, a provider for the class, and '
               'a filter**', _class,
               {'class': {GPU: 1}, 'gpu0': {UNIT: 1}}, _together),
}

#: By scale: numbers of hosts, numbers of devices, and timeout of a request in
#: seconds.
_SCALES = {
    frame.QUICK: ((1, 2), (1, 2), 30),
    frame.MEDIUM: ((1, 10, 100, 1000), (1, 2, 4, 8), 30),
    frame.FULL: ((1, 10, 100, 1000), (1, 2, 4, 8), 300),
}
#: Timeout in seconds for the start of Placement.
_START = 120

NOT_TRIED, NOT_ASKED = 'not tried', 'cannot be asked'


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    hosts, counts, limit = _SCALES[scale]
    questions = [(count, FREE) for count in counts]
    questions.append((counts[-1], CROWDED))
    cells = []
    for name, way in WAYS.items():
        more = [(counts[-1], STALE)] if _writes(way, 1) else []
        with contextlib.closing(worker.Lazy(
                _START, _make, name)) as placement:
            # Requests that did not finish. With more hosts, they would not
            # finish either.
            too_much = set()
            for number, question in itertools.product(
                    hosts, questions + more):
                count, state = question
                asked = {'hosts': number, 'count': count, 'state': state}
                if count > way.most:
                    answer = {'failed': NOT_ASKED}
                elif question in too_much:
                    answer = {'failed': NOT_TRIED}
                else:
                    answer = placement.ask(asked, limit)
                    if 'failed' in answer:
                        too_much.add(question)
                cells.append({'way': name, **asked, **answer})
                say(f'{name}, {number} hosts, {count} devices, {state}: '
                    f'{answer}')
    return {'limit': limit, 'cells': cells}


def _make(connection, name):
    from tests.bench import ledger
    return ledger.PlacementClient(connection, WAYS[name])


def _writes(way: Way, count: int) -> int:
    """Return the number of inventories to write for a server."""
    before, after = way.tree(()), way.tree((count,))
    return sum(after[name][resource_class] != total
               for name, amounts in before.items()
               for resource_class, total in amounts.items())


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = _Cells(figures)
    return report_.Report(
        'Ways to ask for k of eight', (_WHAT, *_outcome(cells)),
        (_shape(cells), _seconds(cells), _found(cells)),
        tuple(_plots(cells)))


_WHAT = (
    f'``GET /allocation_candidates`` with ``limit={LIMIT}``, as Nova sends '
    f'it, requests k devices and a processor from a real Placement. The hosts '
    f'have {DEVICES} devices. '
    '*Tuned* is ``max_allocation_candidates = 1000``, '
    '``allocation_candidates_generation_strategy = breadth-first`` and '
    '``optimize_for_wide_provider_trees = true``. *Crowded*: on each host but '
    'the last, one device is in use, so that only one host has all devices '
    'free. Each time is the median of up to five requests. A request that did '
    'not finish is not tried with more hosts.')


class _Cells:

    def __init__(self, figures):
        self.limit = figures['limit']
        self._cells = {(cell['way'], cell['hosts'], cell['count'],
                        cell['state']): cell for cell in figures['cells']}
        self.hosts = sorted({key[1] for key in self._cells})
        self.counts = sorted({key[2] for key in self._cells})

    def get(self, way, hosts, count, state=FREE) -> dict:
        return self._cells[way, hosts, count, state]

    def seconds(self, way, hosts, count) -> float | None:
        return self.get(way, hosts, count).get('seconds')


def _outcome(cells) -> collections.abc.Iterator[str]:
    last, most = cells.hosts[-1], cells.counts[-1]
    named = cells.get(REWRITTEN, last, most, CROWDED).get('hosts_found', last)
    if named < last:
        yield (f'*{_plain(REWRITTEN)}*, {_hosts(last)}, crowded: the answer '
               f'has {named} of them, and these are random. If the host with '
               f'{most} free devices is not among them, the scheduler finds '
               'no valid host although there is one.')
    stale = cells.get(BUNDLES, last, most, STALE)
    if stale.get('hosts_found', 0) > 1:
        yield ('With bundles, inventories are wrong from the claim of a '
               'server until they are updated. Meanwhile, Placement returns '
               f'{stale["hosts_found"]:,} hosts for {most} devices and allows '
               f'a claim on each. Hosts with {most} free devices: '
               f'{stale["fit"]}.')


def _shape(cells) -> report_.Table:
    def candidates(way, count):
        cell = cells.get(way, cells.hosts[0], count)
        return (_failure(cell, cells) if 'failed' in cell else
                f'{cell["candidates"]:,}')
    return report_.Table(
        f'Candidates of {_hosts(cells.hosts[0])} ({LIMIT} at most), and '
        'costs of a way elsewhere',
        ('Way', *(f'k = {count}' for count in cells.counts),
         'Providers of a host', 'Inventories to write for a server with k = '
         + ', '.join(map(str, cells.counts))),
        tuple((way.says, *(candidates(name, count) for count in cells.counts),
               str(len(way.tree(()).keys() | {NODE})),
               ', '.join(str(_writes(way, count)) for count in cells.counts))
              for name, way in WAYS.items()))


def _seconds(cells) -> report_.Table:
    def time(way, hosts, count):
        cell = cells.get(way, hosts, count)
        return (_failure(cell, cells) if 'failed' in cell else
                _number(cell['seconds']))
    return report_.Table(
        'Seconds', ('Way', 'Hosts', *(
            f'k = {count}' for count in cells.counts)),
        tuple((way.says, f'{hosts:,}', *(
            time(name, hosts, count) for count in cells.counts))
              for name, way in WAYS.items() for hosts in cells.hosts))


def _found(cells) -> report_.Table:
    last, most = cells.hosts[-1], cells.counts[-1]

    def found(way, count, state=FREE):
        cell = cells.get(way, last, count, state)
        if 'failed' in cell:
            return _failure(cell, cells)
        wrong = cell['hosts_found'] - cell['fit']
        return (f'{cell["fit"]:,} of {cell["able"]:,}'
                + (f', {wrong:,} wrong hosts' if wrong else ''))
    return report_.Table(
        f'{_hosts(last)}: how many of the hosts with k free devices are in '
        'the answer',
        ('Way', *(f'k = {count}' for count in cells.counts),
         f'k = {most}, crowded'),
        tuple((way.says, *(found(name, count) for count in cells.counts),
               found(name, most, CROWDED)) for name, way in WAYS.items()))


def _plots(cells) -> collections.abc.Iterator[report_.Plot]:
    last, most = cells.hosts[-1], cells.counts[-1]
    for name, title, keys in (
            ('devices', f'k of {DEVICES} devices from {_hosts(last)}',
             {count: (last, count) for count in cells.counts}),
            ('hosts', f'{most} of {DEVICES} devices',
             {hosts: (hosts, most) for hosts in cells.hosts})):
        yield report_.Plot(name, title, name, 'seconds', {
            _plain(way): [(at, found) for at, key in keys.items()
                          if (found := cells.seconds(way, *key))]
            for way in WAYS if WAYS[way].plotted})


def _plain(way: str) -> str:
    return WAYS[way].says.replace('**', '')


def _failure(cell, cells) -> str:
    reason = cell['failed']
    if reason == worker.TIMED_OUT:
        return f'> {cells.limit} s'
    return reason


def _hosts(number) -> str:
    return f'{number:,} host{"s" if number > 1 else ""}'


_number = report_.significant

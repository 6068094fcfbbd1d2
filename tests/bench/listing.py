# SPDX-License-Identifier: Apache-2.0
"""Benchmark of ``openstack accel device list`` with 10 to 1000 hosts.

Each host has eight GPUs. The benchmark compares with the requests of
osc-placement's commands that show the same. It also measures ``capacity list``
with many profiles, and the cost of the traits that describe devices and their
locations.
"""

import collections.abc
import contextlib

from tests.bench import frame
from tests.bench import report as report_
from tests.bench import worker

DEVICES, HOSTS, LIMITED, SINGLY, CAPACITY, CANDIDATES = (
    'devices', 'hosts', 'limited', 'singly', 'capacity', 'candidates')
#: The number of profiles that CAPACITY lists.
PROFILES = 20
_NAMES = {DEVICES: '``openstack accel device list``',
          HOSTS: '``openstack accel host list``',
          LIMITED: '``device list``, candidates limited',
          SINGLY: 'osc-placement, provider by provider',
          CAPACITY: f'``capacity list --by profile``, {PROFILES} profiles'}

#: Numbers of hosts by scale.
_SCALES = {frame.QUICK: (100,), frame.MEDIUM: (10, 100),
           frame.FULL: (10, 100, 1000)}
#: Timeouts in seconds: for the start of Placement, and for an answer.
_START, _LIMIT = 120, 600
#: With more hosts than _WHOLE, SINGLY asks for _SAMPLE of them.
_SAMPLE, _WHOLE = 50, 100
#: Requests of SINGLY that do not depend on the number of hosts.
_ONCE = 2


def sample(hosts: int) -> int:
    """Return the number of hosts that SINGLY asks for."""
    return hosts if hosts <= _WHOLE else _SAMPLE


def limit(hosts: int) -> int:
    """Return the ``max_allocation_candidates`` of :data:`LIMITED`."""
    return hosts // 10


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    cells = []
    with contextlib.closing(worker.Lazy(_START, _make)) as placement:
        for hosts in _SCALES[scale]:
            for way, traits in (*((way, True) for way in _NAMES),
                                (CANDIDATES, True), (CANDIDATES, False)):
                asked = {'hosts': hosts, 'way': way, 'traits': traits}
                cells.append({**asked, **placement.ask(asked, _LIMIT)})
                say(str(cells[-1]))
    return {'cells': cells}


def _make(connection):
    from tests.bench import catalogue
    return catalogue.Catalogue(connection)


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = _Cells(figures)
    return report_.Report(
        'Listing all devices', (_WHAT, *_outcome(cells), *_traits(cells)),
        (_listing(cells), _candidates(cells)), (_plot(cells),))


_WHAT = (
    'The commands list the devices of all hosts, eight GPUs each, from a real '
    'Placement in the same process. Servers with one to eight devices hold '
    'half of the devices. The seconds include the command, Placement and the '
    'JSON output. *Provider by provider* makes the requests of the '
    'osc-placement commands that show the same: ``resource provider list``, '
    'and for each provider ``inventory list``, which also requests the '
    'usages, and ``trait list``. Each of these commands is a process; the '
    'seconds do not include its start. '
    f'With more than {_WHOLE} hosts, {_SAMPLE} of them are measured, and the '
    'figures are scaled. In each row, one request is that of openstacksdk for '
    'the versions of the API. *Candidates limited*: ``[placement] '
    'max_allocation_candidates`` is a tenth of the number of hosts. The '
    'command requests the other hosts one by one, several at the same time. '
    '*Capacity list*: each host has two servers; Nova is simulated, and its '
    'answers take no time.')


class _Cells:

    def __init__(self, figures):
        self._cells = {(cell['hosts'], cell['way'], cell['traits']):
                       _scaled(cell) for cell in figures['cells']}
        self.hosts = sorted({hosts for hosts, _way, _traits in self._cells})

    def get(self, hosts, way, traits=True) -> dict:
        return self._cells[hosts, way, traits]

    def ratio(self, hosts, way) -> float | None:
        """Return how many times as long as ``device list`` a way takes."""
        ours, other = self.get(hosts, DEVICES), self.get(hosts, way)
        return None if 'failed' in (ours | other) else (
            other['seconds'] / ours['seconds'])


def _scaled(cell: dict) -> dict:
    """Return a cell with its figures scaled to all hosts."""
    if cell['way'] != SINGLY or 'failed' in cell:
        return cell
    times, listed = cell['hosts'] / cell['sample'], cell['list_seconds']
    return {**cell,
            'requests': round((cell['requests'] - _ONCE) * times) + _ONCE,
            'seconds': (cell['seconds'] - listed) * times + listed}


def _outcome(cells) -> collections.abc.Iterator[str]:
    last = cells.hosts[-1]
    ours, singly = cells.get(last, DEVICES), cells.get(last, SINGLY)
    if 'failed' not in ours:
        text = (f'``openstack accel device list`` lists the '
                f'{ours["rows"]:,} devices of {_hosts(last)} in '
                f'**{_number(ours["seconds"])} s** with '
                f'{ours["requests"]} requests')
        if ratio := cells.ratio(last, SINGLY):
            text += (f'. Provider by provider, it takes '
                     f'{singly["requests"]:,} requests and '
                     f'**{_number(ratio)} times** as long')
        yield f'{text}.'
    capacity = cells.get(last, CAPACITY)
    if 'failed' not in capacity:
        yield (f'``openstack accel capacity list`` takes '
               f'**{_number(capacity["seconds"])} s** for '
               f'{capacity["rows"]} profiles on these hosts.')


def _traits(cells) -> collections.abc.Iterator[str]:
    last = cells.hosts[-1]
    with_, without = (cells.get(last, CANDIDATES, traits)
                      for traits in (True, False))
    if 'failed' not in with_ | without:
        size, time = (with_[key] / without[key] - 1
                      for key in ('bytes', 'seconds'))
        more = (with_['bytes'] - without['bytes']) / with_['candidates']
        yield (f'The traits that describe a device and its location enlarge '
               f'the answers that nova-scheduler reads. For one GPU of '
               f'{_hosts(last)}, the answer to Nova\'s ``GET '
               f'/allocation_candidates`` changes by {100 * size:+.0f} % in '
               f'size ({_number(more)} bytes for each candidate) and by '
               f'{100 * time:+.0f} % in time.')


def _listing(cells) -> report_.Table:
    def row(hosts, way):
        cell = cells.get(hosts, way)
        if 'failed' in cell:
            return '', '', cell['failed'], '', ''
        # The seconds of concurrent requests are no part of the total.
        whole = cell.get('sample', hosts) == hosts
        waited = whole and way != LIMITED
        return (f'{cell["requests"]:,}',
                _number(cell['bytes'] / 1e6) if whole else '',
                _number(cell['seconds']) + ('' if whole else ' (scaled)'),
                _number(cell['placement_seconds']) if waited else '',
                _number(cells.ratio(hosts, way) or 0))
    return report_.Table(
        'Listing', ('Hosts', 'Way', 'Requests', 'MB', 'Seconds',
                    'Of these Placement', 'Ratio'),
        tuple((f'{hosts:,}', name, *row(hosts, way))
              for hosts in cells.hosts for way, name in _NAMES.items()))


def _candidates(cells) -> report_.Table:
    def row(cell):
        return (cell['failed'], '') if 'failed' in cell else (
            _number(cell['bytes'] / 1e6, 3), _number(cell['seconds'], 3))
    return report_.Table(
        'Allocation candidates for one GPU, with and without these traits',
        ('Hosts', 'MB with', 'Seconds with', 'MB without',
         'Seconds without'),
        tuple((f'{hosts:,}', *row(cells.get(hosts, CANDIDATES)),
               *row(cells.get(hosts, CANDIDATES, False)))
              for hosts in cells.hosts))


def _plot(cells) -> report_.Plot:
    def points(way, value):
        return [(hosts, found) for hosts in cells.hosts
                if (found := value(hosts, way))]

    def seconds(hosts, way):
        return cells.get(hosts, way).get('seconds')
    ways = {way: name.replace('``', '') for way, name in _NAMES.items()
            if way not in (HOSTS, CAPACITY)}
    return report_.Plot(
        'hosts', 'All devices, eight of each host', 'hosts', 'seconds',
        {name: points(way, seconds) for way, name in ways.items()},
        {name: points(way, cells.ratio) for way, name in ways.items()
         if way != DEVICES}, ratio='times device list')


def _hosts(number) -> str:
    return f'{number:,} hosts'


_number = report_.significant

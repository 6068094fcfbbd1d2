# SPDX-License-Identifier: Apache-2.0
"""``openstack accel device list`` with 10 to 1000 hosts of eight GPUs each.

Against the requests of osc-placement's commands, which show the same. Also
``capacity list`` for as many profiles as a cloud has, and what the traits cost
from which the commands tell what a device is and where.
"""

import collections.abc
import contextlib

from tests.bench import frame
from tests.bench import report as report_
from tests.bench import worker

DEVICES, HOSTS, LIMITED, SINGLY, CAPACITY, CANDIDATES = (
    'devices', 'hosts', 'limited', 'singly', 'capacity', 'candidates')
#: How many profiles CAPACITY lists.
PROFILES = 20
_NAMES = {DEVICES: '``openstack accel device list``',
          HOSTS: '``openstack accel host list``',
          LIMITED: '``device list``, candidates limited',
          SINGLY: 'osc-placement, provider by provider',
          CAPACITY: f'``capacity list --by profile``, {PROFILES} profiles'}

#: Hosts.
_SCALES = {frame.QUICK: (100,), frame.MEDIUM: (10, 100),
           frame.FULL: (10, 100, 1000)}
#: Seconds for Placement to be there, and for an answer.
_START, _LIMIT = 120, 600
#: The hosts that are asked for singly, if there are more than _WHOLE.
_SAMPLE, _WHOLE = 50, 100
#: Requests of SINGLY that do not depend on the number of hosts.
_ONCE = 2


def sample(hosts: int) -> int:
    """How many hosts are asked for singly."""
    return hosts if hosts <= _WHOLE else _SAMPLE


def limit(hosts: int) -> int:
    """The ``max_allocation_candidates`` of :data:`LIMITED`."""
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
    'The devices of all hosts, eight GPUs each, half of which servers of one '
    'to eight devices hold, are listed from a real Placement in the same '
    'process; the seconds are those of both, from the command until its '
    'JSON. *Provider by provider* is what the commands of osc-placement ask '
    'to know the same: ``resource provider list``, and for each provider '
    '``inventory list``, which asks for the usages too, and ``trait list``. '
    'Each of these commands is a process, whose start is not in the seconds. '
    f'With more than {_WHOLE} hosts, {_SAMPLE} of them are asked for, and the '
    'figures are scaled. One request of each row is that of openstacksdk for '
    'the versions of the API. *Candidates limited*: ``[placement] '
    'max_allocation_candidates`` is a tenth of the hosts; the others are '
    'asked for one by one, several at the same time. *Capacity list*: with '
    'two servers of each host; the answers of Nova take no time.')


class _Cells:

    def __init__(self, figures):
        self._cells = {(cell['hosts'], cell['way'], cell['traits']):
                       _scaled(cell) for cell in figures['cells']}
        self.hosts = sorted({hosts for hosts, _way, _traits in self._cells})

    def get(self, hosts, way, traits=True) -> dict:
        return self._cells[hosts, way, traits]

    def ratio(self, hosts, way) -> float | None:
        """How many times our seconds a way takes."""
        ours, other = self.get(hosts, DEVICES), self.get(hosts, way)
        return None if 'failed' in (ours | other) else (
            other['seconds'] / ours['seconds'])


def _scaled(cell: dict) -> dict:
    """A cell as if all hosts had been asked for."""
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
        text = (f'{_hosts(last)}, {ours["rows"]:,} devices: they are listed '
                f'in **{_number(ours["seconds"])} s** with '
                f'{ours["requests"]} requests')
        if ratio := cells.ratio(last, SINGLY):
            text += (f'; provider by provider it is {singly["requests"]:,} '
                     f'requests and **{_number(ratio)} times** as long')
        yield f'{text}.'
    capacity = cells.get(last, CAPACITY)
    if 'failed' not in capacity:
        yield (f'The capacity of {capacity["rows"]} profiles on them is told '
               f'in **{_number(capacity["seconds"])} s**.')


def _traits(cells) -> collections.abc.Iterator[str]:
    last = cells.hosts[-1]
    with_, without = (cells.get(last, CANDIDATES, traits)
                      for traits in (True, False))
    if 'failed' not in with_ | without:
        size, time = (with_[key] / without[key] - 1
                      for key in ('bytes', 'seconds'))
        more = (with_['bytes'] - without['bytes']) / with_['candidates']
        yield (f'The traits that tell what a device is and where it is make '
               f'what nova-scheduler reads larger. For one GPU of '
               f'{_hosts(last)}, the answer to ``GET /allocation_candidates`` '
               f'as Nova asks has {100 * size:+.0f} % bytes '
               f'({_number(more)} for each candidate), and takes '
               f'{100 * time:+.0f} % time.')


def _listing(cells) -> report_.Table:
    def row(hosts, way):
        cell = cells.get(hosts, way)
        if 'failed' in cell:
            return '', '', cell['failed'], '', ''
        # What is asked at the same time has no sum of seconds.
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

# SPDX-License-Identifier: Apache-2.0
"""A picture of compute nodes and their devices, as SVG.

Each compute node is a row, and each device a cell, in columns by resource
class. The colour of a cell tells which project holds it, or why no server gets
it. A frame joins the devices of a partition. Letters and patterns tell the
same as the colours, and a browser describes the cell under the pointer.

Source: W3C, "Scalable Vector Graphics (SVG) 2", and "Media Queries Level 5"
for ``prefers-color-scheme``. No library is used: svgwrite is not maintained,
and others draw plots.
"""

import collections
import collections.abc
import dataclasses
import html
import itertools
import operator
import string

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.placement import listing
from nova_accel.osc import fleet as fleets

State = fleets.State

# Pixels.
_CELL, _HEIGHT, _MAX_CELL, _LETTER, _STRIP = 24, 22, 96, 11, 6
_GAP, _NODE_GAP, _CLASS_GAP, _FRAME, _MARGIN = 5, 8, 18, 3, 16
_CHARACTER, _NOTE_CHARACTER, _LINE = 6.8, 5, 20
_MIN_WIDTH, _MAX_WIDTH = 560, 1500

# Rows before the next block of hosts begins, if there is room for one.
_ROWS = 20

# Characters of the note below the name of a host.
_NOTE = 28

#: Fills for black letters that people with any colour vision can tell apart.
#: Source: Paul Tol, "Colour schemes", the scheme "light".
_COLOURS = ('#77aadd', '#ee8866', '#eedd88', '#ffaabb', '#99ddff', '#44bb99',
            '#bbcc33', '#aaaa00')
_OTHERS, _OTHERS_COLOUR = 'others', '#dddddd'

#: Fill on a light and on a dark page, and the text of the legend.
_STATES = {
    State.FREE: ('#ffffff', '#1b2631', 'free'),
    State.FAULT: ('#a01020', '#d83a48', 'withheld for a fault'),
    State.CLEANING: ('url(#cleaning)', 'url(#cleaning)',
                     'is cleaned, or waits for its cleaner'),
    State.SET_ASIDE: ('url(#aside)', 'url(#aside)',
                      'withheld by an operator or the configuration')}
_KEPT = 'held, and withheld from the next server'

_HEAD = '\n'.join((
    '<style>',
    'text { font: 12px sans-serif; fill: #17212b }',
    '.note { font-size: 9px }',
    '.letter { font-size: 11px; fill: #000000; text-anchor: middle }',
    '.mark { fill: #ffffff; font-weight: bold }',
    '.page { fill: #ffffff } .dot { fill: #17212b }',
    '.bar { stroke: #17212b; stroke-width: 2 }',
    '.cell, .frame { fill: none; stroke: #43515f }',
    *(f'.{name} {{ fill: {colour} }}' for name, colour in (
        *((f'p{number}', colour) for number, colour in enumerate(_COLOURS)),
        (_OTHERS, _OTHERS_COLOUR),
        *((state, light) for state, (light, _dark, _text) in _STATES.items())
    )),
    '@media (prefers-color-scheme: dark) {',
    'text, .dot { fill: #e4e9ee } .bar { stroke: #e4e9ee }',
    '.letter { fill: #000000 } .mark { fill: #ffffff }',
    '.page { fill: #1b2631 } .cell, .frame { stroke: #93a1ae }',
    *(f'.{state} {{ fill: {dark} }}'
      for state, (_light, dark, _text) in _STATES.items()),
    '}', '</style>',
    '<defs>',
    f'<pattern id="{State.CLEANING}" width="6" height="6" '
    'patternUnits="userSpaceOnUse"><rect class="page" width="6" height="6"/>'
    '<circle class="dot" cx="3" cy="3" r="1.5"/></pattern>',
    f'<pattern id="{State.SET_ASIDE}" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="page" width="6" height="6"/><path class="bar" d="M3,0 V6"/>'
    '</pattern>', '</defs>'))

_Elements = collections.abc.Iterator[str]

#: Draws the sample of a text of the legend, at a place.
_Sample = collections.abc.Callable[[float, float],
                                   collections.abc.Iterable[str]]


def draw(fleet: fleets.Fleet) -> str:
    """Return the picture."""
    looks = _looks(fleet)
    table = _Table(fleet, looks)
    blocks = table.blocks()
    width = max(_MIN_WIDTH, 2 * _MARGIN - _CLASS_GAP
                + table.width * len(blocks))
    legend, top = _legend(fleet, looks, width)
    height = (top + _LINE + _MARGIN
              + table.pitch * max(map(len, blocks), default=0))
    return '\n'.join((
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" '
        f'height="{height:g}" viewBox="0 0 {width:g} {height:g}">', _HEAD,
        '<rect class="page" width="100%" height="100%"/>', *legend,
        *itertools.chain.from_iterable(
            table.block(hosts, _MARGIN + table.width * number, top)
            for number, hosts in enumerate(blocks)), '</svg>', ''))


@dataclasses.dataclass(frozen=True)
class _Look:
    """How the units of a project are drawn: class of the fill, and letter."""

    fill: str
    letter: str = ''


_Looks = collections.abc.Mapping[str, _Look]


def _looks(fleet: fleets.Fleet) -> dict[str, _Look]:
    letters = string.ascii_uppercase
    return {project: _Look(f'p{number % len(_COLOURS)}', letters[number])
            if number < len(letters) else _Look(_OTHERS)
            for number, project in enumerate(fleet.ranked())}


class _Table:
    """The rows and columns of the picture."""

    def __init__(self, fleet: fleets.Fleet, looks: _Looks) -> None:
        self._fleet = fleet
        self._rows = {host.uuid: {
            classes: _Cells(list(devices), fleet, looks)
            for classes, devices in _by_classes(host)} for host in fleet.hosts}
        found = [pair for row in self._rows.values() for pair in row.items()]
        self._depth = max((cells.depth for _classes, cells in found),
                          default=0)
        self._columns: dict[tuple[str, ...], float] = {}
        for classes, cells in sorted(found, key=operator.itemgetter(0)):
            self._columns[classes] = max(
                cells.width, len(', '.join(classes)) * _CHARACTER,
                self._columns.get(classes, 0))
        self._names = _CLASS_GAP + max((
            max(len(host.name) * _CHARACTER,
                len(self._note(host)) * _NOTE_CHARACTER)
            for host in fleet.hosts), default=0)

    @property
    def width(self) -> float:
        """The width of a block, with the gap to the next one."""
        return self._names + 2 * _CLASS_GAP + sum(
            width + _CLASS_GAP for width in self._columns.values())

    @property
    def pitch(self) -> int:
        """From one row to the next."""
        return _HEIGHT + 2 * _FRAME * self._depth + 8

    def blocks(self) -> list[collections.abc.Sequence[listing.Host]]:
        """Return the hosts of each block; the blocks are side by side."""
        hosts = self._fleet.hosts
        blocks = max(1, min(int(_MAX_WIDTH // self.width),
                            -(-len(hosts) // _ROWS)))
        rows = max(1, -(-len(hosts) // blocks))
        return [hosts[first:first + rows]
                for first in range(0, len(hosts), rows)]

    def block(self, hosts: collections.abc.Sequence[listing.Host],
              left: float, top: float) -> _Elements:
        """Draw a block."""
        at = dict(zip(self._columns, itertools.accumulate(
            (width + _CLASS_GAP for width in self._columns.values()),
            initial=left + self._names), strict=False))
        for classes, x in at.items():
            yield _text(x, top + 6, ', '.join(classes))
        for number, host in enumerate(hosts):
            y = top + _LINE + self.pitch * number + _FRAME * self._depth
            note = self._note(host)
            yield _text(left, y + (10 if note else 15), host.name)
            if note:
                yield _text(left, y + 21, note, 'note')
            for classes, cells in self._rows[host.uuid].items():
                yield from cells.draw(at[classes], y)

    def _note(self, host: listing.Host) -> str:
        note = self._fleet.closing(host)
        return note if len(note) <= _NOTE else f'{note[:_NOTE - 1]}…'


def _by_classes(host: listing.Host) -> collections.abc.Iterator[tuple[
        tuple[str, ...], collections.abc.Iterator[listing.Device]]]:
    """Yield the devices with units, by their resource classes."""
    def classes(device: listing.Device) -> tuple[str, ...]:
        return tuple(sorted({units.resource_class
                             for units in device.regions}))
    return itertools.groupby(sorted(
        (device for device in host.devices if device.regions), key=classes),
        classes)


class _Cells:
    """The devices of one host that have the same resource classes."""

    def __init__(self, devices: list[listing.Device], fleet: fleets.Fleet,
                 looks: _Looks) -> None:
        self._fleet, self._looks = fleet, looks
        self._devices = _neighbours(devices)
        self._shares = list(map(fleet.shares, self._devices))
        self._frames = _frames(self._devices)
        self.depth = max((frame.level for frame in self._frames), default=0)
        self._at, self.width = self._positions()

    def _positions(self) -> tuple[list[float], float]:
        """Return where each device begins, and where the last one ends."""
        found, x, before = [], 0.0, None
        for number, (device, shares) in enumerate(
                zip(self._devices, self._shares, strict=True)):
            node = device.properties.place.get('numa_node')
            x += (_FRAME * self._levels('first', number)
                  + _NODE_GAP * bool(number and node != before))
            found.append(x)
            x += (_width(shares) + _GAP
                  + _FRAME * self._levels('last', number))
            before = node
        return found, x - _GAP

    def _levels(self, end: str, number: int) -> int:
        """Return how many frames begin or end at a device."""
        return max((frame.level for frame in self._frames
                    if getattr(frame, end) == number), default=0)

    def draw(self, x: float, y: float) -> _Elements:
        """Draw them, from an upper left corner."""
        for frame in self._frames:
            pad = _FRAME * frame.level
            left = self._at[frame.first] - pad
            right = (self._at[frame.last] + _width(self._shares[frame.last])
                     + pad)
            yield (f'<rect class="frame" x="{x + left:g}" y="{y - pad:g}" '
                   f'width="{right - left:g}" height="{_HEIGHT + 2 * pad}" '
                   f'rx="{2 + pad}"><title>{_escaped(frame.title)}'
                   '</title></rect>')
        for at, device, shares in zip(self._at, self._devices, self._shares,
                                      strict=True):
            title = '\n'.join(map(_escaped, self._description(device)))
            yield f'<g><title>{title}</title>'
            yield from _cell(x + at, y, shares, self._looks)
            yield '</g>'

    def _description(self, device: listing.Device) -> _Elements:
        """Yield what a browser shows while the pointer is on a device."""
        yield f'{device.host}/{device.address}'
        if device.drained:
            yield f'drained: {device.drained}'
        for units in device.regions:
            yield ', '.join((
                f'{units.resource_class} {units.name}'.strip()
                + f': {units.used} used', f'{units.free} free',
                *units.reasons))
            for consumer in self._fleet.holders.get(units.provider, ()):
                yield (f'{consumer.held(units)} of server {consumer.uuid}, '
                       f'project {self._fleet.name(consumer.project)}')


def _width(shares: list[fleets.Share]) -> int:
    units = sum(share.units for share in shares)
    return max(_CELL, min(_MAX_CELL, _CELL // 2 * units))


def _cell(x: float, y: float, shares: list[fleets.Share], looks: _Looks,
          ) -> _Elements:
    """Draw a device; a part of the width for each share of its units."""
    width = _width(shares)
    units, at = sum(share.units for share in shares), x
    for share in shares:
        part = width * share.units / units
        strip = _STRIP * bool(share.project and share.state != State.FREE)
        look = looks[share.project] if share.project else _Look(
            share.state, '!' * (share.state == State.FAULT))
        yield _rect(at, y, part, _HEIGHT, look.fill)
        if strip:
            yield _rect(at, y + _HEIGHT - strip, part, strip, share.state)
        if part >= _LETTER:
            yield _text(at + part / 2, y + 15 - strip / 2, look.letter,
                        'letter' if share.project else 'letter mark')
        at += part
    yield _rect(x, y, width, _HEIGHT, 'cell')


@dataclasses.dataclass(frozen=True)
class _Frame:
    """A frame around neighbours that are in one partition.

    :param level: how many frames are inside, and this one
    """

    first: int
    last: int
    level: int
    title: str


def _frames(devices: list[listing.Device]) -> list[_Frame]:
    """Return the frames around devices, the inner ones first.

    A partition whose devices are not neighbours has several.
    """
    members = collections.defaultdict(list)
    for at, device in enumerate(devices):
        for number, size in device.properties.partitions.items():
            if size > 1:
                members[size, number].append(at)
    found: list[_Frame] = []
    for (size, number), places in sorted(members.items()):
        title = f'partition {number}: {len(places)} of {size} devices'
        for first, last in _runs(places):
            found.append(_Frame(first, last, 1 + max(
                (frame.level for frame in found
                 if frame.first <= last and first <= frame.last), default=0),
                title))
    return found


def _runs(numbers: list[int]) -> collections.abc.Iterator[tuple[int, int]]:
    """Yield the first and the last number of each run of a rising list."""
    for _offset, run in itertools.groupby(
            enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _index, number in run]
        yield found[0], found[-1]


#: The names of the parts of a host at each level, and the address.
_Place = tuple[list[str], str]


def _neighbours(devices: list[listing.Device]) -> list[listing.Device]:
    """Sort by place, but devices of a partition are side by side."""
    def place(device: listing.Device) -> _Place:
        return [str(device.properties.place.get(level.key, ''))
                for level in model.LEVELS], device.address
    first = {number: place(device)
             for device in sorted(devices, key=place, reverse=True)
             for number in device.properties.partitions}

    def key(device: listing.Device,
            ) -> tuple[list[tuple[int, _Place]], _Place]:
        return sorted((-size, first[number]) for number, size
                      in device.properties.partitions.items()), place(device)
    return sorted(devices, key=key)


def _legend(fleet: fleets.Fleet, looks: _Looks, width: float,
            ) -> tuple[list[str], float]:
    """Return the elements above the hosts, and how high they are."""
    x, y = float(_MARGIN), _MARGIN + _LINE
    found = [_text(x, _MARGIN + 8, _summary(fleet))]
    for text, sample in _samples(fleet, looks):
        wide = _CELL + 6 + len(text) * _CHARACTER + 14
        if x + wide > width and x > _MARGIN:
            x, y = float(_MARGIN), y + _LINE + 8
        found += [*sample(x, y), _text(x + _CELL + 6, y + 15, text)]
        x += wide
    return found, y + _LINE + 20


def _summary(fleet: fleets.Fleet) -> str:
    devices = [device for host in fleet.hosts for device in host.devices]
    units = [units for device in devices for units in device.regions]
    held, free = (sum(map(operator.attrgetter(name), units))
                  for name in ('used', 'free'))
    total = sum(fleet.totals[each.provider] for each in units)
    return ', '.join((
        errors.count(len(fleet.hosts), 'compute node'),
        errors.count(len(devices), 'device'),
        f'{errors.count(total, "unit")}: {held} held', f'{free} free',
        f'{max(0, total - held - free)} withheld'))


def _samples(fleet: fleets.Fleet, looks: _Looks,
             ) -> collections.abc.Iterator[tuple[str, _Sample]]:
    """Yield the texts of the legend, and what draws the sample of each."""
    def cell(state: State, project: str = '') -> _Sample:
        return lambda x, y: _cell(x, y, [fleets.Share(1, state, project)],
                                  looks)
    others = [project for project, look in looks.items() if not look.letter]
    for project in looks:
        if project not in others:
            yield fleet.name(project), cell(State.FREE, project)
    if others:
        yield (errors.count(len(others), 'other project'),
               cell(State.FREE, others[0]))
    for state, (_light, _dark, text) in _STATES.items():
        yield text, cell(state)
    for project in list(looks)[:1]:
        yield _KEPT, cell(State.SET_ASIDE, project)
    yield 'partition', lambda x, y: [
        f'<rect class="frame" x="{x:g}" y="{y:g}" width="{_CELL}" '
        f'height="{_HEIGHT}" rx="5"/>']


def _rect(x: float, y: float, width: float, height: float, look: str) -> str:
    return (f'<rect class="{look}" x="{x:g}" y="{y:g}" width="{width:g}" '
            f'height="{height:g}"/>')


def _text(x: float, y: float, text: str, look: str = '') -> str:
    return (f'<text class="{look}" x="{x:g}" y="{y:g}">{_escaped(text)}'
            '</text>' if text else '')


def _escaped(text: str) -> str:
    """Return text as XML, which has no control characters."""
    return html.escape(''.join(
        each if each.isprintable() else '?' for each in text))

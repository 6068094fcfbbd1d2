# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of the documentation: ``python doc/pictures.py``.

Writes the SVG files of :data:`PICTURES` below ``doc/source``. They have a
background of their own, so that they can be read on light and dark pages.
``tests/unit/test_documentation.py`` checks that they are up to date. Libraries
that plot are for axes; these are boxes and text.
"""

import dataclasses
import datetime
import pathlib
import xml.sax.saxutils

from nova_accel.core import naming
from nova_accel.core.placement import device_traits
from nova_accel.core.placement import drain
from nova_accel.core.placement import listing
from nova_accel.osc import cloud
from nova_accel.osc import fleet
from nova_accel.osc import picture

SOURCE = pathlib.Path(__file__).parent / 'source'

_LINE, _MARGIN, _PAD = 17, 34, 12
_STYLE = 'font-family="sans-serif" font-size="13" fill="#1d2a36"'
_COLOURS = {'nova': '#dfe8f1', 'ours': '#cfe9d6', 'bad': '#f5d9d4',
            'rule': '#fdf3d0'}


@dataclasses.dataclass(frozen=True)
class Box:
    """A box around lines of text.

    :param x: the horizontal middle; all numbers are pixels
    :param y: the top
    :param look: a key of ``_COLOURS``
    """

    x: int
    y: int
    width: int
    text: str
    look: str = 'nova'

    @property
    def height(self) -> int:
        return _LINE * len(self.text.splitlines()) + _PAD

    def edge(self, other: 'Box') -> tuple[float, float]:
        """Return where a line to another box's middle meets the edge."""
        dx = other.x - self.x
        dy = (other.y + other.height / 2) - (self.y + self.height / 2)
        scale = min(self.width / 2 / abs(dx) if dx else 9e9,
                    self.height / 2 / abs(dy) if dy else 9e9)
        return self.x + dx * scale, self.y + self.height / 2 + dy * scale


@dataclasses.dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes.

    :param shift: moves the arrow and its label to the right
    """

    start: str
    end: str
    label: str = ''
    shift: int = 0


def draw(boxes: dict[str, Box], arrows: list[Arrow]) -> str:
    """Return the picture as SVG."""
    width = max(box.x + box.width // 2 for box in boxes.values()) + _MARGIN
    height = max(box.y + box.height for box in boxes.values()) + _MARGIN
    return '\n'.join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'viewBox="0 0 {width} {height}">',
        '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" '
        'refY="4" orient="auto"><path d="M0,0 L9,4 L0,8 z" fill="#52606d"/>'
        '</marker></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        f'<g {_STYLE}>', *map(_box, boxes.values()),
        *(_arrow(arrow, boxes) for arrow in arrows), '</g>', '</svg>', ''])


def _box(box: Box) -> str:
    return (f'<rect x="{box.x - box.width / 2:g}" y="{box.y}" '
            f'width="{box.width}" height="{box.height}" rx="5" '
            f'fill="{_COLOURS[box.look]}" stroke="#52606d"/>'
            + _text(box.x, box.y + _LINE + 2, box.text))


def _arrow(arrow: Arrow, boxes: dict[str, Box]) -> str:
    start, end = boxes[arrow.start], boxes[arrow.end]
    (x1, y1), (x2, y2) = start.edge(end), end.edge(start)
    x1, x2 = x1 + arrow.shift, x2 + arrow.shift
    lines = arrow.label.splitlines()
    x, y = (x1 + x2) / 2, (y1 + y2) / 2 - _LINE * (len(lines) - 1) / 2 + 4
    if abs(x2 - x1) > abs(y2 - y1):
        # Above the line, or below one that rises.
        y, side = y + (_LINE if y2 < y1 - 1 else -14), 'middle'
    else:
        side = 'end' if arrow.shift < 0 else 'start'
        x += -8 if arrow.shift < 0 else 8
    return (f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" '
            'stroke="#52606d" stroke-width="1.4" marker-end="url(#head)"/>'
            + _text(x, y, arrow.label, side))


def _text(x: float, y: float, text: str, anchor: str = 'middle') -> str:
    return ''.join(
        f'<text x="{x:.0f}" y="{y + number * _LINE:.0f}" '
        f'text-anchor="{anchor}">{xml.sax.saxutils.escape(line)}</text>'
        for number, line in enumerate(text.splitlines()))


def _request() -> str:
    def box(row, text, look='ours'):
        return Box(200, 16 + 92 * row, 340, text, look)
    return draw({
        'user': box(0, 'openstack server create --flavor gpu.pair', 'nova'),
        'api': box(1, 'nova-api\nexpands the profile into the flavor'),
        'scheduler': box(2, 'nova-scheduler\nAcceleratorFilter chooses '
                         'devices on each host'),
        'compute': box(3, 'nova-compute\nclaims, prepares and assigns the '
                       'devices'),
        'guest': box(4, 'libvirt and QEMU\nthe guest has the devices',
                     'nova'),
        'placement': Box(700, 246, 240,
                         'Placement\nhosts, devices, allocations',
                         'nova'),
    }, [
        Arrow('user', 'api', 'accel:device_profile=gpu-pair'),
        Arrow('api', 'scheduler', 'resources, traits and rules'),
        Arrow('scheduler', 'compute', 'host, and allocations of devices'),
        Arrow('compute', 'guest', 'hostdev and mdev elements'),
        Arrow('scheduler', 'placement', 'hosts with free units'),
        Arrow('compute', 'placement', 'inventories'),
    ])


def _lifecycle() -> str:
    def box(x, y, text, look='ours'):
        return Box(x, y, 230, text, look)
    return draw({
        'free': box(150, 16, 'Free\na new server can get it'),
        'held': box(600, 16, 'Held\na server has it, running or not'),
        'reset': box(600, 150, 'Being reset\nbefore another server gets it',
                     'nova'),
        'withheld': box(150, 284, 'Withheld\nno new server gets it\na trait '
                        'says why', 'bad'),
        'failed': box(600, 284, 'Withheld\nthe reset is tried again\ntrait '
                      'RESET_FAILED', 'bad'),
    }, [
        Arrow('free', 'held', 'a server is created'),
        Arrow('held', 'reset', 'the server is deleted\nor moved'),
        Arrow('reset', 'free'),
        Arrow('reset', 'failed', 'the reset fails', -20),
        Arrow('failed', 'reset', shift=20),
        Arrow('free', 'withheld', 'unhealthy\nor drained', -20),
        Arrow('withheld', 'free', 'healthy again\nor undrained', 20),
    ])


def _providers() -> str:
    boxes = {'node': Box(430, 16, 300, 'compute1\nVCPU, MEMORY_MB, DISK_GB',
                         'nova'),
             'class': Box(130, 120, 235, '…_accel_CUSTOM_GPU_H100\n'
                          'CUSTOM_GPU_H100: 8', 'ours')}
    for number, bus in enumerate(('43', '44', '48')):
        boxes[bus] = Box(130 + 235 * number, 240, 225,
                         f'…_accel_0000:{bus}:00.0\nCUSTOM_UNIT_OF_…: 1',
                         'ours')
    boxes['more'] = Box(790, 240, 130, 'five more\ndevices', 'ours')
    return draw(boxes, [Arrow('node', name) for name in boxes
                        if name != 'node'])


def _topology() -> str:
    boxes, arrows = {
        'host': Box(590, 16, 150, 'compute1', 'nova'),
        'rules': Box(80, 78, 150, 'same: numa_node', 'rule'),
        'roots': Box(80, 150, 150, 'same: pcie_root', 'rule'),
        'switches': Box(80, 222, 150, 'same: pcie_switch', 'rule'),
        'devices': Box(80, 294, 150, 'same: device', 'rule')}, []
    for node in range(2):
        middle = 390 + 400 * node
        names = f'numa{node}', f'root{node}'
        boxes[names[0]] = Box(middle, 78, 150, f'NUMA node {node}')
        boxes[names[1]] = Box(middle, 150, 150, f'pci0000:{4 * (node + 1)}0')
        arrows += [Arrow('host', names[0]), Arrow(*names)]
        for number, switch in enumerate((1, 6)):
            at = middle - 100 + 200 * number
            name = f'switch{node}{number}'
            boxes[name] = Box(at, 222, 180,
                              f'switch 0000:{4 * (node + 1)}{switch}:00.0')
            arrows.append(Arrow(names[1], name))
            for gpu in range(2):
                bus = f'{4 * (node + 1)}{switch + 2 + gpu}'
                boxes[bus] = Box(at - 48 + 96 * gpu, 294, 88,
                                 f'GPU\n{bus}:00.0', 'ours')
                arrows.append(Arrow(name, bus))
    return draw(boxes, arrows)


#: What the GPUs of compute nodes are: a letter for the project that holds one,
#: or a mark for the reason why no server gets it.
_GPUS = {'compute1': 'aabbcccc', 'compute2': 'aa..bB.~',
         'compute3': '!...aaaa', 'compute4': '////DD//'}
_REASONS = {'.': (), '~': ('cleaning',), '!': ('unhealthy',),
            '/': ('drained',)}
_PROJECTS = {'a': 'research', 'b': 'vision', 'c': 'speech', 'd': 'teaching'}
_CLASS = 'CUSTOM_GPU_H100'


def _hosts() -> str:
    """Draw a cloud as ``openstack accel host draw`` does."""
    return picture.draw(fleet.Fleet(
        [listing.Host(name, name, tuple(
            _gpu(name, at, mark) for at, mark in enumerate(marks)),
            drain.Drain(datetime.datetime(2026, 11, 20, 8,
                                          tzinfo=datetime.UTC), 'fan')
            if name == 'compute4' else None) for name, marks in _GPUS.items()],
        {f'{name}{at}': 1 for name in _GPUS for at in range(8)},
        {f'{name}{at}': [cloud.Consumer(
            f'server{at}', {naming.unit_class(_CLASS): 1}, mark.lower())]
         for name, marks in _GPUS.items() for at, mark in enumerate(marks)
         if mark.isalpha()},
        _PROJECTS, {'compute3': 'nova-compute is down'}))


def _gpu(host: str, at: int, mark: str) -> listing.Device:
    """Return a GPU; its partitions have all, four, and two of the GPUs."""
    is_held = mark.isalpha()
    reasons = ('drained',) if mark.isupper() else _REASONS.get(mark, ())
    return listing.Device(
        f'{host}{at}', host, f'0000:{4 + at // 4 * 4}{at % 4}:00.0',
        device_traits.Properties('10de:2330', {'numa_node': str(at // 4)},
                                 partitions={0: 8, 1 + at // 4: 4,
                                             3 + at // 2: 2}),
        (listing.Units(f'{host}{at}', '', _CLASS, frozenset(), int(is_held),
                       int(not is_held and not reasons), reasons),))


PICTURES = {'reference/hosts.svg': _hosts, 'topology.svg': _topology,
            'admin/request.svg': _request, 'admin/lifecycle.svg': _lifecycle,
            'reference/providers.svg': _providers}

if __name__ == '__main__':
    for path, content in PICTURES.items():
        (SOURCE / path).write_text(content())

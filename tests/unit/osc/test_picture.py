# SPDX-License-Identifier: Apache-2.0
"""The picture of compute nodes and their devices."""

import collections
import datetime
import re
from xml.etree import ElementTree

import pytest

from nova_accel.core import naming
from nova_accel.core.placement import device_traits
from nova_accel.core.placement import drain
from nova_accel.core.placement import listing
from nova_accel.osc import cloud
from nova_accel.osc import fleet
from nova_accel.osc import picture

GPU = 'CUSTOM_GPU'
SINCE = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)


class Cloud:
    """Compute nodes with devices, and servers that hold them."""

    def __init__(self, **names):
        self.names = names
        self.hosts, self.totals, self.holders = [], {}, {}

    def host(self, *devices, name='compute1', drained=None):
        self.hosts.append(listing.Host(name, name, devices, drained))
        return self

    def device(self, address='0000:43:00.0', reasons=(), total=1, free=None,
               partitions=None, node='0', name=GPU, **held):
        """Return a device of the next host.

        :param held: units by project
        """
        uuid = f'{len(self.hosts)} {address}'
        self.totals[uuid] = total
        self.holders[uuid] = [
            cloud.Consumer(f'server of {project}',
                           {naming.unit_class(name): units}, project)
            for project, units in held.items()]
        used = sum(held.values())
        return listing.Device(
            uuid, 'compute1', address, device_traits.Properties(
                place={'numa_node': node}, partitions=partitions or {}),
            (listing.Units(
                uuid, '', name, frozenset(), used,
                total - used if free is None else free, reasons),))

    def draw(self, **closed):
        return Picture(picture.draw(fleet.Fleet(
            self.hosts, self.totals, self.holders, self.names, closed)))


class Picture:
    """A picture, parsed."""

    def __init__(self, text):
        self.root = ElementTree.fromstring(text)
        self.texts = [(found.text, found.get('class')) for found in self.of(
            'text')]
        self.width, self.height = (float(self.root.get(name))
                                   for name in ('width', 'height'))

    def of(self, tag, look=None):
        return [found for found in self.root.iter(
            f'{{http://www.w3.org/2000/svg}}{tag}')
            if look in (None, found.get('class'))]

    @property
    def cells(self):
        """By first line of its description: fills and letters of a device."""
        return {title.splitlines()[0].rpartition('/')[2]: [
            (part.get('class').partition(' ')[0], part.text or '',
             float(part.get('width', 0))) for part in group[1:-1]]
            for group in self.of('g') for title in [group[0].text]}

    def fills(self, address='0000:43:00.0'):
        return [(fill, letter) for fill, letter, _width in self.cells[address]]


@pytest.mark.parametrize('reasons, held, fills', [
    ((), {}, [('free', '')]),
    ((), {'a': 1}, [('p0', ''), ('letter', 'A')]),
    (('unhealthy',), {}, [('fault', ''), ('letter', '!')]),
    (('cleaning failed',), {}, [('fault', ''), ('letter', '!')]),
    (('dirty',), {}, [('cleaning', '')]),
    (('cleaning',), {}, [('cleaning', '')]),
    (('drained',), {}, [('aside', '')]),
    (('reserved',), {}, [('aside', '')]),
    (('not strict',), {}, [('aside', '')]),
    # The worst of several reasons is shown.
    (('drained', 'cleaning', 'reset failed'), {},
     [('fault', ''), ('letter', '!')]),
    # A strip tells what comes after the server.
    (('drained',), {'a': 1}, [('p0', ''), ('aside', ''), ('letter', 'A')])])
def test_look_of_a_device(reasons, held, fills):
    found = Cloud()
    shown = found.host(found.device(
        reasons=reasons, free=int(not reasons and not held), **held)).draw()
    assert shown.fills() == fills


def test_every_reason_has_a_state_that_the_legend_explains():
    for reason in listing.REASONS.values():
        found = Cloud()
        shown = found.host(found.device(reasons=(reason,), free=0)).draw()
        [fill, *_letter] = shown.fills()
        assert fill[0] in ('fault', 'cleaning', 'aside')
        assert len(shown.of('rect', fill[0])) == 2


def test_units_of_a_card_are_parts_of_its_cell():
    found = Cloud()
    shown = found.host(found.device(
        total=8, free=4, reasons=('cleaning',), a=2, b=1)).draw()
    assert [(fill, width) for fill, _text, width in shown.cells[
        '0000:43:00.0'] if width] == [
            # Others of its units are free, so the held ones stay usable.
            ('p0', 24), ('p1', 12), ('cleaning', 12), ('free', 48)]


def test_legend_names_the_projects_with_most_units_first():
    found = Cloud(a='research', b='vision')
    shown = found.host(found.device(total=9, free=0, a=2, b=4, c=3)).draw()
    names = [text for text, look in shown.texts if text in (
        'research', 'vision', 'c')]
    assert names == ['vision', 'c', 'research']
    assert [text for text, look in shown.texts if look == 'letter'][:3] == [
        'A', 'B', 'C']


def test_projects_without_a_letter_are_counted():
    found = Cloud()
    shown = found.host(found.device(total=40, free=0, **{
        f'p{number:02}': 1 for number in range(40)})).draw()
    assert ('14 other projects', '') in shown.texts
    # A sample for the legend.
    assert len(shown.of('rect', 'others')) == 14 + 1


PARTITIONS = [{0: 4, 1: 2}, {0: 4, 2: 2}, {0: 4, 1: 2}, {0: 4, 2: 2}]


def test_devices_of_a_partition_are_neighbours_in_a_frame():
    found = Cloud()
    shown = found.host(*(
        found.device(f'0000:4{at}:00.0', partitions=partitions)
        for at, partitions in enumerate(PARTITIONS))).draw()
    assert list(shown.cells) == [
        f'0000:4{at}:00.0' for at in (0, 2, 1, 3)]
    frames = {frame[0].text: frame for frame in shown.of('rect', 'frame')
              if len(frame)}
    assert list(frames) == [
        'partition 1: 2 of 2 devices', 'partition 2: 2 of 2 devices',
        'partition 0: 4 of 4 devices']
    first, second, both = (
        (float(frame.get('x')), float(frame.get('x'))
         + float(frame.get('width'))) for frame in frames.values())
    assert both[0] < first[0] < first[1] < second[0] < second[1] < both[1]
    cells = [float(cell.get('x')) for cell in shown.of('rect', 'cell')[-4:]]
    assert first[0] < cells[0] < cells[1] < first[1]


def test_partition_whose_devices_are_apart_has_several_frames():
    found = Cloud()
    shown = found.host(*(
        found.device(f'0000:4{at}:00.0', partitions=partitions)
        for at, partitions in enumerate(
            # The first device is in a pair with each of the others.
            [{1: 2, 2: 2, 3: 2}, {1: 2}, {2: 2}, {3: 2}]))).draw()
    frames = collections.Counter(
        frame[0].text for frame in shown.of('rect', 'frame') if len(frame))
    assert sorted(frames.values()) == [1, 2, 2]


def test_gap_between_numa_nodes():
    found = Cloud()
    shown = found.host(*(found.device(f'0000:4{at}:00.0', node=node)
                         for at, node in enumerate('0011'))).draw()
    first, second, third, fourth = (
        float(cell.get('x')) for cell in shown.of('rect', 'cell')[-4:])
    assert second - first == fourth - third < third - second


def test_hosts_that_get_no_servers_say_why():
    found = Cloud()
    found.host(found.device(), drained=drain.Drain(SINCE, 'fan'))
    found.host(found.device(), name='compute2')
    shown = found.draw(compute2='nova-compute is down')
    assert [text for text, look in shown.texts if look == 'note'] == [
        'drained: fan', 'nova-compute is down']


def test_many_hosts_are_in_blocks_side_by_side():
    found = Cloud()
    for number in range(60):
        found.host(*(found.device(f'0000:{at:02x}:00.0') for at in range(8)),
                   name=f'compute{number:02}')
    shown = found.draw()
    assert shown.width < 1500 and shown.height < 1000
    assert [text for text, _look in shown.texts].count(GPU) == 3
    cells = shown.of('rect', 'cell')
    assert len({(cell.get('x'), cell.get('y')) for cell in cells}) == len(
        cells)


def test_nothing_leaves_the_picture():
    found = Cloud(a='x' * 90)
    for number in range(25):
        found.host(*(found.device(f'0000:{at:02x}:00.0', a=1, free=0)
                     for at in range(30)), name='n' * 60 + str(number))
    shown = found.draw()
    for part in shown.of('rect'):
        if part.get('width') != '100%' and part.get('x'):
            assert float(part.get('x')) + float(
                part.get('width')) <= shown.width
            assert float(part.get('y')) + float(
                part.get('height')) <= shown.height


def test_names_of_others_are_text():
    found = Cloud(a='<b>&"\x00\n')
    shown = found.host(found.device(a=1), name='<script>').draw()
    assert ('<b>&"??', '') in shown.texts
    assert ('<script>', '') in shown.texts


def test_server_that_went_since_its_device_was_read():
    found = Cloud()
    found.host(found.device(free=0, a=1))
    found.holders.clear()
    assert found.draw().fills() == []


def test_cloud_without_devices():
    assert Cloud().draw().texts[0][0] == (
        '0 compute nodes, 0 devices, 0 units: 0 held, 0 free, 0 withheld')


def test_letters_can_be_read_on_every_colour():
    """At least the contrast of 4.5:1 that WCAG 2.2, 1.4.3 asks for."""
    for fill, letter in [(colour, '#000000') for colour in re.findall(
            r'\.p\d \{ fill: (#\w+) \}', picture._HEAD)] + [
            (colour, '#ffffff') for colour in re.findall(
                r'\.fault \{ fill: (#\w+) \}', picture._HEAD)]:
        light, dark = sorted(map(_luminance, (fill, letter)), reverse=True)
        assert (light + .05) / (dark + .05) >= 4.5, fill


def _luminance(colour):
    parts = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    return sum(weight * (part / 12.92 if part <= .04045
                         else ((part + .055) / 1.055) ** 2.4)
               for weight, part in zip((.2126, .7152, .0722), parts,
                                       strict=True))

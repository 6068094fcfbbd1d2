# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the resource tracker's requests to Placement in a round.

It compares nova_accel with Nova's own driver. Nova's driver has as many PCI
devices, or devices that make mdevs, as nova_accel has regions.
"""

import collections.abc
import itertools

from tests.bench import frame
from tests.bench import report as report_
from tests.bench import worker

OURS, PCI, MDEV, WITHOUT = 'ours', 'pci', 'mdev', 'without'
_NAMES = {OURS: 'nova_accel', PCI: "Nova's PCI devices",
          MDEV: "Nova's mdev devices", WITHOUT: 'nothing reported'}

#: The sides that notice a change of a device.
_CHANGING = (OURS, MDEV)

#: Numbers of devices and of regions of each device, by scale.
_SCALES = {
    frame.QUICK: ((1, 2),),
    frame.MEDIUM: ((8, 1), (8, 16)),
    frame.FULL: ((8, 1), (8, 16), (64, 16)),
}
#: Timeouts in seconds: for the start of a host, and for an answer.
_START, _LIMIT = 1200, 600


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    cells = []
    for devices, regions in _SCALES[scale]:
        with worker.sides(_NAMES, _START, _make, devices, regions) as sides:
            for change, side in itertools.product((False, True), sides):
                if side in _CHANGING or not change:
                    cells.append({
                        'side': side, 'devices': devices, 'regions': regions,
                        'change': change,
                        **sides[side].ask({'change': change}, _LIMIT)})
                    say(_progress(cells[-1]))
    return {'cells': cells}


def _make(connection, side, devices, regions):
    from tests.bench import tracker
    return tracker.SIDES[side](connection, devices, regions)


def _progress(cell) -> str:
    outcome = cell.get('failed') or (
        f'{cell["providers"]} providers, {cell["seconds"]:.3f} s, '
        f'{cell["reads"]:g} reads, {cell["writes"]:g} writes')
    return (f'{_NAMES[cell["side"]]}, {cell["devices"]} devices of '
            f'{cell["regions"]}, {_when(cell)}: {outcome}')


def _when(cell) -> str:
    return 'one changed' if cell['change'] else 'unchanged'


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = figures['cells']
    return report_.Report(
        "A round of the resource tracker", (_WHAT, *_outcome(cells)),
        (_table(cells),), tuple(_plots(cells)))


_WHAT = (
    'nova-compute makes a round each minute, and before and after each '
    'server: ``update_available_resource`` of a real resource tracker with a '
    'real Placement in one process. nova_accel has cards, and each of their '
    "virtual functions is a region. Nova's own driver has as many PCI devices "
    'that it reports (``[pci] report_in_placement``), or as many devices that '
    'make mdevs, or no devices. *One changed*: a region was removed or came '
    'back, or a device can make another number of mdevs. Nova looks for PCI '
    'devices when it starts and does not notice changes. The figures leave '
    'out the requests that Nova repeats for each provider every five minutes '
    'on all sides.')


def _outcome(cells) -> collections.abc.Iterator[str]:
    for cell in cells:
        if cell['side'] == OURS and 'failed' not in cell:
            yield (f'{_size(cell)}, {_when(cell)}: nova_accel makes '
                   f'{_requests(cell)}; ' + '; '.join(
                       f'{_NAMES[side]} make {_requests(other)}, and take '
                       f'{_number(other["seconds"] / cell["seconds"])} times '
                       'as long' for side in (PCI, MDEV)
                       if (other := _find(cells, cell, side))) + '.')


def _size(cell) -> str:
    regions = 'region' if cell['regions'] == 1 else 'regions'
    return f'{cell["devices"]} devices with {cell["regions"]} {regions} each'


def _requests(cell) -> str:
    return f'{cell["reads"]:g} reads and {cell["writes"]:g} writes'


def _find(cells, like, side) -> dict | None:
    return next((cell for cell in cells if cell['side'] == side and all(
        cell[key] == like[key] for key in ('devices', 'regions', 'change'))
        and 'failed' not in cell), None)


def _table(cells) -> report_.Table:
    return report_.Table(
        'One round of the resource tracker',
        ('Devices', 'Regions', 'Reported by', 'Providers', 'When', 'Reads',
         'Writes', 'Seconds'),
        tuple((str(cell['devices']), str(cell['regions']),
               _NAMES[cell['side']], *(
                   ('', _when(cell), '', '', cell['failed'])
                   if 'failed' in cell else
                   (str(cell['providers']), _when(cell),
                    f'{cell["reads"]:g}', f'{cell["writes"]:g}',
                    _number(cell['seconds']))))
              for cell in cells))


def _plots(cells) -> collections.abc.Iterator[report_.Plot]:
    for change in (False, True):
        chosen = [cell for cell in cells
                  if cell['change'] == change and 'failed' not in cell]

        def points(side, value, chosen=chosen):
            return [(cell['devices'] * cell['regions'], found)
                    for cell in chosen
                    if cell['side'] == side and (found := value(cell))]

        def ratio(cell, chosen=chosen):
            ours = _find(chosen, cell, OURS)
            return ours and cell['seconds'] / ours['seconds']

        sides = _CHANGING if change else tuple(_NAMES)
        when = 'one changed' if change else 'nothing changed'
        yield report_.Plot(
            'changed' if change else 'unchanged',
            f'A round of the resource tracker, {when}', 'regions', 'seconds',
            {_NAMES[side]: points(side, lambda cell: cell['seconds'])
             for side in sides},
            {_NAMES[side]: points(side, ratio)
             for side in sides if side != OURS}, ratio='times nova_accel')


_number = report_.significant

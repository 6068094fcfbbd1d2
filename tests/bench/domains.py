# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the cost of existing servers for new servers.

It compares nova_accel, whose servers have devices, with Nova's own driver and
as many servers without devices.
"""

import collections.abc

from tests.bench import frame
from tests.bench import report as report_
from tests.bench import worker

OURS, NOVAS = 'ours', 'novas'
_NAMES = {OURS: 'nova_accel', NOVAS: "Nova's driver"}

#: Devices, regions of each device, and servers with a region, by scale.
_SCALES = {frame.QUICK: ((1, 2, 2),), frame.MEDIUM: ((8, 4, 30),),
           frame.FULL: ((8, 32, 200), (64, 16, 200))}
#: Timeouts in seconds: for the start of a host, and for its servers.
_START, _LIMIT = 900, 1800


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    cells = []
    for devices, regions, most in _SCALES[scale]:
        with worker.sides(_NAMES, _START, _make, devices, regions) as sides:
            for servers in (0, most):
                for side, host in sides.items():
                    cells.append({
                        'side': side, 'devices': devices, 'regions': regions,
                        'servers': servers,
                        **host.ask({'servers': servers}, _LIMIT)})
                    say(_progress(cells[-1]))
    return {'cells': cells}


def _make(connection, side, devices, regions):
    from tests.bench import crowd
    return crowd.SIDES[side](connection, devices, regions)


def _progress(cell) -> str:
    outcome = cell.get('failed') or (
        f'a round {cell["round"]:.3f} s and {cell["round_reads"]:g} reads of '
        f'libvirt, a claim {cell["claim"]:.3f} s and {cell["claim_reads"]:g}')
    return (f'{_NAMES[cell["side"]]}, {cell["devices"]} devices of '
            f'{cell["regions"]}, {cell["servers"]} servers: {outcome}')


def report(figures: collections.abc.Mapping) -> report_.Report:
    cells = figures['cells']
    return report_.Report('Existing servers', (_WHAT, *_outcome(cells)),
                          (_table(cells),))


_WHAT = (
    'On a host with many servers, this measures a round of the resource '
    'tracker, and the claim that nova-compute makes for a new server without '
    'devices. Both hold the lock of the resource tracker. With nova_accel, '
    "each existing server has a virtual function. With Nova's driver, as many "
    'servers have no devices. A read of libvirt is one description of a '
    'domain.')


def _outcome(cells) -> collections.abc.Iterator[str]:
    for cell in cells:
        fewer = _find(cells, cell, OURS, 0)
        stock = _find(cells, cell, NOVAS, cell['servers'])
        if cell['side'] == OURS and cell['servers'] and 'failed' not in cell:
            yield (f'{cell["devices"]} devices with {cell["regions"]} regions '
                   f'each and {cell["servers"]} servers: '
                   + '; '.join(f'a {what} takes ' + ' and '.join(
                       f'{_number(cell[what] / other[what])} times as long as '
                       f'with {words}' for other, words in (
                           (fewer, 'no server'), (stock, "Nova's driver"))
                       if other) + f', and reads libvirt '
                       f'{cell[what + "_reads"]:g} times'
                       for what in ('round', 'claim')) + '.')


def _find(cells, like, side, servers) -> dict | None:
    return next((cell for cell in cells if cell['side'] == side
                 and cell['servers'] == servers and all(
                     cell[key] == like[key] for key in ('devices', 'regions'))
                 and 'failed' not in cell), None)


def _table(cells) -> report_.Table:
    return report_.Table(
        'A round of the resource tracker, and a claim for a plain server',
        ('Devices', 'Regions', 'Driver', 'Servers', 'Round, s',
         'reads of libvirt', 'Claim, s', 'reads of libvirt'),
        tuple((str(cell['devices']), str(cell['regions']),
               _NAMES[cell['side']], str(cell['servers']), *(
                   (cell['failed'], '', '', '') if 'failed' in cell else
                   (_number(cell['round']), f'{cell["round_reads"]:g}',
                    _number(cell['claim']), f'{cell["claim_reads"]:g}')))
              for cell in cells))


_number = report_.significant

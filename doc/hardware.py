# SPDX-License-Identifier: Apache-2.0
"""Write the table of hardware from its reports.

``python doc/hardware.py`` writes ``source/reference/hardware.inc``. Reports
are outputs of ``nova-accel host verify -f json``. Their files are
``source/reference/hardware/HOW-NAME.json``, with ``hardware``, ``emulated`` or
``modelled`` for HOW.
"""

import json
import pathlib

SOURCE = pathlib.Path(__file__).parent / 'source' / 'reference'
TABLE = SOURCE / 'hardware.inc'
_REPORTS = SOURCE / 'hardware'
_TITLES = ('Device', 'Kind', 'Units', 'Driver', 'Reset methods', 'Reset',
           'Seen')


def table() -> str:
    """Return the table in reStructuredText."""
    lines = ['.. Written by "python doc/hardware.py", not by hand.', '',
             '.. list-table::', '   :header-rows: 1', '']
    for row in (_TITLES, *sorted(_rows())):
        lines += [f'   {"*" if not number else " "} - {cell}'.rstrip()
                  for number, cell in enumerate(row)]
    return '\n'.join(lines) + '\n'


def _rows() -> set[tuple[str, ...]]:
    rows = set()
    for path in _REPORTS.glob('*.json'):
        report = json.loads(path.read_text())
        how = path.stem.partition('-')[0]
        for region in report['regions']:
            rows.add((f'``{region["ids"]}``', region['kind'],
                      str(region['units']), region['driver'],
                      region['reset_methods'],
                      '; '.join([region['reset'].removeprefix('reset '),
                                 *region['problems']]),
                      _seen(how, report)))
        for refusal in report['refused']:
            rows.add((f'``{refusal["ids"]}``', '', 'none', refusal['driver'],
                      refusal['reset_methods'],
                      '; '.join([f'refused: {refusal["reason"]}',
                                 *refusal['problems']]),
                      _seen(how, report)))
    return rows


def _seen(how: str, report: dict) -> str:
    kernel = f', Linux {report["kernel"]}' if report['kernel'] else ''
    return f'{how}{kernel}, nova-accel {report["nova_accel"]}'


if __name__ == '__main__':
    TABLE.write_text(table())

# SPDX-License-Identifier: Apache-2.0
"""Try the kinds on this machine: ``python -m tests.hardware FILE``.

As root. FILE has entries, as in ``device_spec``, a JSON object a line. A unit
of each Region that they offer is made ready, given to a guest that libvirt
starts and does not let run, taken from it, and taken back. Nothing that is in
use is touched, since nothing that is in use is offered.
"""

import argparse
import json
import pathlib
import sys

import prettytable

from nova_accel.host import loader
from nova_accel.host import reader
from nova_accel.host import tree
from tests.hardware import trial


def main() -> int:
    arguments = _arguments()
    machine = tree.open_tree('/sys')
    entries, broken = reader.parse(
        line for line in arguments.file.read_text().splitlines()
        if line.strip() and not line.startswith('#'))
    for error in broken:
        print(error, file=sys.stderr)
    trials = trial.Trials(machine, entries, loader.open_all(machine))
    results = []
    for result in trials.run():
        results.append(result)
        print('.' if result.ok else 'F', end='', file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(_as_json(results) if arguments.json else _as_table(results))
    return 1 if broken or not results or not all(
        result.ok for result in results) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser('hardware', description=__doc__)
    parser.add_argument('file', type=pathlib.Path)
    parser.add_argument('--json', action='store_true', help='for programs')
    return parser.parse_args()


def _as_json(results) -> str:
    return json.dumps([vars(result) for result in results], indent=2)


def _as_table(results) -> str:
    table = prettytable.PrettyTable(
        ['kind', 'device', 'region', 'units', 'given', 'what happened'])
    table.align = 'l'
    for result in results:
        table.add_row([result.kind, result.device, result.region,
                       result.units, '\n'.join(result.given),
                       result.problem or 'ready, in a guest, taken back; '
                       + ', '.join(result.drivers)])
    return table.get_string()


if __name__ == '__main__':
    sys.exit(main())

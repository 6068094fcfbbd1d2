# SPDX-License-Identifier: Apache-2.0
"""Bring up a cloud in the namespaces, and run parts of the test in it.

``python -m tests.integration.session`` is this program. When it ends, all
services end with it.
"""

import argparse
import json
import signal
import sys

import prettytable

from tests.integration import parts
from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import bringing
from tests.integration.cloud import cloud as clouds


def main() -> int:
    arguments = _arguments()
    shown = steps.Steps(sys.stderr if arguments.json else sys.stdout)
    shown.taken += [tuple(pair) for pair in json.loads(arguments.taken)]
    # SIGTERM acts like Ctrl-C, so that the finally clause runs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cloud = clouds.Cloud()
    results = {}
    try:
        bringing.up(cloud, shown)
        for name in arguments.parts:
            with shown.step(f'part {name}'):
                results[name] = parts.run(name, shown.say)
        if arguments.keep:
            _hold(shown)
    except steps.Failure as failure:
        print(f'error: {failure}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        _report(shown, results, arguments.json)
    return 0 if all(result.good for result in results.values()) else 1


def _arguments():
    parser = argparse.ArgumentParser('session', description=__doc__)
    parser.add_argument('parts', nargs='*')
    parser.add_argument('--keep', action='store_true')
    parser.add_argument('--json', action='store_true')
    parser.add_argument('--taken', default='[]',
                        help='earlier steps, with their seconds')
    return parser.parse_args()


def _hold(shown):
    shown.say(shown.table())
    shown.say('The cloud is up until Ctrl-C or "python -m tests.integration '
              'down". Use it with "run" and "enter".')
    try:
        signal.pause()
    except KeyboardInterrupt:
        pass


def _report(shown, results, as_json):
    if as_json:
        print(json.dumps({
            'steps': [{'name': name, 'seconds': round(seconds, 1)}
                      for name, seconds in shown.taken],
            'parts': {name: {'good': result.good, 'seconds': result.seconds,
                             'scenarios': result.outcomes}
                      for name, result in results.items()},
            'logs': str(place.LOG)}, indent=2))
        return
    shown.say(shown.table())
    if results:
        shown.say(str(_table(results)))
    shown.say(f'The logs of the services are in {place.LOG}.')


def _table(results):
    table = prettytable.PrettyTable(
        ['part', 'passed', 'failed', 'skipped', 'seconds', ''])
    table.align = 'r'
    for name, result in results.items():
        outcomes = list(result.outcomes.values())
        skipped = outcomes.count('skipped')
        passed = outcomes.count('passed')
        table.add_row([name, passed, len(outcomes) - passed - skipped, skipped,
                       f'{result.seconds:.1f}',
                       'ok' if result.good else 'FAILED'])
    return table


if __name__ == '__main__':
    sys.exit(main())

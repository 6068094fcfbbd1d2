# SPDX-License-Identifier: Apache-2.0
"""Run all cells: ``python -m tests.holding --jobs 2``.

With ``--mutations``, run the cell of each mutation of the rule instead.
"""

import argparse
import collections
from concurrent import futures
import json
import subprocess
import sys

from tests.holding import changes
from tests.holding import mutations
from tests.holding import operations


def main() -> int:
    arguments = _arguments()
    return (_check_mutations(arguments) if arguments.mutations
            else _check_all(arguments))


def _check_all(arguments: argparse.Namespace) -> int:
    results = []
    with futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for done in futures.as_completed(
                [pool.submit(_run, kind, operation)
                 for operation in arguments.operation or operations.OPERATIONS
                 for kind in (arguments.kind or
                              operations.OPERATIONS[operation].kinds)]):
            results += done.result()
            if not arguments.json:
                _show(done.result())
    unexpected = sum(bool(result['problems']) for result in results)
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        print(f'{len(results)} cells, {unexpected} unexpected')
    return 1 if unexpected else 0


def _check_mutations(arguments: argparse.Namespace) -> int:
    """Check that each mutation makes its cell unexpected."""
    caught = {}
    with futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for name, results in zip(mutations.MUTATIONS, pool.map(
                _run_mutation, mutations.MUTATIONS), strict=True):
            caught[name] = any(result['problems'] for result in results)
            if not arguments.json:
                print(f'{"caught" if caught[name] else "NOT CAUGHT":12}{name}',
                      flush=True)
    if arguments.json:
        print(json.dumps(caught, indent=2))
    return 0 if all(caught.values()) else 1


def _run_mutation(name: str) -> list[dict]:
    mutation = mutations.MUTATIONS[name]
    return _run(mutation.kind, mutation.operation, '--change',
                mutation.change, '--when', mutation.when, '--mutation', name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser('holding', description=__doc__)
    parser.add_argument('--jobs', type=int, default=1,
                        help='number of operations to run at the same time '
                        '(%(default)s)')
    parser.add_argument('--operation', action='append',
                        choices=operations.OPERATIONS, metavar='NAME',
                        help='run only this operation; can be repeated')
    parser.add_argument('--kind', action='append', metavar='KIND',
                        help='run this kind of device, such as alternatives, '
                        'instead of card and vf; can be repeated')
    parser.add_argument('--mutations', action='store_true',
                        help='check that cells notice when a clause of the '
                        'rule is dropped')
    parser.add_argument('--json', action='store_true',
                        help='print one JSON document at the end')
    return parser.parse_args()


def _run(kind: str, operation: str, *options: str) -> list[dict]:
    """Run cells of an operation in a process of their own."""
    finished = subprocess.run(
        [sys.executable, '-W', 'ignore', '-m', 'tests.holding.worker', kind,
         operation, *options], stdout=subprocess.PIPE, text=True)
    results = [json.loads(line) for line in finished.stdout.splitlines()]
    if finished.returncode:
        results.append({
            'kind': kind, 'operation': operation, 'change': 'end',
            'when': 'end', 'seconds': 0,
            'problems': [f'exit code {finished.returncode}']})
    return results


def _show(results: list[dict]) -> None:
    """Print a table of an operation, and its problems."""
    cells = collections.defaultdict(dict)
    for result in results:
        cells[result['change']][result['when']] = (
            'UNEXPECTED' if result['problems'] else 'ok')
    print(f'{results[0]["operation"]}, {results[0]["kind"]}, '
          f'{sum(result["seconds"] for result in results):.0f} s')
    for row in (('', *changes.TIMES), *(
            (change, *(by_time.get(when, '-') for when in changes.TIMES))
            for change, by_time in cells.items())):
        print('  ' + ''.join(f'{text:20}' for text in row).rstrip())
    for result in results:
        for problem in result['problems']:
            print(f'{result["change"]}, {result["when"]}: {problem}')
    print(flush=True)


if __name__ == '__main__':
    sys.exit(main())

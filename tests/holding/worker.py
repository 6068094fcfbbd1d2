# SPDX-License-Identifier: Apache-2.0
"""Run cells: ``python -m tests.holding.worker card 'revert to none'``.

The arguments are the kind of device and an operation; optional ones are a
change, a time and a mutation. Each line of standard output is the result of
a cell, as JSON.
"""

import argparse
import json
import sys
import time
import unittest

from tests import quiet
from tests.holding import changes
from tests.holding import operations


def cells(operation: str) -> list[tuple[str, str]]:
    """Return the changes and times of the cells of an operation.

    Without a first half there is no time between the halves.
    """
    has_two = operations.OPERATIONS[operation].first is not None
    return [(change, when) for change in changes.CHANGES
            for when in changes.TIMES if has_two or when != 'between']


class Run:
    """Runs cells, and starts a new cloud after each problem.

    :param wanted: changes and times of the cells
    :param out: text file for the results
    """

    def __init__(self, kind, operation, wanted, mutation, out):
        self.kind, self.operation = kind, operation
        self.wanted, self.mutation, self.out = wanted, mutation, out
        self.began = 0.0

    def run(self) -> None:
        while self.wanted:
            if problems := self._in_a_cloud():
                self._report(problems)

    def check_all(self, cell) -> None:
        """Run cells in a cloud until one has a problem."""
        while self.wanted:
            self.began = time.monotonic()
            cell.check(self.operation, *self.wanted[0])
            self._report([])

    def _in_a_cloud(self) -> list[str]:
        from tests.holding import cell
        from tests.holding import mutations

        class Cells(cell.Cell):
            KIND = self.kind
            HOSTS = cell.hosts(self.operation)

            def runTest(this):
                self.check_all(this)

        self.began = time.monotonic()
        result = unittest.TestResult()
        with mutations.applied(self.mutation):
            Cells().run(result)
        return [trace for _case, trace in (*result.errors, *result.failures)]

    def _report(self, problems: list[str]) -> None:
        # After the last cell there can be a problem of the cloud's end.
        change, when = self.wanted.pop(0) if self.wanted else ('end', 'end')
        print(json.dumps({
            'kind': self.kind, 'operation': self.operation, 'change': change,
            'when': when, 'problems': problems,
            'seconds': round(time.monotonic() - self.began, 1)}),
            file=self.out, flush=True)


def main() -> int:
    arguments = _arguments()
    wanted = [
        (change, when) for change, when in cells(arguments.operation)
        if arguments.change in (None, change)
        and arguments.when in (None, when)]
    with quiet.quiet() as (out, _err):
        Run(arguments.kind, arguments.operation, wanted, arguments.mutation,
            out).run()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser('worker', description=__doc__)
    parser.add_argument('kind')
    parser.add_argument('operation')
    parser.add_argument('--change')
    parser.add_argument('--when')
    parser.add_argument('--mutation')
    return parser.parse_args()


if __name__ == '__main__':
    sys.exit(main())

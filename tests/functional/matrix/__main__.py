# SPDX-License-Identifier: Apache-2.0
"""The rows of the table in doc/source/operations.rst, as the tests have it."""

from tests.functional.matrix import cells
from tests.functional.matrix import operations
from tests.functional.matrix import test_matrix

ROWS = (*operations.Operations.__bases__, cells.Cells)


def table():
    """Cells by row and column."""
    columns = [case for case in vars(test_matrix).values()
               if isinstance(case, type)]
    found = {'Operation': {case.kind.name: case.kind.name
                           for case in columns}}
    for rows in ROWS:
        for name in vars(rows):
            if not name.startswith('test_'):
                continue
            for case in columns:
                test = getattr(case, name, None)
                for operation in getattr(rows, name).operations:
                    found.setdefault(operation, {})
                    if issubclass(case, rows):
                        found[operation][case.kind.name] = (
                            test.outcome if test else '–')
    return found


for row, outcomes in table().items():
    print(f'   * - {row}')
    for outcome in outcomes.values():
        print(f'     - {outcome}')

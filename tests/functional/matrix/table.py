# SPDX-License-Identifier: Apache-2.0
"""Print the rows of the table in doc/source/user/operations.rst.

The rows are made from the tests.
"""

from tests.functional.matrix import cells
from tests.functional.matrix import operations
from tests.functional.matrix import test_matrix

_ROWS = (*operations.Operations.__bases__, cells.Cells)


def rows() -> str:
    """Return the table's rows as reStructuredText."""
    return '\n'.join(
        '\n'.join((f'   * - {row}', *(f'     - {outcome}'
                                      for outcome in outcomes.values())))
        for row, outcomes in _cells().items())


def _cells():
    """Return the content of the cells, by row and column."""
    columns = [case for case in vars(test_matrix).values()
               if isinstance(case, type)]
    found = {'Operation': {case.kind.name: case.kind.name
                           for case in columns}}
    for group in _ROWS:
        for name in vars(group):
            if not name.startswith('test_'):
                continue
            for case in columns:
                test = getattr(case, name, None)
                for operation in getattr(group, name).operations:
                    found.setdefault(operation, {})
                    if issubclass(case, group):
                        found[operation][case.kind.name] = (
                            test.outcome if test else '–')
    return found


if __name__ == '__main__':
    print(rows())

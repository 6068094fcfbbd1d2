# SPDX-License-Identifier: Apache-2.0
"""The matrix of operations and kinds of devices.

A test case is a column of the table. A test covers one or more rows.
"""

from tests.functional.matrix import cells
from tests.functional.matrix import kinds
from tests.functional.matrix import operations


class WholeDeviceTest(operations.Operations):
    kind = kinds.WHOLE


class FunctionTest(operations.Operations):
    kind = kinds.FUNCTION


class MdevTest(operations.Operations):
    kind = kinds.MDEV
    # By default mdevs are live migratable.
    test_live_migration_that_is_refused = None


class SeveralTest(operations.Operations):
    kind = kinds.SEVERAL


class WholeDeviceCellsTest(cells.Cells):
    kind = kinds.WHOLE


class FunctionCellsTest(cells.Cells):
    kind = kinds.FUNCTION


class MdevCellsTest(cells.Cells):
    kind = kinds.MDEV


class SeveralCellsTest(cells.Cells):
    kind = kinds.SEVERAL

# SPDX-License-Identifier: Apache-2.0
"""The operations for a profile of three alternatives.

It has no column in the table: its outcomes are those of a PCI device.
"""

from tests.functional.matrix import cells
from tests.functional.matrix import kinds
from tests.functional.matrix import operations


class AlternativesTest(operations.Operations):
    kind = kinds.ALTERNATIVES


class AlternativesCellsTest(cells.Cells):
    kind = kinds.ALTERNATIVES

# SPDX-License-Identifier: Apache-2.0
"""The rows of the matrix."""

from tests.functional.matrix import lifecycle
from tests.functional.matrix import live
from tests.functional.matrix import moves


class Operations(lifecycle.Lifecycle, moves.Moves, live.LiveMigration):
    """Every operation within a cell; a subclass sets the kind."""

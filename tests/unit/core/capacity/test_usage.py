# SPDX-License-Identifier: Apache-2.0
"""Sums of used, free and withheld units."""

from nova_accel.core.capacity import usage
from nova_accel.core.placement import listing


def _units(provider, used, free, *reasons):
    return listing.Units(provider, '', 'CUSTOM_GPU', frozenset(), used, free,
                         reasons)


def test_units_that_nobody_has_and_nobody_gets_are_withheld():
    found = usage.of(
        [_units('a', 1, 0), _units('b', 0, 2), _units('c', 0, 0, 'drained'),
         _units('d', 3, 0, 'drained'), _units('e', 0, 0, 'drained', 'missing'),
         # A server has more than there is by now.
         _units('f', 3, 0, 'refused')],
        {'a': 1, 'b': 2, 'c': 4, 'd': 8, 'e': 1, 'f': 2})
    assert found == usage.Usage(7, 2, {'drained': 9, 'drained, missing': 1})
    assert found.total == 19


def test_nothing_is_nothing():
    assert usage.of([], {}) == usage.Usage(0, 0, {})

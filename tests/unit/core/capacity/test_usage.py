# SPDX-License-Identifier: Apache-2.0
"""Sums of used, free and withheld units."""

from nova_accel.core.capacity import usage
from nova_accel.core.placement import listing


def _units(provider, used, free, *reasons):
    return listing.Units(provider, '', 'CUSTOM_GPU', frozenset(), used, free,
                         reasons)


def test_units_neither_used_nor_free_are_withheld():
    found = usage.of(
        [_units('a', 1, 0), _units('b', 0, 2), _units('c', 0, 0, 'drained'),
         _units('d', 3, 0, 'drained'), _units('e', 0, 0, 'drained', 'missing'),
         # Units disappeared, so a server has more units than exist.
         _units('f', 3, 0, 'refused')],
        {'a': 1, 'b': 2, 'c': 4, 'd': 8, 'e': 1, 'f': 2})
    assert found == usage.Usage(7, 2, {'drained': 9, 'drained, missing': 1})
    assert found.total == 19


def test_sum_of_no_units_is_zero():
    assert usage.of([], {}) == usage.Usage(0, 0, {})

# SPDX-License-Identifier: Apache-2.0
"""What counts as a problem of a function."""

import pytest

from nova_accel.core import health

FATAL, CORRECTABLE = health.Severity.FATAL, health.Severity.CORRECTABLE
LIMITS = health.Limits({FATAL: 0, CORRECTABLE: 10})
WIDE = health.Link('0000:43:00.0', 16, 16, 16., 32.)
NARROW = health.Link('0000:42:00.0', 4, 16, 32., 32.)


def test_errors_count_for_an_hour():
    history = health.History({FATAL: 7})
    assert [history.add(now, {FATAL: count})[FATAL]
            for now, count in ((10, 7), (60, 8), (120, 8), (3659, 8),
                               (3661, 8), (3720, 9), (9999, 9), (10059, 9))
            ] == [0, 1, 1, 1, 0, 1, 0, 0]


def test_first_errors_of_a_suspected_function_count():
    history = health.History({})
    assert history.add(10, {FATAL: 7}) == {FATAL: 7}
    assert history.add(3700, {FATAL: 7}) == {FATAL: 0}


def test_counters_that_start_again():
    history = health.History({FATAL: 7, CORRECTABLE: 100})
    assert history.add(10, {FATAL: 2, CORRECTABLE: 100}) == {
        FATAL: 2, CORRECTABLE: 100}
    assert history.add(70, {FATAL: 2, CORRECTABLE: 101}) == {
        FATAL: 2, CORRECTABLE: 101}


def test_counters_that_cannot_be_read_any_more():
    history = health.History({FATAL: 7})
    assert history.add(10, {}) == {}
    assert history.add(70, {FATAL: 7}) == {FATAL: 7}


@pytest.mark.parametrize('facts, recent, limits, expected', [
    ({}, {}, LIMITS, []),
    ({'links': (WIDE,)}, {FATAL: 0, CORRECTABLE: 10}, LIMITS, []),
    ({}, {FATAL: 1}, LIMITS,
     ['it had a fatal PCI Express error within an hour']),
    ({}, {CORRECTABLE: 11}, LIMITS,
     ['it had more than 10 correctable PCI Express errors within an hour']),
    ({}, {FATAL: 1}, health.Limits({}), []),
    ({'links': (WIDE, NARROW)}, {}, LIMITS,
     ['the link of 0000:42:00.0 has 4 of 16 lanes']),
    ({'links': (WIDE, NARROW)}, {}, health.Limits({}, False, True),
     ['the link of 0000:43:00.0 runs at 16 of 32 GT/s']),
    ({'missing_vfs': 2}, {}, LIMITS,
     ['2 of its virtual functions are enabled, but not there']),
    ({'missing_vfs': 1}, {}, LIMITS,
     ['1 of its virtual functions is enabled, but not there']),
    ({}, {CORRECTABLE: 2}, health.Limits({CORRECTABLE: 1}),
     ['it had more than 1 correctable PCI Express error within an hour']),
    ({'answers': False, 'missing_vfs': 2, 'links': (NARROW,)}, {FATAL: 1},
     LIMITS, ['it does not answer: its configuration space reads as all '
              'ones']),
])
def test_problems(facts, recent, limits, expected):
    assert list(health.problems(health.Facts(**facts), recent, limits)
                ) == expected

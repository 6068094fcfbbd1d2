# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition on nested machines.

The machines run in software emulation, so the duration of an operation says
nothing. A test fails only if the condition never becomes true. Time in which
the machines had to wait for a processor does not count.
"""

import collections.abc
import sys
import time

from tests.integration.machine import clock

#: The limit in seconds of the machines' own time.
LIMIT = 900

_PAUSE = 2
_BEAT = 30


def until(what: str, ask: collections.abc.Callable):
    """Call a function until it returns something true.

    :param what: the awaited condition, for messages
    :param ask: the function
    :returns: its result
    :raises AssertionError: at the time limit, with the last result
    """
    for answer in _answers(what, ask):
        if answer:
            return answer
    raise AssertionError(f'{what}: not within {LIMIT} s, but {answer!r}')


def becomes(what: str, ask: collections.abc.Callable, wanted) -> None:
    """Call a function until it returns the wanted value.

    :raises AssertionError: at the time limit, with the last and the wanted
        value
    """
    for answer in _answers(what, ask):
        if answer == wanted:
            return
    assert answer == wanted, f'{what}: not within {LIMIT} s'


def _answers(what, ask):
    passed, said = clock.Clock(), 0
    while True:
        yield ask()
        now = passed()
        if now > LIMIT:
            return
        if now - said > _BEAT:
            said = now
            print(f'    {now:.0f} s: {what}', file=sys.__stderr__, flush=True)
        time.sleep(_PAUSE)

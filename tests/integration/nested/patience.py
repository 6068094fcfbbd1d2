# SPDX-License-Identifier: Apache-2.0
"""To wait for what comes when it comes.

Everything runs in software emulation: how long something takes says
nothing. What does not come at all is the only verdict. What the machines could
not do while others had the processors does not count.
"""

import collections.abc
import sys
import time

from tests.integration.machine import clock

#: Seconds of the machines' until one stops waiting.
LIMIT = 900

_PAUSE = 2
_BEAT = 30


def until(what: str, ask: collections.abc.Callable):
    """Ask until the answer is true.

    :param what: that is waited for, in words
    :returns: the answer
    :raises AssertionError: if it never comes; with the last answer
    """
    for answer in _answers(what, ask):
        if answer:
            return answer
    raise AssertionError(f'{what}: not within {LIMIT} s, but {answer!r}')


def becomes(what: str, ask: collections.abc.Callable, wanted) -> None:
    """Ask until the answer is as wanted.

    :raises AssertionError: if it never is; with both
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

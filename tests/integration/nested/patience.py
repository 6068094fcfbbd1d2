# SPDX-License-Identifier: Apache-2.0
"""To wait for what comes when it comes.

Everything runs in software emulation: how long something takes says
nothing. What does not come at all is the only verdict.
"""

import collections.abc
import sys
import time

#: Seconds until one stops waiting.
LIMIT = 900

_PAUSE = 2
_BEAT = 30


def until(what: str, ask: collections.abc.Callable, limit: float = LIMIT):
    """Ask until the answer is true.

    :param what: that is waited for, in words
    :param limit: seconds
    :returns: the answer
    :raises AssertionError: if it never comes; with the last answer
    """
    for answer in _answers(what, ask, limit):
        if answer:
            return answer
    raise AssertionError(f'{what}: not within {limit} s, but {answer!r}')


def becomes(what: str, ask: collections.abc.Callable, wanted,
            limit: float = LIMIT) -> None:
    """Ask until the answer is as wanted.

    :raises AssertionError: if it never is; with both
    """
    for answer in _answers(what, ask, limit):
        if answer == wanted:
            return
    assert answer == wanted, f'{what}: not within {limit} s'


def _answers(what, ask, limit):
    start = said = time.monotonic()
    while True:
        yield ask()
        now = time.monotonic()
        if now - start > limit:
            return
        if now - said > _BEAT:
            said = now
            print(f'    {now - start:.0f} s: {what}', file=sys.__stderr__,
                  flush=True)
        time.sleep(_PAUSE)

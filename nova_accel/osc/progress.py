# SPDX-License-Identifier: Apache-2.0
"""Says on stderr how far a command is that takes some time.

These are lines, which logs of scripts can keep, and no bar as that of tqdm.
"""

import collections.abc
import sys
import time
import typing

from nova_accel.core import errors

# Seconds before the first line and between two lines.
_INTERVAL = 5

T = typing.TypeVar('T')


class Searched:
    """Says how many moves a search tries, and how many states it examined.

    It is called after each state.
    """

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, limit: int, examined: int) -> None:
        if time.monotonic() - self._said > _INTERVAL:
            self._said = time.monotonic()
            print(f'plans of {errors.count(limit, "move")}: '
                  f'{errors.count(examined, "state")} examined',
                  file=sys.stderr, flush=True)


def each(items: collections.abc.Iterable[T], count: int | None,
         what: str) -> collections.abc.Iterator[T]:
    """Yield each item, and say how many there were.

    :param count: the number of items, None if it is not known
    :param what: the word for one item
    """
    said = time.monotonic()
    for number, item in enumerate(items, 1):
        yield item
        if time.monotonic() - said > _INTERVAL and number != count:
            said = time.monotonic()
            print(f'{number} of {errors.count(count, what)}' if count else
                  errors.count(number, what), file=sys.stderr, flush=True)

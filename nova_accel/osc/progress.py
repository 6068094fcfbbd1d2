# SPDX-License-Identifier: Apache-2.0
"""Says on stderr how far a command is that takes some time."""

import collections.abc
import sys
import time
import typing

# Seconds before the first line and between two lines.
_INTERVAL = 5

T = typing.TypeVar('T')


def each(items: collections.abc.Iterable[T], count: int | None,
         what: str) -> collections.abc.Iterator[T]:
    """Yield each item, and say how many there were.

    :param count: the number of items, None if it is not known
    :param what: what the items are, in words
    """
    said = time.monotonic()
    for number, item in enumerate(items, 1):
        yield item
        if time.monotonic() - said > _INTERVAL and number != count:
            said = time.monotonic()
            print(f'{number} of {count} {what}' if count else
                  f'{number} {what}', file=sys.stderr, flush=True)

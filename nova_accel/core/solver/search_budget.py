# SPDX-License-Identifier: Apache-2.0
"""Limit the steps of a search, and of all searches for one request.

A search gives up after a number of steps. Every host of a request gets a few
first. The most promising hosts then share the rest. So nova-scheduler does not
search for an hour if all hosts are different and hard to search.
"""

import collections.abc
import contextlib
import math
import threading
import typing

import cachetools

#: Steps after which the search of one host gives up. A step assigns a source
#: to a demand. 16 devices and 16 groups need a few hundred.
MAX_STEPS = 30_000
#: Steps that each host of a request gets first.
FIRST_STEPS = 50
#: The most steps of one host in each round after that.
ROUNDS = 250, 2_500, MAX_STEPS
#: Steps that the hosts of one request share until one can serve it: some
#: seconds.
REQUEST_STEPS = MAX_STEPS
#: Steps that they share for finding a better answer: less than a second.
BETTER_STEPS = 1_000

# The size of a cache, counted in sources: some ten megabytes.
_MEMORY = 1 << 18


class Steps:
    """The steps that one search may take.

    :param limit: how many
    :ivar left: how many of them are left
    """

    def __init__(self, limit: int = MAX_STEPS) -> None:
        self.limit = self.left = limit

    @property
    def are_spent(self) -> bool:
        return self.left <= 0


class Budget:
    """The steps that the searches for one request share.

    :param steps: how many; default unlimited
    :param least: what each search gets even if none are left
    :param most: the limit of each search, default MAX_STEPS
    """

    def __init__(self, steps: float = math.inf, least: int = 0,
                 most: int | None = None) -> None:
        self._left = steps
        self._least = least
        self.most = MAX_STEPS if most is None else most

    @property
    def is_spent(self) -> bool:
        return self._left <= self._least

    def share(self) -> Steps:
        """Return the steps of the next search."""
        return Steps(int(max(self._least, min(self.most, self._left))))

    def spend(self, steps: Steps) -> None:
        """Deduct the steps that a search took."""
        self.take(steps.limit - steps.left)

    def take(self, number: int) -> None:
        """Deduct a number of steps."""
        self._left = max(0, self._left - number)


_Asked = typing.TypeVar('_Asked', bound=collections.abc.Sized)
_More = typing.TypeVarTuple('_More')
_Answer = typing.TypeVar('_Answer')


class _Known(typing.Generic[_Answer]):
    """A cached answer with the steps that it took.

    Both are one attribute, since threads write and read them together.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.found: tuple[_Answer | None, Steps] = None, Steps(0)


class Remembered(typing.Generic[_Asked, *_More, _Answer]):
    """A function whose answers are cached; a cached answer costs no steps.

    It has a :class:`Budget` in place of the steps. If the steps of an answer
    ran out, and the budget now allows more, the function is called again.
    Evict at random: the hosts of a fleet come in the same order each time, so
    that with more hosts than the cache holds, a least recently used cache
    would never have the next one.

    :param function: takes hashable arguments, and :class:`Steps` as the last
    """

    def __init__(self, function: collections.abc.Callable[
            [_Asked, *_More, Steps], _Answer]) -> None:
        self._function = function
        self.memory: cachetools.RRCache[
            tuple[_Asked, *_More], _Known[_Answer]] = cachetools.RRCache(
                _MEMORY, getsizeof=lambda known: known.size)
        self._lock = threading.Lock()

    def _recall(self, asked: _Asked, *more: *_More) -> _Known[_Answer]:
        question = asked, *more
        with self._lock:
            known = self.memory.get(question)
            if known is None:
                known = _Known(1 + len(asked))
                with contextlib.suppress(ValueError):  # Larger than a cache.
                    self.memory[question] = known
            return known

    def __call__(self, asked: _Asked,
                 *more_and_budget: *tuple[*_More, Budget]) -> _Answer:
        more, budget = more_and_budget[:-1], more_and_budget[-1]
        known, steps = self._recall(asked, *more), budget.share()
        answer, taken = known.found
        if answer is None or taken.are_spent and taken.limit < steps.limit:
            answer = self._function(asked, *more, steps)
            known.found = answer, steps
            budget.spend(steps)
        return answer

# SPDX-License-Identifier: Apache-2.0
"""How many steps searches may take, alone and for one request together.

A search that comes to no end gives up after so many steps. All hosts of a
request are looked at with a few first. What they share after that goes to the
most promising, so a fleet of unlike hosts, none of which is easy, does not
have nova-scheduler search for an hour.
"""

import collections.abc
import contextlib
import functools
import math
import threading

import cachetools

#: Steps (a demand given a stock) after which one host is given up. What 16
#: devices and 16 groups need is a few hundred.
MAX_STEPS = 30_000
#: What each host of a request gets first.
FIRST_STEPS = 50
#: What one host gets in each round after that, of what its request has left.
ROUNDS = 250, 2_500, MAX_STEPS
#: What the hosts of one request share while none can serve it: some seconds.
REQUEST_STEPS = MAX_STEPS
#: And while better ways are looked for: less than a second.
BETTER_STEPS = 1_000

# Of all that is remembered, in stocks: some ten megabytes.
_MEMORY = 1 << 18


class Steps:
    """Those that one question may take.

    :ivar left: how many are left of them
    """

    def __init__(self, limit: int = MAX_STEPS):
        self.limit = self.left = limit

    @property
    def are_over(self) -> bool:
        return self.left <= 0


class Budget:
    """What the questions of one request share.

    :param steps: by default, no end of them
    :param least: what a question gets in any case
    :ivar most: what it gets if there is enough, default MAX_STEPS
    """

    def __init__(self, steps: float = math.inf, least: int = 0,
                 most: int | None = None):
        self._left = steps
        self._least = least
        self.most = MAX_STEPS if most is None else most

    @property
    def is_spent(self) -> bool:
        return self._left <= self._least

    def share(self) -> Steps:
        """For the next question."""
        return Steps(int(max(self._least, min(self.most, self._left))))

    def spend(self, steps: Steps) -> None:
        self.take(steps.limit - steps.left)

    def take(self, number: int) -> None:
        """Note so many steps that were made."""
        self._left = max(0, self._left - number)


class _Known:
    """What a question has come to, and the steps that it took.

    In one, for threads share it.
    """

    def __init__(self, size: int):
        self.size = size
        self.found = None, Steps(0)


def remembered(function: collections.abc.Callable,
               ) -> collections.abc.Callable:
    """A function whose answers are remembered and cost nothing again.

    Where one was cut short, it is asked again if there are more steps for it.
    What is forgotten is left to chance: a fleet comes in the same order each
    time, and of more hosts than are remembered all would be forgotten
    otherwise.

    :param function: of anything hashable, the first of which has a length,
        and of :class:`Steps`
    :returns: one of the same and of a :class:`Budget` instead
    """
    memory = cachetools.RRCache(_MEMORY, getsizeof=lambda known: known.size)
    lock = threading.Lock()

    def recall(question) -> _Known:
        with lock:
            known = memory.get(question)
            if known is None:
                known = _Known(1 + len(question[0]))
                with contextlib.suppress(ValueError):  # It is too large.
                    memory[question] = known
            return known

    @functools.wraps(function)
    def ask(*question_and_budget):
        *question, budget = question_and_budget
        known, steps = recall(tuple(question)), budget.share()
        answer, taken = known.found
        if answer is None or taken.are_over and taken.limit < steps.limit:
            answer = function(*question, steps)
            known.found = answer, steps
            budget.spend(steps)
        return answer

    ask.memory = memory
    return ask

# SPDX-License-Identifier: Apache-2.0
"""How many steps searches may take, alone and for one request together.

A search that comes to no end gives up after so many steps. The hosts of one
request share some, or a fleet of unlike hosts, none of which is easy, would
have nova-scheduler search for an hour.
"""

import collections.abc
import functools
import math

#: Steps (a demand given a stock) after which one host is given up. What 16
#: devices and 16 groups need is a few hundred.
MAX_STEPS = 30_000
#: What a host gets in any case: twice what it takes to give the most groups
#: one stock each, if none of them has to be taken back.
MIN_STEPS = 1_200
#: What the hosts of one request share: less than half a minute. Each may take
#: half of what is left, so the first few as much as one that is alone.
REQUEST_STEPS = 5 * MAX_STEPS


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
    :param least: what a question gets in any case, default MIN_STEPS
    :param most: what it gets if there is enough, default MAX_STEPS
    """

    def __init__(self, steps: float = math.inf, least: int | None = None,
                 most: int | None = None):
        self._left = steps
        self._least = MIN_STEPS if least is None else least
        self._most = MAX_STEPS if most is None else most

    def share(self) -> Steps:
        """For the next question: half, so that others get some, too."""
        return Steps(int(max(self._least, min(self._most, self._left / 2))))

    def spend(self, steps: Steps) -> None:
        self.take(steps.limit - steps.left)

    def take(self, number: int) -> None:
        """Note so many steps that were made."""
        self._left = max(0, self._left - number)


class _Known:
    """What a question has come to, and the steps that it took.

    In one, for threads share it.
    """

    def __init__(self):
        self.found = None, Steps(0)


def remembered(function: collections.abc.Callable,
               ) -> collections.abc.Callable:
    """A function whose answers are remembered and cost nothing again.

    Where one was cut short, it is asked again if there are more steps for it.

    :param function: of anything hashable and of :class:`Steps`
    :returns: one of the same and of a :class:`Budget` instead
    """
    @functools.lru_cache(maxsize=512)
    def recall(*_question) -> _Known:
        return _Known()

    @functools.wraps(function)
    def ask(*question_and_budget):
        *question, budget = question_and_budget
        known, steps = recall(*question), budget.share()
        answer, taken = known.found
        if taken.are_over and taken.limit < steps.limit:
            answer = function(*question, steps)
            known.found = answer, steps
            budget.spend(steps)
        return answer

    ask.cache_clear, ask.cache_info = recall.cache_clear, recall.cache_info
    return ask

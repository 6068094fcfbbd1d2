# SPDX-License-Identifier: Apache-2.0
"""Cost differences of two ways, from trials that ran in pairs.

The result is the median of the differences of all pairs. A temporary slowdown
of the machine affects both trials of a pair.

Standard library only.
"""

from collections.abc import Callable
from collections.abc import Sequence
import random
import statistics

#: The number of bootstrap samples.
_DRAWS = 2000

#: The share of samples whose median lies within the interval.
SHARE = 0.95

Interval = tuple[float, float]


def added(those: Sequence[float], plain: Sequence[float]
          ) -> tuple[float, Interval]:
    """Return the median of the differences and its interval.

    :param those: a figure of each trial, in any unit
    :param plain: the same figure of each trial's pair
    """
    differences = [more - less
                   for more, less in zip(those, plain, strict=True)]
    return statistics.median(differences), _interval(
        len(differences), lambda drawn: statistics.median(
            differences[number] for number in drawn))


def share(ours: Sequence[float], theirs: Sequence[float],
          plain: Sequence[float]) -> tuple[float, Interval]:
    """Return the ratio of two added costs and its interval.

    Each bootstrap sample has the same trials of both.

    :returns: 0.1 if ours adds a tenth of theirs; infinity if theirs adds
        nothing
    """
    less = [one - other for one, other in zip(ours, plain, strict=True)]
    more = [one - other for one, other in zip(theirs, plain, strict=True)]

    def ratio(drawn):
        below = statistics.median(more[number] for number in drawn)
        above = statistics.median(less[number] for number in drawn)
        return above / below if below > 0 else float('inf')

    return ratio(range(len(plain))), _interval(len(plain), ratio)


def ratio(ours: Sequence[float], theirs: Sequence[float]
          ) -> tuple[float, Interval]:
    """Return the median of the ratios of pairs and its interval.

    :param ours: a figure of each trial, in any unit
    :param theirs: the same figure of each trial's pair
    :returns: 0.9 if ours is a tenth less than theirs
    """
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return statistics.median(ratios), _interval(
        len(ratios), lambda drawn: statistics.median(
            ratios[number] for number in drawn))


def _interval(trials: int, figure: Callable[[Sequence[int]], float]
              ) -> Interval:
    """Return the bootstrap interval of a figure."""
    rng = random.Random(trials)
    numbers = range(trials)
    drawn = sorted(figure(rng.choices(numbers, k=trials))
                   for _draw in range(_DRAWS))
    outside = round((1 - SHARE) / 2 * _DRAWS)
    return drawn[outside], drawn[-outside - 1]

# SPDX-License-Identifier: Apache-2.0
"""What one way costs more than another, from trials that ran side by side.

Trial by trial the difference is taken first and the median of the differences
after it: what slows the machine for a while slows both of a pair.

Standard library only.
"""

from collections.abc import Callable
from collections.abc import Sequence
import random
import statistics

#: How often trials are drawn again to see how far a median may be trusted.
_DRAWS = 2000

#: The share of draws whose median lies within the interval.
SHARE = 0.95

Interval = tuple[float, float]


def added(those: Sequence[float], plain: Sequence[float]
          ) -> tuple[float, Interval]:
    """What one way adds: the median of the differences, and its interval.

    :param those: a figure of each trial, in any unit
    :param plain: the figure of the trial that each is compared with
    """
    differences = [more - less
                   for more, less in zip(those, plain, strict=True)]
    return statistics.median(differences), _interval(
        len(differences), lambda drawn: statistics.median(
            differences[number] for number in drawn))


def share(ours: Sequence[float], theirs: Sequence[float],
          plain: Sequence[float]) -> tuple[float, Interval]:
    """What one adds, as a share of what the other adds, and its interval.

    :returns: 0.1 where ours adds a tenth of theirs; the same trials are
        drawn for both, and where theirs adds nothing the share is infinite
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
    """The median of the ratios of pairs, and its interval.

    :param ours: a figure of each trial, in any unit
    :param theirs: the figure of the trial that each is compared with
    :returns: 0.9 if ours is a tenth less than theirs
    """
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return statistics.median(ratios), _interval(
        len(ratios), lambda drawn: statistics.median(
            ratios[number] for number in drawn))


def _interval(trials: int, figure: Callable[[Sequence[int]], float]
              ) -> Interval:
    """Of a figure over trials drawn with replacement: the bootstrap."""
    rng = random.Random(trials)
    numbers = range(trials)
    drawn = sorted(figure(rng.choices(numbers, k=trials))
                   for _draw in range(_DRAWS))
    outside = round((1 - SHARE) / 2 * _DRAWS)
    return drawn[outside], drawn[-outside - 1]

# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a function, judged from what sysfs tells of it."""

import collections
import collections.abc
import dataclasses
import enum

from nova_accel.core import errors


class Severity(enum.StrEnum):
    """The severity of an error that PCI Express reports (AER)."""

    FATAL = 'fatal'
    NONFATAL = 'non-fatal'
    CORRECTABLE = 'correctable'


#: Number of errors by severity; without severities that are not counted.
Errors = collections.abc.Mapping[Severity, int]

#: Seconds for which an error counts.
PERIOD = 3600


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """A PCI Express link between a function and the root of the hierarchy.

    :param address: the function or bridge at its lower end, as text
    :param width: lanes in use
    :param max_width: lanes that both ends have
    :param speed: in GT/s, None if unknown, as is ``max_speed``
    :param max_speed: what both ends can do
    """

    address: str
    width: int
    max_width: int
    speed: float | None = None
    max_speed: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What sysfs tells of the health of a function.

    :param answers: whether its configuration space can be read
    :param errors: since the kernel found it
    :param links: those from it to the root
    :param missing_vfs: how many of its virtual functions are enabled, but not
        there
    """

    answers: bool = True
    errors: Errors = dataclasses.field(default_factory=dict)
    links: tuple[Link, ...] = ()
    missing_vfs: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What a healthy function may have.

    :param errors: the largest number in :data:`PERIOD` by severity; any
        number if a severity is missing
    :param width: whether links must have all their lanes
    :param speed: whether links must have their full speed
    """

    errors: Errors
    width: bool = True
    speed: bool = False


class History:
    """The errors of a function within the last :data:`PERIOD`.

    :param first: the errors that are older
    """

    def __init__(self, first: Errors) -> None:
        self._counts = collections.deque([(0., first)])

    def add(self, now: float, errors: Errors) -> Errors:
        """Add a reading, and return the errors within the period before it.

        :param now: in seconds
        """
        counts = self._counts
        if any(errors.get(severity, 0) < number
               for severity, number in counts[-1][1].items()):
            # The kernel counts anew after it has found the function again.
            counts.clear()
            counts.append((now, {}))
        counts.append((now, errors))
        # The last reading before the period is its start.
        while len(counts) > 2 and counts[1][0] <= now - PERIOD:
            counts.popleft()
        return {severity: number - counts[0][1].get(severity, 0)
                for severity, number in errors.items()}


def problems(facts: Facts, recent: Errors, limits: Limits,
             ) -> collections.abc.Iterator[str]:
    """Yield what is wrong with a function.

    The texts do not change as long as the state does not, so that each is
    logged once.

    :param recent: its errors within :data:`PERIOD`
    """
    if not facts.answers:
        # All other registers read as ones, too.
        yield 'it does not answer: its configuration space reads as all ones'
        return
    for severity, most in limits.errors.items():
        if recent.get(severity, 0) > most:
            yield (f'it had more than {_errors(most, severity)} within an '
                   'hour' if most else
                   f'it had a {severity} PCI Express error within an hour')
    for link in facts.links:
        yield from _of_link(link, limits)
    if facts.missing_vfs:
        yield errors.count(facts.missing_vfs, 'of its virtual functions is',
                           'of its virtual functions are'
                           ) + ' enabled, but not there'


def counted(found: Errors, limits: Limits) -> collections.abc.Iterator[str]:
    """Yield the errors of a function that may be too many within an hour.

    :param found: since the kernel found the function
    """
    for severity, most in limits.errors.items():
        if (number := found.get(severity, 0)) > most:
            yield (f'it had {_errors(number, severity)} since the kernel '
                   f'found it; more than {most} within an hour withhold it, '
                   'which only nova-compute knows')


def _errors(number: int, severity: Severity) -> str:
    return errors.count(number, f'{severity} PCI Express error')


def _of_link(link: Link, limits: Limits) -> collections.abc.Iterator[str]:
    if limits.width and link.width < link.max_width:
        yield (f'the link of {link.address} has {link.width} of '
               f'{link.max_width} lanes')
    if limits.speed and link.speed and link.max_speed and (
            link.speed < link.max_speed):
        yield (f'the link of {link.address} runs at {link.speed:g} of '
               f'{link.max_speed:g} GT/s')

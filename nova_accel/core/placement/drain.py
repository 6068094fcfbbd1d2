# SPDX-License-Identifier: Apache-2.0
"""Drains: an operator's wish that no new server gets a device.

A drain is a trait of the device's resource provider, or of the compute node's
for all its devices. So it persists, and needs no other storage. The trait has
the time and the reason::

    CUSTOM_NOVA_ACCEL_DRAIN_20261125T201500Z_FAN_IS_LOUD
"""

import collections.abc
import dataclasses
import datetime
import re

#: The trait of all providers whose devices are drained.
TRAIT = 'CUSTOM_NOVA_ACCEL_DRAINED'

_PREFIX = 'CUSTOM_NOVA_ACCEL_DRAIN_'
_TIME = '%Y%m%dT%H%M%SZ'
_TRAIT = re.compile(rf'{_PREFIX}([0-9]{{8}}T[0-9]{{6}}Z)_?([A-Z0-9_]*)')

#: Most characters of a reason; Placement allows 255 for the whole trait.
MAX_REASON = 200


@dataclasses.dataclass(frozen=True, order=True)
class Drain:
    """A drain of a device.

    :param since: when it was set, in UTC
    :param reason: in lower case, with words of letters and digits only
    """

    since: datetime.datetime
    reason: str = ''

    def __str__(self) -> str:
        since = self.since.strftime('%Y-%m-%d %H:%M:%S UTC')
        return f'{self.reason} (since {since})' if self.reason else (
            f'since {since}')

    @property
    def trait(self) -> str:
        """The trait that a provider has for it."""
        words = re.sub('[^A-Z0-9]+', '_', self.reason.upper()).strip('_')
        return '_'.join(filter(None, (
            _PREFIX.rstrip('_'), self.since.strftime(_TIME),
            words[:MAX_REASON].rstrip('_'))))


def is_trait(name: str) -> bool:
    """Whether a trait is a drain."""
    return loads([name]) is not None


def loads(traits: collections.abc.Iterable[str]) -> Drain | None:
    """Return the drain among the traits of a provider, None if there is none.

    :returns: the oldest of several
    """
    return min(filter(None, map(_load, traits)), default=None)


def _load(trait: str) -> Drain | None:
    match = trait.startswith(_PREFIX) and _TRAIT.fullmatch(trait)
    if not match:
        return None
    try:
        since = datetime.datetime.strptime(match[1], _TIME).replace(
            tzinfo=datetime.UTC)
    except ValueError:
        return None
    return Drain(since, match[2].replace('_', ' ').lower())

# SPDX-License-Identifier: Apache-2.0
"""Servers of one request, which come to the same hosts one after the other.

Nova asks for candidates once for all of them, so what an earlier one has been
given is still free in Placement's answer when the next comes
(https://bugs.launchpad.net/nova/+bug/1874664).

Seam: ``nova.scheduler.host_manager.HostState`` (one for each request;
num_instances, which Nova counts up with each server that it puts there).
"""

import collections

from nova_accel.scheduler import choose_devices

# Our attribute of a HostState.
_ATTRIBUTE = 'nova_accel_siblings'


class Siblings:
    """What the servers of a request have been given of one host.

    :ivar given: units by provider
    """

    def __init__(self, host_state):
        self.given: collections.Counter[str] = collections.Counter()
        self._count = host_state.num_instances
        self._first: dict = {}

    @classmethod
    def of(cls, host_state) -> 'Siblings':
        """Those of a host; the last of them, if one came, counted in."""
        siblings = getattr(host_state, _ATTRIBUTE, None)
        if siblings is None:
            siblings = cls(host_state)
            setattr(host_state, _ATTRIBUTE, siblings)
        siblings._count_in(host_state.num_instances)
        return siblings

    def _count_in(self, count: int) -> None:
        if count > self._count:
            self.given.update(choose_devices.devices(self._first))
        self._count = count

    def expect(self, candidates: list[dict]) -> None:
        """Remember which candidate the next server would be given."""
        self._first = candidates[0] if candidates else {}

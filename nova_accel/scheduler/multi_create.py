# SPDX-License-Identifier: Apache-2.0
"""Track devices that earlier servers of a multi-create request got.

Nova fetches candidates once for all servers of a request. In that answer, the
devices of an earlier server still look free when the next one is scheduled
(https://bugs.launchpad.net/nova/+bug/1874664).

Seam: ``nova.scheduler.host_manager.HostState``. It lives for one request, and
Nova increments its num_instances with each server that it places there.
"""

import collections

from nova_accel.scheduler import choose_devices

# The attribute of a HostState that holds its Siblings.
_ATTRIBUTE = 'nova_accel_siblings'


class Siblings:
    """The devices of one host that servers of the request already got.

    :ivar units: their number by provider
    """

    def __init__(self, host_state):
        self.units: collections.Counter[str] = collections.Counter()
        self._count = host_state.num_instances
        self._first: dict = {}

    @classmethod
    def of(cls, host_state) -> 'Siblings':
        """Return those of a host, including the last server placed there."""
        siblings = getattr(host_state, _ATTRIBUTE, None)
        if siblings is None:
            siblings = cls(host_state)
            setattr(host_state, _ATTRIBUTE, siblings)
        siblings._count_in(host_state.num_instances)
        return siblings

    def _count_in(self, count: int) -> None:
        if count > self._count:
            self.units.update(choose_devices.devices(self._first))
        self._count = count

    def expect(self, candidates: list[dict]) -> None:
        """Remember the candidate that the next server will claim."""
        self._first = candidates[0] if candidates else {}

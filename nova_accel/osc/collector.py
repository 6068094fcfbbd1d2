# SPDX-License-Identifier: Apache-2.0
"""The metrics of the device profiles of a cloud."""

import collections.abc
import dataclasses
import sys

from nova_accel import exposition
from nova_accel.core import errors
from nova_accel.core.capacity import room
from nova_accel.osc import profiles


@dataclasses.dataclass(frozen=True, eq=False)
class Collector:
    """Collects the metrics of device profiles.

    :param time: when they were read, in seconds since the Unix epoch
    :param hosts: the compute nodes that look alike
    :param classes: the resource classes of devices
    """

    time: float
    profiles: collections.abc.Sequence[profiles.Profile]
    hosts: room.Alike
    classes: collections.abc.Set[str]

    def collect(self) -> collections.abc.Iterator[exposition.Metric]:
        """Yield the metrics; say on stderr which profile is left out."""
        yield exposition.gauge(
            'profiles_last_run_timestamp_seconds',
            'When openstack accel metrics ran, in Unix time.', (),
            [(self.time,)])
        yield exposition.gauge(
            'profile_servers', 'Servers that were created with a device '
            'profile, by their status in Nova.', ('profile', 'status'), [
                (profile.name, status, count) for profile in self.profiles
                for status, count in profile.statuses.items()])
        rooms = dict(self._rooms())
        yield exposition.gauge(
            'profile_fitting_servers', 'How many more servers with a device '
            'profile fit, if no other profile is used.', ('profile',), [
                (name, servers) for name, (servers, _left) in rooms.items()])
        yield exposition.gauge(
            'profile_stranded_units', 'Free units of devices that no server '
            'with a device profile can use.', ('profile',), [
                (name, left) for name, (_servers, left) in rooms.items()])

    def _rooms(self) -> collections.abc.Iterator[tuple[str, tuple[int, int]]]:
        for profile in self.profiles:
            try:
                yield profile.name, room.Rooms(
                    profile.request(), self.classes).total(self.hosts)
            except errors.AccelError as error:
                print(error, file=sys.stderr)

# SPDX-License-Identifier: Apache-2.0
"""``openstack accel metrics``: metrics of the whole cloud, for Prometheus.

``nova-accel metrics`` has those of one compute node.
"""

import collections.abc
import dataclasses
import sys
import time

from osc_lib.command import command

from nova_accel import exposition
from nova_accel.core import errors
from nova_accel.core.capacity import room
from nova_accel.osc import capacity
from nova_accel.osc import profiles


class Metrics(command.Command):
    """Print metrics of the device profiles, as text for Prometheus.

    They are those of "openstack accel capacity list --by profile", and the
    servers of each profile by status.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        exposition.add_option(parser)
        profiles.add_options(parser)
        return parser

    def take_action(self, parsed_args):
        exposition.check()
        client = self.app.client_manager.nova_accel
        hosts = client.hosts()
        exposition.write(Collector(
            time.time(), profiles.find(client.compute,
                                       parsed_args.profile_dir),
            capacity.alike(hosts, client.compute.closed()),
            {units.resource_class for host in hosts
             for _device, units in host.units}), parsed_args.textfile,
            self.app.stdout)


@dataclasses.dataclass(frozen=True, eq=False)
class Collector:
    """Collects the metrics of device profiles.

    :param time: when they were read, in seconds since the Unix epoch
    :param hosts: the compute nodes that look alike
    :param classes: the resource classes of devices
    """

    time: float
    profiles: collections.abc.Sequence[profiles.Profile]
    hosts: capacity.Alike
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
                yield profile.name, capacity.summed(room.Rooms(
                    profile.request(), self.classes), self.hosts)
            except errors.AccelError as error:
                print(error, file=sys.stderr)

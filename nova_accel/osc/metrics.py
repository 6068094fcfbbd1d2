# SPDX-License-Identifier: Apache-2.0
"""``openstack accel metrics``: metrics of the whole cloud, for Prometheus.

``nova-accel metrics`` has those of one compute node.
"""

import argparse
import time

from osc_lib.command import command

from nova_accel import exposition
from nova_accel.osc import capacity
from nova_accel.osc import cloud
from nova_accel.osc import collector
from nova_accel.osc import profiles


class Metrics(command.Command):
    """Print metrics of the device profiles, as text for Prometheus.

    They are those of "openstack accel capacity list --by profile", and the
    servers of each profile by status.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        exposition.add_option(parser)
        profiles.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        exposition.check()
        client = cloud.of(self)
        hosts = client.hosts()
        exposition.write(collector.Collector(
            time.time(), profiles.find(client.compute,
                                       parsed_args.profile_dir),
            capacity.alike(hosts, client.compute.closed()),
            {units.resource_class for host in hosts
             for _device, units in host.units}), parsed_args.textfile,
            self.app.stdout)

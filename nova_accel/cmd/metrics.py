# SPDX-License-Identifier: Apache-2.0
"""``nova-accel metrics``: metrics of a compute node, for Prometheus.

It reads this host, Placement and libvirt once. A service manager or cron runs
it again and again, and node_exporter reads the file that it writes.
"""

import argparse
import collections.abc
import functools
import socket
import time
import typing

from nova_accel import exposition
from nova_accel.cmd import collector
from nova_accel.cmd import host as hosts
from nova_accel.cmd import main
from nova_accel.core import errors

_Read = typing.TypeVar('_Read')


class Metrics(main.Command):
    """Print metrics of this compute node's devices, as text for Prometheus.

    It exits with 1 if Placement cannot be queried.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        hosts.add_host(parser)
        exposition.add_option(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        exposition.check()
        reading = self._read(parsed_args)
        exposition.write(collector.Collector(reading), parsed_args.textfile,
                         self.app.stdout)
        return 0 if reading.node else 1

    def _read(self, parsed_args: argparse.Namespace) -> collector.Reading:
        """Return what there is to tell; log why a part of it is missing."""
        # keystoneauth1 is slow to import, and not all commands need it.
        from nova_accel.cmd import check
        from nova_accel.cmd import placement
        conf = self.app.configuration(hosts.SERVICE)
        machine, wrong = self._attempt(hosts.read, parsed_args, conf) or (
            None, ())
        problems = [*wrong, *(hosts.fabric_findings(
            parsed_args, conf, machine) if machine else ())]
        for problem in problems:
            self.app.LOG.warning(problem)
        name, findings, node = parsed_args.host, None, None
        if get := self._attempt(placement.connect, conf):
            # The audit and the metrics ask for the same allocations.
            get = functools.cache(get)
            if machine:
                name, findings = self._attempt(
                    check.audit, machine, name, get, conf) or (name, None)
            node = self._attempt(collector.read_node, get,
                                 name or socket.gethostname())
        return collector.Reading(time.time(), machine, len(problems), node,
                                 findings)

    def _attempt(self, read: collections.abc.Callable[..., _Read],
                 *arguments: typing.Any) -> _Read | None:
        """Return the result of a function; log its error and return None."""
        try:
            return read(*arguments)
        except (errors.AccelError, OSError) as error:
            self.app.LOG.warning(error)
            return None

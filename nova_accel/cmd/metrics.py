# SPDX-License-Identifier: Apache-2.0
"""``nova-accel metrics``: metrics of a compute node, for Prometheus.

It reads this host, Placement and libvirt once. A service manager or cron runs
it again and again, and node_exporter reads the file that it writes.
"""

import collections.abc
import functools
import importlib
import socket
import time
import typing

from cliff import command

from nova_accel.cmd import host as hosts
from nova_accel.core import errors


class Metrics(command.Command):
    """Print metrics of this compute node's devices, as text for Prometheus.

    It exits with 1 if Placement cannot be queried.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        hosts.add_host(parser)
        parser.add_argument(
            '--textfile', metavar='FILE',
            help='write this file instead, at once, for the textfile '
                 'collector of node_exporter; its name must end in .prom '
                 'there')
        return parser

    def take_action(self, parsed_args):
        prometheus = _load()
        from nova_accel.cmd import collector
        reading = self._read(parsed_args, collector)
        registry = prometheus.CollectorRegistry()
        registry.register(collector.Collector(reading))
        if parsed_args.textfile:
            prometheus.write_to_textfile(parsed_args.textfile, registry)
        else:
            self.app.stdout.write(
                prometheus.generate_latest(registry).decode())
        return 0 if reading.node else 1

    def _read(self, parsed_args, collector):
        """Return what there is to tell; log why a part of it is missing."""
        # keystoneauth1 is slow to import, and not all commands need it.
        from nova_accel.cmd import check
        from nova_accel.cmd import placement
        conf = self.app.configuration(hosts.SERVICE)
        machine, problems = self._attempt(hosts.read, parsed_args, conf) or (
            None, ())
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

    def _attempt(self, read: collections.abc.Callable, *arguments,
                 ) -> typing.Any:
        """Return the result of a function; log its error and return None."""
        try:
            return read(*arguments)
        except (errors.AccelError, OSError) as error:
            self.app.LOG.warning(error)
            return None


def _load():
    try:
        return importlib.import_module('prometheus_client')
    except ImportError as error:
        raise errors.AccelError(
            'prometheus_client', f'cannot be loaded: {error}', 'install the '
            'extra "metrics" of nova-accel, or prometheus_client, into the '
            'Python that runs this command') from None

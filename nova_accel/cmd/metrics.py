# SPDX-License-Identifier: Apache-2.0
"""``nova-accel metrics``: metrics of a compute node, for Prometheus.

It reads this host, Placement and libvirt once. A service manager or cron runs
it again and again, and node_exporter reads the file that it writes.
"""

import argparse
import collections.abc
import functools
import importlib
import socket
import sys
import time
import typing

from oslo_config import cfg

from nova_accel.cmd import host as hosts
from nova_accel.core import errors


def add_parser(topics) -> None:
    topic = topics.add_parser(
        'metrics', help='print metrics of the devices of this compute node, '
                        'as text for Prometheus; exit with 1 if Placement '
                        'cannot be queried')
    hosts.add_root(topic)
    topic.add_argument('--host', metavar='NAME',
                       help='name of the compute node (default: the host '
                            'name that libvirt reports)')
    topic.add_argument('--textfile', metavar='FILE',
                       help='write this file instead, at once, for the '
                            'textfile collector of node_exporter; its name '
                            'must end in .prom there')
    topic.set_defaults(run=_run, service='nova-compute')


def _run(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> int:
    prometheus = _load()
    from nova_accel.cmd import collector
    reading = _read(arguments, conf, collector)
    registry = prometheus.CollectorRegistry()
    registry.register(collector.Collector(reading))
    if arguments.textfile:
        prometheus.write_to_textfile(arguments.textfile, registry)
    else:
        sys.stdout.write(prometheus.generate_latest(registry).decode())
    return 0 if reading.node else 1


def _load():
    try:
        return importlib.import_module('prometheus_client')
    except ImportError as error:
        raise errors.AccelError(
            'prometheus_client', f'cannot be loaded: {error}', 'install the '
            'extra "metrics" of nova-accel, or prometheus_client, into the '
            'Python that runs this command') from None


def _read(arguments: argparse.Namespace, conf: cfg.ConfigOpts, collector):
    """Return what there is to tell; print why a part of it is missing."""
    # keystoneauth1 is slow to import, and not all commands need it.
    from nova_accel.cmd import check
    from nova_accel.cmd import placement
    machine, problems = _attempt(hosts.read, arguments, conf) or (None, ())
    for problem in problems:
        _warn(problem)
    name, findings, node = arguments.host, None, None
    if get := _attempt(placement.connect, conf):
        # The audit and the metrics ask for the same allocations.
        get = functools.cache(get)
        if machine:
            name, findings = _attempt(check.audit, machine, name, get,
                                      conf) or (name, None)
        node = _attempt(collector.read_node, get,
                        name or socket.gethostname())
    return collector.Reading(time.time(), machine, len(problems), node,
                             findings)


def _attempt(read: collections.abc.Callable, *arguments) -> typing.Any:
    """Return the result of a function; print its error and return None."""
    try:
        return read(*arguments)
    except (errors.AccelError, OSError) as error:
        _warn(error)
        return None


def _warn(problem: Exception | str) -> None:
    print(f'nova-accel: {problem}', file=sys.stderr)

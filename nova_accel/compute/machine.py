# SPDX-License-Identifier: Apache-2.0
"""The compute node's Host, read afresh, and what the log should say of it."""

import collections

import nova.conf
from oslo_log import log as logging

from nova_accel import conf
from nova_accel import foreign
from nova_accel.core import entry
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.host import reader
from nova_accel.host import tree

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class Machine:
    """This machine, as nova.conf tells us to look at it.

    Nothing is cached but what was said in the log, so that it is said once.
    Reading takes milliseconds.
    """

    def __init__(self) -> None:
        conf.register_opts(CONF)
        self._tree: tree.Tree | None = None
        self._said: frozenset[tuple[int, str]] = frozenset()

    def read(self) -> model.Host:
        """The Host as it is now.

        :raises errors.TreeError: if ``sysfs_root`` is none
        """
        if self._tree is None:
            self._open()
        entries, broken = entry.parse_all(CONF.nova_accel.device_spec)
        host = reader.read(self._tree, entries, foreign.claims(CONF))
        self._say([(logging.ERROR, f'{error}; it is left out')
                   for error in broken] + _report(host))
        return host

    def _open(self) -> None:
        try:
            self._tree = tree.open_tree(CONF.nova_accel.sysfs_root)
        except errors.TreeError as error:
            self._say([(logging.ERROR, str(error))])
            raise

    def _say(self, lines: list[tuple[int, str]]) -> None:
        for level, line in lines:
            if (level, line) not in self._said:
                LOG.log(level, '%s', line)
        self._said = frozenset(lines)


def _report(host: model.Host) -> list[tuple[int, str]]:
    lines = [(logging.WARNING, problem) for problem in host.problems]
    refused = collections.defaultdict(list)
    for refusal in host.refusals:
        refused[refusal.reason, refusal.remedy].append(
            f'{refusal.address} ({refusal.ids})')
    for (reason, remedy), devices in refused.items():
        lines.append((logging.WARNING,
                      f'Not offered: {", ".join(devices)}: {reason}'
                      + (f'; {remedy}' if remedy else '')))
    counts = collections.Counter()
    for device in host.devices:
        for region in device.regions:
            counts[region.resource_class] += len(region.units)
    if counts:
        lines.append((logging.INFO, 'Offered: ' + ', '.join(
            f'{total} {name}' for name, total in sorted(counts.items()))
            + f' on {len(host.devices)} devices'))
    return lines

# SPDX-License-Identifier: Apache-2.0
"""The compute node's Host, read afresh, and what the log should say of it."""

import collections.abc
import math
import threading
import time

import nova.conf
from oslo_log import log as logging

from nova_accel import conf
from nova_accel import nova_claims
from nova_accel.compute import log_once
from nova_accel.core import errors
from nova_accel.core import holding
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core.device_spec import spec_entry
from nova_accel.host import loader
from nova_accel.host import reader
from nova_accel.host import reset
from nova_accel.host import tree

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

#: Seconds between a claim of Nova's resource tracker, for which the machine is
#: read, and the choice of devices for the server that it is made for.
CACHE_SECONDS = 3


class LocalHost:
    """This machine, as nova.conf tells us to look at it.

    Nothing is cached but what was reset, and what was said in the log, so
    that it is said once. Reading takes milliseconds, tens of them where there
    are hundreds of functions; so a boot goes by what was read for its claim.

    :param held: what domains hold
    :ivar tree: where it is read, once it could be
    :ivar resets: of which those that failed are withheld
    """

    def __init__(self, held: collections.abc.Callable[[], holding.Held] = dict,
                 ) -> None:
        conf.register_opts(CONF)
        self._held = held
        self.resets = reset.Resets()
        self.tree: tree.Tree | None = None
        self._opening = threading.Lock()
        self._kinds: dict[str, kind.Enumerator] = {}
        self._findings_log = log_once.LogOnce(LOG)
        # Another one after each change.
        self._state = object()
        self._last = self._state, -math.inf, model.Host()

    def read(self) -> model.Host:
        """The Host as it is now.

        :raises errors.TreeError: if ``sysfs_root`` is none
        """
        state = self._state
        host, broken = self._read([self.resets.withheld])
        self._findings_log.log([(logging.ERROR, f'{error}; it is left out')
                        for error in broken] + _report(host))
        self._last = state, time.monotonic(), host
        return host

    def invalidate(self) -> None:
        """Have the next one read: something was changed.

        Also by libvirt, which gives functions back to their drivers. What is
        being read meanwhile can be half of each.
        """
        self._state = object()

    def read_cached(self) -> model.Host:
        """The Host as it was a moment ago, if somebody read it then.

        :raises errors.TreeError: if ``sysfs_root`` is none
        """
        return self.cached() or self.read()

    def read_or_empty(self, cached: bool = False,
                      ) -> tuple[model.Host, errors.TreeError | None]:
        """Read the Host, or return an empty one and why it cannot be read.

        :param cached: accept what was read up to :data:`CACHE_SECONDS` ago
        """
        try:
            return (self.read_cached() if cached else self.read()), None
        except errors.TreeError as error:
            return model.Host(), error

    def read_ignoring_reset_failures(self) -> model.Host:
        """The Host with what is withheld only for a reset that failed.

        :raises errors.TreeError: if ``sysfs_root`` is none
        """
        host, _broken = self._read([])
        return host

    def cached(self) -> model.Host | None:
        """What was read a moment ago, if somebody did."""
        state, when, host = self._last
        return host if state is self._state and (
            time.monotonic() - when < CACHE_SECONDS) else None

    def entries(self) -> tuple[list[spec_entry.Entry],
                               list[errors.AccelError]]:
        """What nova.conf offers, and what is wrong with that."""
        return reader.parse(CONF.nova_accel.device_spec)

    def preparers(self) -> dict[str, kind.Preparer]:
        """The kinds of devices that have to be made ready, by name."""
        return {name: opened for name, opened in self._kinds.items()
                if isinstance(opened, kind.Preparer)}

    def _read(self, states: collections.abc.Iterable[reader.State],
              ) -> tuple[model.Host, list[errors.AccelError]]:
        """The Host, and what is wrong with entries and link domains."""
        self._open()
        entries, broken = self.entries()
        links, unusable = reader.parse_links(CONF.nova_accel.link_domains)
        return reader.read(self.tree, entries, nova_claims.claims(CONF),
                           self._kinds, states, links, self._held,
                           CONF.nova_accel.allow_unsafe_host), [
            *broken, *unusable]

    def _open(self) -> None:
        """Open the tree, and kinds on it, which remember things: once."""
        with self._opening:
            if self.tree is None:
                try:
                    opened = tree.open_tree(CONF.nova_accel.sysfs_root)
                except errors.TreeError as error:
                    self._findings_log.log([(logging.ERROR, str(error))])
                    raise
                self._kinds = loader.open_all(opened)
                self.tree = opened


def _report(host: model.Host) -> list[tuple[int, str]]:
    lines = [(logging.WARNING, problem) for problem in host.problems]
    for (reason, remedy), alike in model.group(host.refusals).items():
        devices = ', '.join(f'{refusal.address} ({refusal.ids})'
                            for refusal in alike)
        lines.append((logging.WARNING, f'Not offered: {devices}: {reason}'
                      + (f'; {remedy}' if remedy else '')))
    if counts := host.units:
        lines.append((logging.INFO, 'Offered: ' + ', '.join(
            f'{total} {name}' for name, total in sorted(counts.items()))
            + f' on {len(host.devices)} devices'))
    return lines

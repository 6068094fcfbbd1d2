# SPDX-License-Identifier: Apache-2.0
"""Reads the compute node's Host, and logs what is wrong with it."""

import collections.abc
import math
import threading
import time

import nova.conf
from oslo_log import log as logging

from nova_accel import conf
from nova_accel import nova_claims
from nova_accel.compute import log_once
from nova_accel.compute.state import dirt
from nova_accel.compute.state import drains
from nova_accel.compute.state import firmware
from nova_accel.compute.state import health
from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core.device_spec import changed_spec
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.placement import inventory
from nova_accel.host import fabric
from nova_accel.host import loader
from nova_accel.host import operate
from nova_accel.host import reader
from nova_accel.host import reset
from nova_accel.host import tree as trees

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

#: States in which each device is after each server.
_EXPECTED = {model.WithheldState.DIRTY, model.WithheldState.CLEANING}

#: Seconds for which a Host is cached. Nova's resource tracker reads it for its
#: claim, and devices are chosen for the same server shortly afterwards.
CACHE_SECONDS = 3


class LocalHost:
    """Reads the devices of this host, as nova.conf describes them.

    A Host is cached for :data:`CACHE_SECONDS`, so that a boot uses what its
    claim has read: reading takes milliseconds, or tens of them with hundreds
    of functions. Resets and logged messages are remembered.

    :param held: returns what domains hold
    :ivar resets: the state of resets; units whose reset failed are withheld
    :ivar drains: the devices that an operator drains, which are withheld
    :ivar dirt: the functions that were not cleaned since a server had them,
        which are withheld
    :ivar health: the devices that are not healthy, which are withheld
    :ivar firmware: the devices whose firmware has changed, which are withheld
    :ivar switches: the partitions of the fabric manager
    """

    def __init__(self, held: collections.abc.Callable[
            [], held_devices.Held] = dict) -> None:
        conf.register_opts(CONF)
        conf.log_unknown(CONF, LOG)
        self._held = held
        self.resets = reset.Resets()
        self.drains = drains.Drains()
        self.dirt = dirt.Dirt(held)
        self.health = health.Health()
        self.firmware = firmware.Firmware()
        self.switches = fabric.Switches(
            lambda: operate.beside(self.tree),
            fabric.kept(CONF.state_path, CONF.host))
        self._tree: trees.Tree | None = None
        self._opening = threading.Lock()
        self._kinds: dict[str, kind.Enumerator] = {}
        self._findings_log = log_once.LogOnce(LOG)
        # A new object after each change, so that a cached Host is outdated.
        self._state = object()
        self._texts: tuple[str, ...] | None = None
        self._entries: tuple[list[spec_entry.Entry],
                             list[errors.EntryError]] | None = None
        self._refused: errors.AccelError | None = None
        self._last = self._state, -math.inf, model.Host()

    def read(self) -> model.Host:
        """Read the Host, and log what has changed since the last time.

        :raises errors.TreeError: if ``sysfs_root`` cannot be read
        """
        state = self._state
        host, broken = self._read([
            self.drains.withheld, self.resets.withheld, self.dirt.withheld,
            self.health.withheld, self.firmware.withheld,
            self.switches.withheld])
        self._findings_log.log([
            (logging.ERROR, f'{error}; it is left out')
            for error in broken] + [
                (logging.ERROR, str(self._refused))] * bool(self._refused)
            + _report(host))
        self._last = state, time.monotonic(), host
        return host

    def invalidate(self) -> None:
        """Outdate the cached Host: a device was changed.

        libvirt also changes devices, when it gives functions back to their
        drivers. A Host that is being read now will not be cached either.
        """
        self._state = object()

    def read_cached(self) -> model.Host:
        """Return the cached Host, or read it.

        :raises errors.TreeError: if ``sysfs_root`` cannot be read
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

    def refresh_withheld(self, node: inventory.Node) -> None:
        """Take over what Placement has, and look at health and firmware.

        :raises errors.TreeError: if ``sysfs_root`` cannot be read
        """
        is_changed = self.drains.update(node) | self.dirt.update(node)
        here = inventory.NodeInventory(self.read_cached(), node)
        is_changed |= self.firmware.update(here)
        is_other, recovered = self.health.check(self.tree, here, self._kinds)
        # After an error, reset a device before a server gets it; after one of
        # a card, all its virtual functions.
        self.resets.used(recovered.union(
            function.address for function in here.host.functions
            if function.physfn in recovered))
        if is_changed or is_other:
            self.invalidate()

    def read_ignoring_reset_failures(self) -> model.Host:
        """Read the Host, including units whose reset failed.

        :raises errors.TreeError: if ``sysfs_root`` cannot be read
        """
        host, _broken = self._read([])
        return host

    def cached(self) -> model.Host | None:
        """Return the cached Host, or None if it is too old or outdated."""
        state, when, host = self._last
        return host if state is self._state and (
            time.monotonic() - when < CACHE_SECONDS) else None

    def fabric_manager(self) -> str:
        """Return the value of ``[nova_accel] fabric_manager``."""
        return CONF.nova_accel.fabric_manager.strip()

    def entries(self) -> tuple[list[spec_entry.Entry],
                               list[errors.EntryError]]:
        """Return the entries of nova.conf, and the errors in them.

        If nova.conf was read again, and a change needs a restart, they are
        those of before.
        """
        texts, used = tuple(CONF.nova_accel.device_spec), self._entries
        if used is None or texts != self._texts:
            entries, broken = reader.parse(texts)
            self._refused = used and changed_spec.refusal(
                used[0], entries, broken)
            if used is None or not self._refused:
                used = self._entries = entries, broken
            self._texts = texts
        return used

    def preparers(self) -> dict[str, kind.Preparer]:
        """Return the kinds whose devices have to be prepared, by name."""
        return {name: opened for name, opened in self._kinds.items()
                if isinstance(opened, kind.Preparer)}

    def programmers(self) -> dict[str, kind.Programmer]:
        """Return the kinds that know what they have programmed, by name."""
        return {name: opened for name, opened in self._kinds.items()
                if isinstance(opened, kind.Programmer)}

    def _read(self, states: collections.abc.Iterable[reader.State],
              ) -> tuple[model.Host, list[errors.AccelError]]:
        """Return the Host, and the errors in entries and link domains."""
        tree = self.tree
        entries, broken = self.entries()
        links, unusable = reader.parse_links(CONF.nova_accel.link_domains)
        misconfigured = self.switches.configure(self.fabric_manager())
        return reader.read(tree, entries, nova_claims.claims(CONF),
                           self._kinds, links, self._held,
                           conf.policy(CONF), self.switches.locate,
                           states=states), [
            *broken, *unusable, *filter(None, [misconfigured]),
            *conf.broken_commands(CONF)]

    @property
    def tree(self) -> trees.Tree:
        """The sysfs tree, opened once with the kinds: kinds keep state.

        :raises errors.TreeError: if ``sysfs_root`` cannot be read
        """
        with self._opening:
            if self._tree is None:
                try:
                    opened = trees.open_tree(CONF.nova_accel.sysfs_root)
                except errors.TreeError as error:
                    self._findings_log.log([(logging.ERROR, str(error))])
                    raise
                self._kinds = loader.open_all(opened)
                self._tree = opened
            return self._tree


def _level(refusals: collections.abc.Iterable[model.Refusal]) -> int:
    """Return the level to log refusals with."""
    states = {state for refusal in refusals for state in refusal.states}
    return (logging.INFO if states and states <= _EXPECTED
            else logging.WARNING)


def _report(host: model.Host) -> list[tuple[int, str]]:
    lines = [(logging.WARNING, problem) for problem in host.problems]
    for (reason, remedy), alike in model.group(host.refusals).items():
        devices = ', '.join(f'{refusal.address} ({refusal.ids})'
                            for refusal in alike)
        lines.append((_level(alike), f'Not offered: {devices}: {reason}'
                      + (f'; {remedy}' if remedy else '')))
    if counts := host.units:
        lines.append((logging.INFO, 'Offered: ' + ', '.join(
            f'{total} {name}' for name, total in sorted(counts.items()))
            + f' on {errors.count(len(host.devices), "device")}'))
    return lines

# SPDX-License-Identifier: Apache-2.0
"""Activates the partitions of a switched fabric for guests.

The partition of a server is active before its guest starts, until no server
has any of its cards. Which partitions a server needs follows from its devices,
so libvirt's domains are the only record.
"""

import collections
import collections.abc
import threading

from oslo_log import log as logging

from nova_accel.compute import log_once
from nova_accel.compute.state import node_state
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.fabric import definition
from nova_accel.core.fabric import located
from nova_accel.core.fabric import manager
from nova_accel.core.fabric import use
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)

# Failures after which a partition may be active nevertheless.
_MAY_BE_ACTIVE = {manager.Failure.TIMED_OUT, manager.Failure.IN_USE}


class FabricPartitions:
    """The partitions of this host's servers."""

    def __init__(self, state: node_state.NodeState) -> None:
        self._state = state
        self._switches = state.local_host.switches
        #: Fabric managers take one call at a time.
        self._lock = threading.Lock()
        #: Servers whose partitions were activated, until their guests run.
        self._activated: set[str] = set()
        self._findings = log_once.LogOnce(LOG)
        self._not_restored = log_once.LogOnce(LOG)

    def activate(self, uuid: str, hostdevs: hostdev.Hostdevs) -> None:
        """Activate the partitions of a server whose guest is about to start.

        :param uuid: of the server
        :raises errors.AccelError: if one of them is not active afterwards
        """
        if not (hostdevs and self._state.local_host.fabric_manager()):
            return
        here = self._here()
        cards = _cards(hostdevs, here)
        if not self._may_have_links(cards, here.host):
            return
        with self._lock:
            self._activated.discard(uuid)
            held = self._held(here)
            found = self._list(here, held)
            _check_known(found, cards, here.host)
            held.pop(uuid, None)
            of_others = set().union(*held.values())
            for partition in use.needed(found, cards):
                _check_own(found, partition, of_others)
                if not partition.is_active:
                    self._make_way(found, partition, of_others.union(
                        _not_offered(found, here) - cards.keys()))
                    self._activate(found, partition, cards)
            self._activated.add(uuid)

    def settle(self) -> None:
        """Deactivate the partitions that no server needs any more.

        Tell a manager that was restarted which ones are in use.

        :raises errors.TreeError: if ``sysfs_root`` cannot be read
        """
        if (not self._state.local_host.fabric_manager()
                or self._switches.is_left_alone):
            return
        here = self._here()
        try:
            with self._lock:
                held = self._held(here)
                found = self._list(here, held)
                in_use = _not_offered(found, here).union(*held.values())
                failures = [self._deactivate(partition) for partition
                            in use.unused(found, in_use)]
        except errors.AccelError as error:
            # LocalHost logs why the manager does not answer.
            self._findings.log([(logging.DEBUG, str(error))])
        else:
            self._findings.log([*filter(None, failures),
                                *self._inactive(found, held)])

    def _here(self) -> inventory.NodeInventory:
        return inventory.NodeInventory(self._state.local_host.read_cached(),
                                       self._state.node())

    def _may_have_links(self, cards, host: model.Host) -> bool:
        """Whether any of a server's cards may belong to the fabric."""
        known = self._switches.locate(host.functions).known_cards
        return not known.isdisjoint(cards) or any(
            function.is_display for function in host.functions
            if str(function.address) in cards)

    def _list(self, here, held) -> located.Located:
        """Return the partitions as they are now. The caller locks.

        :param held: the cards that each server has
        :raises manager.FabricError: if the manager does not answer
        """
        try:
            self._switches.ask()
        except manager.FabricError as error:
            if error.failure is not manager.Failure.NOT_READY:
                raise
            self._restore(here, held)
            self._switches.ask()
        return self._switches.locate(here.host.functions)

    def _restore(self, here, held) -> None:
        """Tell the manager which partitions guests use."""
        found = self._switches.locate(here.host.functions)
        partitions = {partition.id for uuid in self._started()
                      for partition in _needed(found, held.get(uuid, ()))}
        try:
            self._switches.fabric.restore(sorted(partitions))
        except manager.FabricError as error:
            self._not_restored.log([(logging.WARNING, str(error))])
            raise
        self._not_restored.log([])
        LOG.info('The fabric manager was restarted; it knows again that '
                 'guests use %s', errors.count(
                     len(partitions), 'partition', 'partitions'))

    def _make_way(self, found, partition, in_use) -> None:
        """Deactivate what an earlier server has left.

        :param in_use: the cards of other servers, and of nobody known
        :raises manager.FabricError: if somebody may need it
        """
        for other in use.in_the_way(found, partition):
            if not use.is_free(found, other, in_use):
                raise _in_use(partition, f'partition {other.id} is active, '
                              'and another server has a card of it, or one '
                              'is not offered')
            if failure := self._deactivate(other):
                raise manager.FabricError(
                    manager.Failure.OTHER, f'partition {partition.id}',
                    f'cannot be activated: {failure[1]}')

    def _activate(self, found, partition, cards) -> None:
        """Activate a partition.

        A manager that took too long may have done it, or somebody else.
        """
        try:
            self._switches.fabric.activate(
                partition.id, use.virtual_functions(found, partition, cards))
        except manager.FabricError as error:
            if error.failure not in _MAY_BE_ACTIVE or not any(
                    one.id == partition.id and one.is_active
                    for one in self._switches.fabric.partitions()):
                raise
        LOG.info('Partition %s is active: %s', partition.id,
                 ', '.join(sorted(found.cards[partition.id])))

    def _deactivate(self, partition) -> log_once.Line | None:
        """Deactivate a partition; return a line if that fails."""
        try:
            self._switches.fabric.deactivate(partition.id)
        except manager.FabricError as error:
            if error.failure is not manager.Failure.NOT_ACTIVE:
                return logging.WARNING, str(error)
        LOG.info('Partition %s is inactive: no server has a card of it',
                 partition.id)
        return None

    def _inactive(self, found, held) -> list[log_once.Line]:
        """Return lines about guests that run without their partition."""
        return [(logging.ERROR, f'Guest {uuid} runs, but its partition '
                 f'{partition.id} is not active: the fabric manager was '
                 'restarted, and has forgotten it. Reboot the server '
                 '(openstack server reboot --hard)')
                for uuid in self._state.domains.running()
                if not self._state.claims.is_busy(uuid)
                for partition in _needed(found, held.get(uuid, ()))
                if not partition.is_active]

    def _started(self) -> collections.abc.Set[str]:
        """Return the servers whose guests run, or are about to.

        A server that waits for its activation is not among them: the manager
        would only believe that its partition is active.
        """
        self._activated &= self._state.claims.busy()
        return self._state.domains.running() | self._activated

    def _held(self, here) -> dict[str, set[str]]:
        """Return the cards that each server has."""
        found: dict[str, set[str]] = collections.defaultdict(set)
        for uuid, hostdevs in self._state.claims.by_server():
            found[uuid].update(_cards(hostdevs, here))
        return found


def _needed(found: located.Located, cards: collections.abc.Collection[str],
            ) -> tuple[manager.Partition, ...]:
    """As :func:`use.needed`; none if no partitions have the cards."""
    try:
        return use.needed(found, cards)
    except errors.AssignmentError:
        return ()


def _cards(hostdevs: hostdev.Hostdevs, here: inventory.NodeInventory,
           ) -> dict[str, list[model.PciAddress]]:
    """Return the cards of devices, each with its virtual functions."""
    physfns = {function.address: function.physfn
               for function in here.host.functions}
    found: dict[str, list[model.PciAddress]] = {}
    for device in hostdevs:
        item = here.find_by_alias(device.alias, device.address) if (
            hostdev.ours((device,))) else None
        card = (item.device.address if item
                else physfns.get(device.address) or device.address)
        own = found.setdefault(str(card), [])
        if isinstance(device.address, model.PciAddress) and (
                device.address != card):
            own.append(device.address)
    return found


def _not_offered(found: located.Located, here: inventory.NodeInventory,
                 ) -> frozenset[str]:
    """Return the cards that no entry names: the host itself may use them."""
    return found.known_cards.difference(
        str(device.address) for device in here.host.devices)


def _check_own(found: located.Located, partition: manager.Partition,
               held: collections.abc.Collection[str]) -> None:
    """Check that no other server has a card of a partition.

    Several servers can have virtual functions of one card.

    :param held: the cards of other servers
    :raises manager.FabricError: if one has
    """
    if not use.is_free(found, partition, held):
        raise _in_use(partition, 'another server has a card of it')


def _in_use(partition: manager.Partition, why: str) -> manager.FabricError:
    return manager.FabricError(
        manager.Failure.IN_USE, f'partition {partition.id}',
        f'cannot be activated: {why}',
        'if no guest uses it, deactivate it by hand')


def _check_known(found: located.Located, cards: collections.abc.Iterable[str],
                 host: model.Host) -> None:
    """Check that it is known whether GPUs belong to the fabric.

    :raises manager.FabricError: if not. Their guest might have no links
    """
    if found.is_complete:
        return
    unknown = [function for function in host.functions
               if str(function.address) in set(cards) - found.known_cards
               and function.is_display]
    if unknown:
        raise manager.FabricError(
            manager.Failure.OTHER, f'device {unknown[0].address}',
            f'may belong to the fabric of {definition.OPTION}, and cannot be '
            'connected: ' + ('; '.join(found.problems) or
                             'the fabric manager lists no partition'))

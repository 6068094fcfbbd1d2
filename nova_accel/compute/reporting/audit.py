# SPDX-License-Identifier: Apache-2.0
"""The audit: compare libvirt, Placement and sysfs; log what disagrees.

Seam: ``nova.objects.Instance`` and ``Migration``, to identify a consumer.
"""

import collections.abc
import time

from nova import context
from nova import exception
from nova import objects
import nova.conf
from oslo_log import log as logging

from nova_accel.compute import instance_state
from nova_accel.compute.state import node_state
from nova_accel.compute.state import placement
from nova_accel.compute.state import reverts
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core.assignment import consistency
from nova_accel.core.assignment import verify
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class Auditor:
    """The audit of one nova-compute."""

    def __init__(self, state: node_state.NodeState):
        self._domains = state.domains
        self._held = state.holders.hostdevs
        self._placement_client = state.placement_client
        self._last: float | None = None
        self._before: set[str] = set()
        self._logged: set[str] = set()
        # By consumer that Nova does not know, when it was first found.
        self._unknown: dict[str, float] = {}
        #: Units by provider that are reserved until an operator resolves them.
        self.disputed: dict[str, int] = {}

    def audit(self, read: collections.abc.Callable[
            [], inventory.NodeInventory]) -> None:
        """Run the audit if it is due; otherwise check the disputed units.

        :param read: returns the node's inventory; called only if needed
        :raises errors.AccelError: if libvirt's domains cannot be read
        """
        if self._is_time():
            self._compare(read())
        elif self.disputed:
            self._compare_disputed(read())

    def _compare(self, inventory: inventory.NodeInventory) -> None:
        snapshot = self._gather(inventory)
        if self._resolve(snapshot, inventory):
            snapshot = self._gather(inventory)
        findings = (*consistency.compare(snapshot, self._unknown),
                    *(consistency.orphaned_allocations(snapshot, consumer)
                      for consumer in self._long_unknown()))
        self.disputed = _disputed(findings)
        self._log(findings)
        # Not set if the audit failed, so that the next run repeats it.
        self._last = time.monotonic()

    def _compare_disputed(self, inventory: inventory.NodeInventory) -> None:
        """Run the whole audit if the disputed units have changed."""
        snapshot = self._gather(inventory, self.disputed)
        if self.disputed != _disputed(
                consistency.held_without_allocations(snapshot, self.disputed)):
            self._compare(inventory)

    def _gather(self, inventory, only=None) -> consistency.Snapshot:
        return consistency.gather(
            inventory, self._placement_client.allocations_of_provider,
            self._held, only)

    def _resolve(self, snapshot: consistency.Snapshot, inventory) -> bool:
        """Delete the allocations of deleted servers and of their migrations.

        Those of other migrations that have ended are given to the server if
        they are for devices that it has, or deleted.

        Nova deletes the allocations of a deleted server, but not those of its
        migration if it is deleted while it moves. Later Nova deletes leftovers
        of a server that include the compute node's own provider
        (``ResourceTracker._remove_deleted_instances_allocations``), but not if
        ``nova-manage placement audit --delete`` has removed just that part.

        :returns: whether any were changed
        """
        changed, unknown = False, {}
        for consumer in snapshot.consumers.keys() - (
                self._domains.read().keys()):
            move = _find(objects.Migration, consumer)
            uuid = move.instance_uuid if move else consumer
            server = _find(objects.Instance, uuid)
            if not server and not move:
                unknown[consumer] = self._unknown.get(consumer,
                                                      time.monotonic())
            # As long as the domain exists, the devices are in use.
            elif _is_deleted(server) and not self._domains.held_by(uuid):
                LOG.info('Deleting the allocations of %s %s: %s',
                         'migration' if move else 'server', consumer,
                         f'server {uuid} was deleted while it moved' if move
                         else 'the server was deleted')
                self._placement_client.delete(consumer)
                changed = True
            elif (move and server and reverts.is_over(move)
                  and instance_state.is_settled(server)):
                changed |= self._finish_move(server, move, inventory)
        self._unknown = unknown
        return changed

    def _finish_move(self, server, move, inventory) -> bool:
        """Resolve the allocations of a migration that has ended.

        :returns: whether any were changed
        """
        known = self._held()
        held = hostdev.ours(known.get(server.uuid, ()))
        allocated = placement.allocated(
            self._placement_client.allocations_of_consumer(server.uuid))
        if not allocated or (server.uuid in known) != (
                instance_state.is_settled_here(server)):
            # Placement does not answer, the server has no domain, or its old
            # domain is still defined here.
            return False
        if not verify.are_allocated(held, allocated, inventory):
            try:
                return reverts.finish(server, held, inventory,
                                      self._placement_client)
            except errors.AssignmentError as error:
                LOG.warning('%s', error)
                return False
        LOG.info('Deleting the allocations of migration %s: it has ended, and '
                 'server %s has none of its devices', move.uuid, server.uuid)
        self._placement_client.delete(move.uuid)
        return True

    def _long_unknown(self) -> list[str]:
        """Return the consumers that Nova has not known for long_rpc_timeout.

        A server is written to the cell's database only after the scheduler
        has claimed for all servers of the request, for which the conductor
        waits that long.
        """
        now = time.monotonic()
        return [consumer for consumer, since in self._unknown.items()
                if now - since >= CONF.long_rpc_timeout]

    def _is_time(self) -> bool:
        interval = CONF.nova_accel.check_interval
        return bool(interval) and (
            self._last is None
            or time.monotonic() - self._last >= interval)

    def _log(self, findings) -> None:
        lines = {str(finding) for finding in findings
                 # An operation in progress can explain these: log them only
                 # if two audits in a row find them.
                 if not finding.passing or str(finding) in self._before}
        for line in sorted(lines - self._logged):
            LOG.warning('%s', line)
        for line in sorted(self._logged - lines):
            LOG.info('Resolved: %s', line)
        self._before = set(map(str, findings))
        self._logged = lines


def _disputed(findings: collections.abc.Iterable[consistency.Finding],
              ) -> dict[str, int]:
    """Return the units that no server may get, by provider."""
    return {finding.provider: finding.withheld
            for finding in findings if finding.withheld}


def _find(kind, uuid: str):
    """Return a server or a migration of this cell, even if deleted, or None.

    :param kind: nova.objects.Instance or nova.objects.Migration
    """
    try:
        return kind.get_by_uuid(
            context.get_admin_context(read_deleted='yes'), uuid)
    except (exception.InstanceNotFound, exception.MigrationNotFound):
        return None


def _is_deleted(server) -> bool:
    """Whether a server was deleted, and not only moved to another cell.

    :param server: nova.objects.Instance, or None if Nova has none
    """
    return server is None or bool(server.deleted and not server.hidden)

# SPDX-License-Identifier: Apache-2.0
"""The three views compared, now and then, and what the log should say of it.

Seam: ``nova.objects``, for what Nova knows of a consumer.
"""

import collections.abc
import time

from nova import context
from nova import exception
from nova import objects
import nova.conf
from oslo_log import log as logging

from nova_accel.compute.state import node_state
from nova_accel.core.assignment import consistency
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class Auditor:
    """The audit of one nova-compute."""

    def __init__(self, state: node_state.NodeState):
        self._domains = state.domains
        self._placement_client = state.placement_client
        self._last: float | None = None
        self._before: set[str] = set()
        self._said: set[str] = set()
        # Consumers that Nova does not know, and since when.
        self._unknown: dict[str, float] = {}
        #: Units by provider that nobody may have until somebody looks.
        self.disputed: dict[str, int] = {}

    def audit(self, read: collections.abc.Callable[
            [], inventory.NodeInventory]) -> None:
        """Compare all if it is time to; otherwise what is withheld.

        :param read: what the compute node offers, not asked otherwise
        :raises errors.AccelError: if libvirt does not say what is held
        """
        if self._is_time():
            self._compare(read())
        elif self.disputed:
            self._compare_disputed(read())

    def _compare(self, inventory: inventory.NodeInventory) -> None:
        snapshot = self._gather(inventory)
        if self._clear_up(snapshot):
            snapshot = self._gather(inventory)
        findings = (*consistency.compare(snapshot, self._unknown),
                    *(consistency.orphaned_allocations(snapshot, consumer)
                      for consumer in self._nobodys()))
        self.disputed = _withheld(findings)
        self._say(findings)
        # One that failed is made again in the next round: until then nothing
        # is withheld.
        self._last = time.monotonic()

    def _compare_disputed(self, inventory: inventory.NodeInventory) -> None:
        """Compare all if other units have to be withheld than are."""
        snapshot = self._gather(inventory, self.disputed)
        if self.disputed != _withheld(
                consistency.held_without_allocations(snapshot, self.disputed)):
            self._compare(inventory)

    def _gather(self, inventory, only=None) -> consistency.Snapshot:
        return consistency.gather(
            inventory, self._placement_client.allocations_of_provider,
            self._domains.read, only)

    def _clear_up(self, snapshot: consistency.Snapshot) -> bool:
        """Free what was promised to a server that is no more, or to its move.

        Nova deletes the allocations of a server with it, and forgets those of
        its migration where it is deleted while it moves. What a deleted server
        has left of the compute node's own provider it deletes later, with all
        others of the server
        (``ResourceTracker._remove_deleted_instances_allocations``); but not
        where ``nova-manage placement audit --delete`` took just that away.

        :returns: whether there was any
        """
        freed, unknown = False, {}
        for consumer in snapshot.consumers.keys() - snapshot.held.keys():
            move = _find(objects.Migration, consumer)
            uuid = move.instance_uuid if move else consumer
            server = _find(objects.Instance, uuid)
            if not server and not move:
                unknown[consumer] = self._unknown.get(consumer,
                                                      time.monotonic())
            # Its domain has to go first.
            elif _is_gone(server) and not self._domains.held_by(uuid):
                LOG.info('Server %s was deleted%s: what %s was promised is '
                         'free', uuid, ' while it moved' if move else '',
                         f'its migration {consumer}' if move else 'it')
                self._placement_client.delete(consumer)
                freed = True
        self._unknown = unknown
        return freed

    def _nobodys(self) -> list[str]:
        """Consumers that Nova has not known for long.

        A server comes into the cell's database after the scheduler has
        claimed for it, and for all that were asked for with it; so long the
        conductor waits for that.
        """
        now = time.monotonic()
        return [consumer for consumer, since in self._unknown.items()
                if now - since >= CONF.long_rpc_timeout]

    def _is_time(self) -> bool:
        interval = CONF.nova_accel.check_interval
        return bool(interval) and (
            self._last is None
            or time.monotonic() - self._last >= interval)

    def _say(self, findings) -> None:
        lines = {str(finding) for finding in findings
                 # What an operation explains is gone the next time.
                 if not finding.passing or str(finding) in self._before}
        for line in sorted(lines - self._said):
            LOG.warning('%s', line)
        for line in sorted(self._said - lines):
            LOG.info('No longer so: %s', line)
        self._before = set(map(str, findings))
        self._said = lines


def _withheld(findings: collections.abc.Iterable[consistency.Finding],
              ) -> dict[str, int]:
    """Units that nobody may have, by provider."""
    return {finding.provider: finding.withheld
            for finding in findings if finding.withheld}


def _find(kind, uuid: str):
    """A server or a migration of this cell, also a deleted one; or None.

    :param kind: nova.objects.Instance or nova.objects.Migration
    """
    try:
        return kind.get_by_uuid(
            context.get_admin_context(read_deleted='yes'), uuid)
    except (exception.InstanceNotFound, exception.MigrationNotFound):
        return None


def _is_gone(server) -> bool:
    """Whether a server is deleted, and not just in another cell by now.

    :param server: nova.objects.Instance, or None where Nova has none
    """
    return server is None or bool(server.deleted and not server.hidden)

# SPDX-License-Identifier: Apache-2.0
"""The three truths compared, now and then, and what the log should say of it.

Seam: ``nova.objects``, for what Nova knows of a consumer.
"""

import collections.abc
import time

from nova import context
from nova import exception
from nova import objects
import nova.conf
from oslo_log import log as logging

from nova_accel.compute import ledger
from nova_accel.compute import record
from nova_accel.core import model
from nova_accel.core import providers
from nova_accel.core import reconciliation

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class Auditor:
    """The reconciliation of one nova-compute.

    :param recorded: what is held
    :param promises: what they were promised
    """

    def __init__(self, recorded: record.Record, promises: ledger.Ledger):
        self._record = recorded
        self._ledger = promises
        self._last: float | None = None
        self._before: set[str] = set()
        self._said: set[str] = set()
        #: Units by provider that nobody may have until somebody looks.
        self.disputed: dict[str, int] = {}

    def audit(self, read: collections.abc.Callable[[], model.Host],
              node: providers.Node) -> None:
        """Compare all if it is time to; otherwise what is withheld.

        :param read: the machine, which is not looked at otherwise
        :raises errors.AccelError: if libvirt does not say what is held
        """
        if self._is_time():
            self._compare(read(), node)
        elif self.disputed:
            self._compare_disputed(read(), node)

    def _compare(self, host: model.Host, node: providers.Node) -> None:
        truths = self._gather(host, node)
        if self._clear_up(truths):
            truths = self._gather(host, node)
        findings = reconciliation.compare(truths)
        self.disputed = _withheld(findings)
        self._say(findings)
        # One that failed is made again in the next round: until then nothing
        # is withheld.
        self._last = time.monotonic()

    def _compare_disputed(self, host: model.Host, node: providers.Node,
                          ) -> None:
        """Compare all if other units have to be withheld than are."""
        truths = self._gather(host, node, self.disputed)
        if self.disputed != _withheld(
                reconciliation.unpromised(truths, self.disputed)):
            self._compare(host, node)

    def _gather(self, host, node, only=None) -> reconciliation.Truths:
        return reconciliation.gather(host, node, self._ledger.of_provider,
                                     self._record.read, only)

    def _clear_up(self, truths: reconciliation.Truths) -> bool:
        """Whether a consumer that will not come was promised anything."""
        consumers = {consumer for promised in truths.promised.values()
                     for consumer in promised} - set(truths.held)
        return any([self._give_back(consumer) for consumer in consumers])

    def _give_back(self, consumer: str) -> bool:
        """Free what a move was promised whose server is no more.

        Nova deletes the allocations of a server with it, and forgets those of
        its migration where it is deleted while it moves.

        :param consumer: a migration's uuid, or any other
        :returns: whether that was so
        """
        try:
            move = objects.Migration.get_by_uuid(
                context.get_admin_context(), consumer)
        except exception.MigrationNotFound:
            return False
        # Its domain has to go first.
        if _exists(move.instance_uuid) or self._record.held_by(
                move.instance_uuid):
            return False
        LOG.info('Server %s was deleted while it moved: what its migration '
                 '%s was promised is free', move.instance_uuid, consumer)
        self._ledger.delete(consumer)
        return True

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


def _withheld(findings: collections.abc.Iterable[reconciliation.Finding],
              ) -> dict[str, int]:
    """Units that nobody may have, by provider."""
    return {finding.provider: finding.withheld
            for finding in findings if finding.withheld}


def _exists(server: str) -> bool:
    try:
        objects.Instance.get_by_uuid(context.get_admin_context(), server)
    except exception.InstanceNotFound:
        return False
    return True

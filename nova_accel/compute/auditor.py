# SPDX-License-Identifier: Apache-2.0
"""The three truths compared, now and then, and what the log should say of it.

Seam: ``SchedulerReportClient.get_allocations_for_resource_provider``. Checked
with Nova 33 and 34.
"""

import collections.abc
import time

import nova.conf
from oslo_log import log as logging

from nova_accel.compute import record
from nova_accel.core import model
from nova_accel.core import providers
from nova_accel.core import reconciliation

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

Allocations = collections.abc.Callable[[str], collections.abc.Mapping]


class Auditor:
    """The reconciliation of one nova-compute.

    :param recorded: what is held
    :param allocations: those of a provider, by its uuid, as Placement has them
    :param give_back: takes its allocations from a consumer that holds nothing
        here and never will; whether it was one
    """

    def __init__(self, recorded: record.Record, allocations: Allocations,
                 give_back: collections.abc.Callable[[str], bool]):
        self._record = recorded
        self._allocations = allocations
        self._give_back = give_back
        self._last: float | None = None
        self._before: set[str] = set()
        self._said: set[str] = set()
        #: Units by provider that nobody may have until somebody looks.
        self.disputed: dict[str, int] = {}

    def audit(self, read: collections.abc.Callable[[], model.Host],
              node: providers.Node) -> None:
        """Compare, if it is time to.

        :param read: the machine, which is not looked at otherwise
        :raises errors.AccelError: if libvirt does not say what is held
        """
        if not self._is_time():
            return
        host = read()
        self._last = time.monotonic()
        truths = reconciliation.gather(host, node, self._allocations,
                                       self._record.read)
        if self._clear_up(truths):
            truths = reconciliation.gather(host, node, self._allocations,
                                           self._record.read)
        findings = reconciliation.compare(truths)
        self.disputed = {finding.provider: finding.withheld
                         for finding in findings if finding.withheld}
        self._say(findings)

    def _clear_up(self, truths: reconciliation.Truths) -> bool:
        """Whether a consumer that will not come was promised anything."""
        consumers = {consumer for promised in truths.promised.values()
                     for consumer in promised} - set(truths.held)
        return any([self._give_back(consumer) for consumer in consumers])

    def _is_time(self) -> bool:
        interval = CONF.nova_accel.check_interval
        # What is withheld is looked at again soon: it may be for nothing.
        return bool(interval) and (
            self._last is None or bool(self.disputed)
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

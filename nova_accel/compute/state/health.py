# SPDX-License-Identifier: Apache-2.0
"""Withholds the devices whose health is in doubt."""

import collections.abc

import nova.conf
from oslo_log import log as logging

from nova_accel.compute import log_once
from nova_accel.core import model
from nova_accel.core.placement import inventory
from nova_accel.host import health_checks
from nova_accel.host import tree as trees

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class Health:
    """What is wrong with the devices of this host, as it was read last.

    A device that was not read is withheld. All errors of devices count that
    were withheld before nova-compute started.
    """

    def __init__(self) -> None:
        self._checks = health_checks.Checks()
        # Both are None before the first check.
        self._problems: health_checks.Problems | None = None
        self._withheld_before: collections.abc.Set[
            tuple[str, model.WithheldState]] | None = None
        self._broken = log_once.LogOnce(LOG)

    def check(self, tree: trees.Tree, here: inventory.NodeInventory,
              kinds: health_checks.Kinds,
              ) -> tuple[bool, set[model.Address]]:
        """Look at all functions of devices.

        :param kinds: opened on the tree
        :returns: whether problems have changed, and the functions that have
            none any more
        """
        before = self._problems
        if self._withheld_before is None:
            self._withheld_before = here.node.withheld
        named, suspected = (health_checks.addresses(
            (item.device, item.region) for item in items) for items in (
                here.offered, filter(self._was_withheld, here.offered)))
        after = self._problems = self._checks.read(
            tree, here.host.functions, named, kinds,
            health_checks.limits(CONF.nova_accel), suspected)
        self._broken.log((logging.WARNING, failure)
                         for failure in self._checks.failures)
        return before != after, _log_recovered(before or {}, after)

    def withheld(self, functions: collections.abc.Iterable[model.Function],
                 ) -> dict[model.Address, model.Withheld]:
        """Return the functions with problems, with reason and remedy.

        Before the first check there are none: Placement is told after it.
        """
        return {} if self._problems is None else health_checks.withheld(
            self._problems, functions)

    def _was_withheld(self, item: inventory.Offered) -> bool:
        """Whether a Region was not healthy before nova-compute started."""
        return (item.uuid, model.WithheldState.UNHEALTHY
                ) in (self._withheld_before or ())


def _log_recovered(before: health_checks.Problems,
                   after: health_checks.Problems) -> set[model.Address]:
    """Log and return the functions that have no problem any more."""
    recovered = {address for address, problem in before.items()
                 if problem and after.get(address) == ''}
    for address in sorted(recovered):
        LOG.info('Device %s is healthy again: it was withheld because %s',
                 address, before[address])
    return recovered

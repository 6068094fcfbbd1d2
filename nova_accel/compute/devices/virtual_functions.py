# SPDX-License-Identifier: Apache-2.0
"""Sets the numbers of virtual functions that entries specify."""

import nova.conf
from oslo_log import log as logging

from nova_accel import nova_claims
from nova_accel.compute.state import local_host
from nova_accel.core import errors
from nova_accel.core.assignment import holders
from nova_accel.core.device_spec import virtual_functions
from nova_accel.core.placement import inventory
from nova_accel.host import sriov

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


def set_numbers(local_host: local_host.LocalHost,
                node: inventory.Node, known: holders.Holders) -> None:
    """Set the number of virtual functions of each card that has another.

    The kernel removes all of a card before it makes others. So a card keeps
    those of which a server without a domain may have one.

    :param known: who holds devices
    :raises errors.TreeError: if ``sysfs_root`` cannot be read
    """
    host = local_host.read_ignoring_reset_failures()
    entries, _broken = local_host.entries()
    changes, problems = virtual_functions.plan(host.functions, entries,
                                               nova_claims.claims(CONF),
                                               known.addresses)
    for problem in problems:
        LOG.error('%s', problem)
    needed = _cards_needed(inventory.NodeInventory(host, node), known)
    for change in changes:
        if change.before and (change.card in needed or not known.is_known):
            LOG.error('Device %s keeps %s, although num_vfs is %d: a server '
                      'without a domain %s one; hard reboot it, and restart '
                      'nova-compute', change.card, _vfs(change.before),
                      change.number, 'has' if known.is_known else 'may have')
            continue
        try:
            number = sriov.change(local_host.tree, change)
        except Exception as error:
            # Continue with the other cards.
            LOG.error('Device %s cannot have %s: %s', change.card,
                      _vfs(change.number), error)
            continue
        LOG.info('Device %s has %s; it had %d', change.card, _vfs(number),
                 change.before)
        if number != change.number:
            LOG.error('Device %s has %s, though num_vfs is %d: its driver '
                      'made so many; write num_vfs %d, or "all"', change.card,
                      _vfs(number), change.number, number)


def _vfs(number: int) -> str:
    return errors.count(number, 'virtual function')


def _cards_needed(here: inventory.NodeInventory, known: holders.Holders,
                  ) -> set:
    """Return the cards of which servers without a domain have VFs."""
    lacked = known.lacked(here.offered)
    return {function.physfn for function in here.host.functions
            if function.address in lacked}

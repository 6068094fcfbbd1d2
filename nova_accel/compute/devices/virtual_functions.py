# SPDX-License-Identifier: Apache-2.0
"""Sets the numbers of virtual functions that entries specify."""

import collections.abc

import nova.conf
from oslo_log import log as logging

from nova_accel import nova_claims
from nova_accel.compute.state import local_host
from nova_accel.core import model
from nova_accel.core.device_spec import virtual_functions
from nova_accel.host import sriov

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


def set_numbers(local_host: local_host.LocalHost,
                held: collections.abc.Container[model.Address]) -> None:
    """Set the number of virtual functions of each card that has another.

    :param held: addresses that domains hold
    :raises errors.TreeError: if ``sysfs_root`` cannot be read
    """
    host = local_host.read_ignoring_reset_failures()
    entries, _broken = local_host.entries()
    changes, problems = virtual_functions.plan(host.functions, entries,
                                               nova_claims.claims(CONF),
                                               held)
    for problem in problems:
        LOG.error('%s', problem)
    for change in changes:
        try:
            number = sriov.change(local_host.tree, change)
        except Exception as error:
            # Continue with the other cards.
            LOG.error('Device %s cannot have %d virtual functions: %s',
                      change.card, change.number, error)
            continue
        LOG.info('Device %s has %d virtual functions; it had %d',
                 change.card, number, change.before)
        if number != change.number:
            LOG.error('Device %s has %d virtual functions, though num_vfs '
                      'is %d: its driver made so many; write num_vfs %d, '
                      'or "all"', change.card, number, change.number,
                      number)

# SPDX-License-Identifier: Apache-2.0
"""Reads from Nova which servers are rebuilt, move, or may be reverted.

Seams: ``nova.objects.Instance.get_by_uuid``, for ``task_state``;
``nova.objects.MigrationList.get_in_progress_by_host_and_node``, which includes
resizes that wait to be confirmed; ``nova.objects.MigrationList.
get_by_filters``, since the status of a migration is ``reverted`` before the
guest is back, or ``error`` if it fails to come back;
``nova.objects.InstanceList.get_by_filters``.
"""

import collections.abc
import itertools

from nova import context
from nova import exception
from nova import objects
from nova.compute import task_states
from nova.compute import vm_states
import nova.conf
from oslo_log import log as logging

from nova_accel.compute.state import node_state
from nova_accel.compute.state import placement
from nova_accel.core import model
from nova_accel.core.assignment import pending_reverts
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

_REBUILD = frozenset({task_states.REBUILDING,
                      task_states.REBUILD_BLOCK_DEVICE_MAPPING,
                      task_states.REBUILD_SPAWNING})


def is_rebuilding(server: str) -> bool:
    """Whether a server is being rebuilt.

    While its domain is undefined, only a claim keeps its devices. If the
    rebuild fails, Placement has no allocations that would justify the claim.

    :param server: uuid
    """
    try:
        instance = objects.Instance.get_by_uuid(
            context.get_admin_context(), server)
    except exception.InstanceNotFound:
        return False
    return instance.task_state in _REBUILD


def kept(left: collections.abc.Collection[model.Address],
         inventory: inventory.NodeInventory, state: node_state.NodeState,
         ) -> set[model.Address]:
    """Return the unused devices that a reverted resize may need again.

    :param left: the prepared devices that no server holds
    :returns: all of them, if Nova or Placement does not answer
    """
    try:
        moves = [*_in_progress(inventory.node.name), *_reverting()]
    except Exception as error:
        # The rest of the clean-up does not depend on this.
        LOG.warning('Could not read from Nova which servers may come back; '
                    'no prepared devices are released: %s', error)
        return set(left)
    held = state.domains.read()
    found: set[model.Address] = set()
    for move in moves:
        server = move.instance_uuid
        if move.source_node != inventory.node.name or (
                # The old domain is still defined here, and holds them.
                move.dest_node != inventory.node.name and server in held):
            continue
        # In this order: a revert moves the allocations of the migration to
        # the server.
        allocated = [state.placement_client.allocations_of_consumer(consumer)
                     for consumer in (move.uuid, server)]
        if None in allocated:
            # Placement did not answer. Try again in the next run.
            return set(left)
        found |= pending_reverts.kept(
            [address for address in left if address not in found], server,
            map(placement.allocated, allocated), held.get(server, ()),
            inventory.offered)
    return found


def _in_progress(nodename: str) -> list:
    return list(objects.MigrationList.get_in_progress_by_host_and_node(
        context.get_admin_context(), CONF.host, nodename))


def _reverting() -> list:
    """Return the last reverted or failed migration of servers of this host.

    These are servers whose resize is being reverted, or that are in ERROR.
    """
    admin = context.get_admin_context()
    servers = itertools.chain.from_iterable(
        objects.InstanceList.get_by_filters(
            admin, {'host': CONF.host, 'deleted': False, **state},
            expected_attrs=[])
        for state in ({'task_state': task_states.RESIZE_REVERTING},
                      {'vm_state': vm_states.ERROR}))
    return list(itertools.chain.from_iterable(
        objects.MigrationList.get_by_filters(
            admin, {'instance_uuid': server.uuid,
                    'status': ['reverted', 'error']},
            sort_keys=['id'], sort_dirs=['desc'], limit=1)
        for server in servers))

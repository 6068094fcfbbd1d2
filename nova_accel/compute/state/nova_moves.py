# SPDX-License-Identifier: Apache-2.0
"""What Nova says of servers that move, are rebuilt, or may come back.

Seams: ``nova.objects.Instance.get_by_uuid``, for its ``task_state``;
``nova.objects.MigrationList``: ``get_in_progress_by_host_and_node``,
where a resize that waits to be confirmed counts as in progress, and
``get_by_filters``, since on its way back it is ``reverted`` before the guest
is there, or ``error`` where it never comes; ``nova.objects.InstanceList
.get_by_filters``.
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
    """Whether a server is being rebuilt, which no driver is told.

    Between the end of its old definition and its new one a claim is all that
    keeps its devices; and after a rebuild that failed, Placement has no
    allocations of it that would speak for the claim.

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
    """Which of what nobody holds somebody may come back for.

    :param left: what is ready and nobody holds
    :returns: all of it, where Nova or Placement do not say
    """
    try:
        moves = [*_in_progress(inventory.node.name), *_on_the_way_back()]
    except Exception as error:
        # What else is to be cleared up does not need to know.
        LOG.warning('Nova does not say which servers may come back, and '
                    'nothing that was made ready is taken back: %s', error)
        return set(left)
    held = state.domains.read()
    found: set[model.Address] = set()
    for move in moves:
        server = move.instance_uuid
        if move.source_node != inventory.node.name or (
                # Its old definition is here still, and holds it.
                move.dest_node != inventory.node.name and server in held):
            continue
        # In this order: on the way back Nova gives the server what its
        # migration had.
        allocated = [state.placement_client.allocations_of_consumer(consumer)
                     for consumer in (move.uuid, server)]
        if None in allocated:
            # Nobody knows; the next round may.
            return set(left)
        found |= pending_reverts.kept(
            [address for address in left if address not in found], server,
            map(placement.allocated, allocated), held.get(server, ()),
            inventory.offered)
    return found


def _in_progress(nodename: str) -> list:
    return list(objects.MigrationList.get_in_progress_by_host_and_node(
        context.get_admin_context(), CONF.host, nodename))


def _on_the_way_back() -> list:
    """The last move of each server that comes back here, or failed to."""
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

# SPDX-License-Identifier: Apache-2.0
"""Finishes moves that failed or were reverted, in Placement.

While a server moves, the migration has the allocations of the old devices. If
Placement does not answer at the revert of a resize or at the rollback of a
live migration, the server goes on with the old devices, and Nova never moves
their allocations back (``ComputeManager._revert_allocation``). If it does not
answer at a confirm, Nova never deletes them.

Seams: ``nova.objects.MigrationList.get_by_filters``;
``nova.objects.Migration.get_by_uuid``; ``nova.objects.Instance.get_by_uuid``.
"""

import collections.abc

from nova import context
from nova import exception
from nova import objects
from oslo_log import log as logging

from nova_accel.compute.state import placement
from nova_accel.core import hostdev
from nova_accel.core.assignment import allocations
from nova_accel.core.assignment import verify
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)

#: The states of a migration that has ended.
_ENDED = ('reverted', 'confirmed', 'error', 'failed', 'completed',
          'cancelled', 'done')
#: How many migrations of a server are looked at, the last ones first.
_MOST = 10


def finish(instance, hostdevs: hostdev.Hostdevs,
           here: inventory.NodeInventory,
           placement_client: placement.PlacementClient, migration=None,
           ) -> bool:
    """Give a server the allocations of its devices, if a migration has them.

    :param instance: nova.objects.Instance
    :param hostdevs: the devices that the server has
    :param migration: nova.objects.Migration that is being reverted, if any;
        its allocations are the server's in any case
    :returns: whether any were moved
    :raises errors.AssignmentError: if Placement rejects the change
    """
    found = next((move for move in (migration, *_ended(instance)) if move
                  and hostdevs and verify.are_allocated(
                      hostdevs, _allocated(placement_client, move), here)),
                 migration)
    if not found or not _allocated(placement_client, found):
        return False
    placement_client.move(found.uuid, instance.uuid)
    LOG.info('Moved the allocations of migration %s, which has ended, to the '
             'server: Nova has not done it', found.uuid, instance=instance)
    return True


def is_over(migration) -> bool:
    """Whether a migration has ended."""
    return migration.status in _ENDED


def is_waiting(uuid: str) -> bool:
    """Whether a migration of a server that exists has not ended."""
    admin = context.get_admin_context()
    try:
        migration = objects.Migration.get_by_uuid(admin, uuid)
        objects.Instance.get_by_uuid(admin, migration.instance_uuid,
                                     expected_attrs=[])
    except (exception.MigrationNotFound, exception.InstanceNotFound):
        return False
    return not is_over(migration)


def _allocated(placement_client, migration) -> allocations.Allocations:
    return placement.allocated(
        placement_client.allocations_of_consumer(migration.uuid))


def _ended(instance) -> collections.abc.Iterator:
    """Yield the last migrations of a server that have ended."""
    yield from objects.MigrationList.get_by_filters(
        context.get_admin_context(), {'instance_uuid': instance.uuid,
                                      'status': list(_ENDED)},
        sort_keys=['id'], sort_dirs=['desc'], limit=_MOST)

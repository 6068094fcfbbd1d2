# SPDX-License-Identifier: Apache-2.0
"""Finishes reverts of resizes in Placement.

Until a resize is confirmed or reverted, the migration has the allocations of
the old devices. If Placement does not answer at the revert, Nova starts the
guest with the old devices, and never moves their allocations back to the
server (``ComputeManager._revert_allocation``).

Seam: ``nova.objects.MigrationList.get_by_filters``.
"""

from nova import context
from nova import objects
from oslo_log import log as logging

from nova_accel.compute.state import placement

LOG = logging.getLogger(__name__)


def finish(instance, placement_client: placement.PlacementClient,
           migration=None) -> bool:
    """Move the allocations of a reverted migration to its server.

    :param instance: nova.objects.Instance
    :param migration: nova.objects.Migration; if None, the last one of the
        server if it was reverted
    :returns: whether any were moved
    :raises errors.AssignmentError: if Placement rejects the change
    """
    migration = migration or _last(instance)
    if not migration or not placement_client.allocations_of_consumer(
            migration.uuid):
        return False
    placement_client.move(migration.uuid, instance.uuid)
    LOG.info('Moved the allocations of migration %s, which was reverted, to '
             'the server: Nova has not done it', migration.uuid,
             instance=instance)
    return True


def _last(instance):
    """Return the last migration of a server if it was reverted, or None."""
    found = objects.MigrationList.get_by_filters(
        context.get_admin_context(), {'instance_uuid': instance.uuid},
        sort_keys=['id'], sort_dirs=['desc'], limit=1)
    return next((migration for migration in found
                 if migration.status == 'reverted'), None)

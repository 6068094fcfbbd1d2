# SPDX-License-Identifier: Apache-2.0
"""The alternative of a profile that a server keeps in a live migration.

The state of a device moves only to a device of the same model, so nova-compute
accepts no other. Here, hosts with another alternative are left out, which
Nova would try one after the other.

Seams: ``nova.objects.InstanceMapping`` and ``MigrationList``;
``SchedulerReportClient``: ``get_allocs_for_consumer`` and
``get_provider_traits``.
"""

from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.scheduler.client import report
from oslo_log import log as logging

from nova_accel.core import naming
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import arrange
from nova_accel.scheduler import candidates
from nova_accel.scheduler import device_request
from nova_accel.scheduler import taken_over

LOG = logging.getLogger(__name__)

# The statuses of a live migration that has no destination yet.
_BEGUN = ['accepted', 'queued', 'preparing']


def pin(spec) -> None:
    """Replace alternatives by the one that a server holds, in place.

    :param spec: nova.objects.RequestSpec; unchanged if it has no alternatives,
        or is not that of a live migration
    """
    if ('flavor' not in spec or 'extra_specs' not in spec.flavor
            or 'instance_uuid' not in spec or not spec.instance_uuid
            or not flavor_specs.has_alternatives(spec.flavor.extra_specs)):
        return
    wanted = device_request.of(spec)
    migration = _live_migration(spec.instance_uuid)
    try:
        held = _held(migration) if migration else ()
    except (exception.NovaException, keystone.ClientException) as error:
        # nova-compute finds out on each host.
        LOG.info('Hosts with any alternative are examined for the live '
                 'migration of server %s: Placement does not tell which one '
                 'it has: %s', spec.instance_uuid, error)
        return
    if not held:
        return
    found = arrange.arrange(wanted.groups, held)
    if found.objection:
        # nova-compute may have moved the server to another resource class.
        taken_over.correct(spec)
        found = arrange.arrange(device_request.of(spec).groups, held)
    if found.objection:
        LOG.warning('The devices of server %s are of no alternative of %s '
                    'any more: %s', spec.instance_uuid, wanted.name,
                    found.objection)
        return
    spec.flavor.extra_specs = flavor_specs.pinned(spec.flavor.extra_specs,
                                                  found.alternative)


def _live_migration(server: str) -> str | None:
    """Return the uuid of a server's live migration that has just begun."""
    admin = nova_context.get_admin_context()
    try:
        cell = objects.InstanceMapping.get_by_instance_uuid(
            admin, server).cell_mapping
    except exception.InstanceMappingNotFound:
        return None
    if not cell:
        # The server is new.
        return None
    with nova_context.target_cell(admin, cell) as there:
        migrations = objects.MigrationList.get_by_filters(there, {
            'instance_uuid': server, 'migration_type': 'live-migration',
            'status': _BEGUN})
    newest = max(migrations, key=lambda migration: migration.id, default=None)
    return newest and newest.uuid


def _held(migration: str) -> tuple[arrange.AvailableUnits, ...]:
    """Return the units on the source, which a live migration has."""
    client, admin = (report.report_client_singleton(),
                     nova_context.get_admin_context())
    allocations = client.get_allocs_for_consumer(admin, migration)[
        'allocations']
    return candidates.units({uuid: {
        'traits': client.get_provider_traits(admin, uuid).traits,
        'resources': {name: {'capacity': amount, 'used': 0} for name, amount
                      in allocation['resources'].items()}}
        for uuid, allocation in allocations.items()
        if any(map(naming.class_of_units, allocation['resources']))})

# SPDX-License-Identifier: Apache-2.0
"""What scenarios leave in a cloud, one that failed say, and its end."""

import contextlib

from tests.integration import namespaces
from tests.integration import steps
from tests.integration.cloud import bringing
from tests.integration.cloud import configuration
from tests.integration.cloud import install_guide
from tests.integration.cloud import services

_NOVA = ('nova-api', 'nova-conductor', 'nova-scheduler', 'nova-compute')


def clear(cloud) -> None:
    """Have a cloud be as it was when it came up.

    :raises Failure: if it does not come to that
    """
    restore(cloud)
    for service in cloud.connection.compute.services(host=services.SECOND):
        cloud.connection.compute.delete_service(service)
    cloud.delete(*cloud.connection.compute.servers(all_projects=True))
    remove(cloud, namespaces.HOST)
    for uuid in cloud.virsh('list', '--all', '--uuid').split():
        # Only one that runs can be destroyed.
        with contextlib.suppress(steps.Failure):
            cloud.virsh('destroy', uuid)
        cloud.virsh('undefine', '--nvram', uuid)
    keystone = cloud.connection.identity
    for limit in keystone.limits():
        keystone.delete_limit(limit)
    for limit in keystone.registered_limits():
        keystone.delete_registered_limit(limit)


def start(cloud) -> list[str]:
    """Start those of its services that have ended; they are returned."""
    running = cloud.processes.names()
    ended = [name for name in bringing.SERVICES if name not in running]
    cloud.start(*ended)
    return ended


def restore(cloud) -> None:
    """Have its services run, with their own configuration, and no others."""
    others = set(services.SERVICES).intersection(
        cloud.processes.names()).difference(bringing.SERVICES)
    added = configuration.clear('nova', install_guide.NAME)
    if others:
        cloud.stop(*others)
    ended = start(cloud)
    if added:
        cloud.restart(*_NOVA)
    if others or ended or added:
        cloud.recovered()


def remove(cloud, host: str) -> None:
    """Delete the servers of a host, and what else Placement has promised."""
    cloud.delete(*cloud.connection.compute.servers(
        all_projects=True, compute_host=host))
    placement = cloud.connection.placement
    for root in placement.resource_providers(name=host):
        for provider in placement.resource_providers(in_tree=root.id):
            for consumer in placement.get(
                    f'/resource_providers/{provider.id}/allocations').json()[
                        'allocations']:
                placement.delete(f'/allocations/{consumer}')

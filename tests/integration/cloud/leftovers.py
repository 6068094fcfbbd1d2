# SPDX-License-Identifier: Apache-2.0
"""Removal of what tests, for example failed ones, leave in a cloud."""

import contextlib

from tests.integration import namespaces
from tests.integration import steps
from tests.integration.cloud import bringing
from tests.integration.cloud import configuration
from tests.integration.cloud import install_guide
from tests.integration.cloud import services

_NOVA = ('nova-api', 'nova-conductor', 'nova-scheduler', 'nova-compute')


def clear(cloud) -> None:
    """Restore the state in which the cloud came up.

    :raises Failure: if that does not succeed
    """
    restore(cloud)
    for service in cloud.connection.compute.services(host=services.SECOND):
        cloud.connection.compute.delete_service(service)
    cloud.delete(*cloud.connection.compute.servers(all_projects=True))
    remove(cloud, namespaces.HOST)
    for uuid in cloud.virsh('list', '--all', '--uuid').split():
        # destroy fails for a domain that does not run.
        with contextlib.suppress(steps.Failure):
            cloud.virsh('destroy', uuid)
        cloud.virsh('undefine', '--nvram', uuid)
    keystone = cloud.connection.identity
    for limit in keystone.limits():
        keystone.delete_limit(limit)
    for limit in keystone.registered_limits():
        keystone.delete_registered_limit(limit)


def start(cloud) -> list[str]:
    """Start the cloud's services that have ended; return their names."""
    running = cloud.processes.names()
    ended = [name for name in bringing.SERVICES if name not in running]
    cloud.start(*ended)
    return ended


def restore(cloud) -> None:
    """Restore the cloud's services and their configuration.

    Additional services are stopped.
    """
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
    """Delete the servers of a host and all allocations from it."""
    cloud.delete(*cloud.connection.compute.servers(
        all_projects=True, compute_host=host))
    placement = cloud.connection.placement
    for root in placement.resource_providers(name=host):
        for provider in placement.resource_providers(in_tree=root.id):
            for consumer in placement.get(
                    f'/resource_providers/{provider.id}/allocations').json()[
                        'allocations']:
                placement.delete(f'/allocations/{consumer}')

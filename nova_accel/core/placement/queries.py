# SPDX-License-Identifier: Apache-2.0
"""What is asked of Placement's API about compute nodes and their devices.

The caller sends the requests: each function takes a :data:`Get`.

Source: Placement's API reference. The newest feature used is ``in_tree`` of
allocation candidates, microversion 1.31.
"""

import collections.abc
import typing
from urllib import parse

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.placement import listing

#: Takes the path of a resource of Placement, returns the JSON there. It raises
#: :class:`nova_accel.core.errors.AccelError` if there is no answer.
Get = collections.abc.Callable[[str], typing.Any]

#: The last microversion that all supported versions of Placement have.
MICROVERSION = '1.36'


def providers(get: Get, **query: str) -> list[listing.Json]:
    """Return the resource providers that match a query."""
    found: list[listing.Json] = get(
        '/resource_providers?' + parse.urlencode(query))['resource_providers']
    return found


def root(get: Get, name: str) -> listing.Json:
    """Return the provider of the compute node of this name.

    :raises errors.AccelError: if there is none
    """
    found = providers(get, name=name)
    if not found:
        raise errors.AccelError(
            f'compute node {errors.plain(name)}', 'Placement has no resource '
            'provider of this name', 'set the name (--host) to that in '
            '"openstack hypervisor list", or start nova-compute')
    return found[0]


def is_reported(get: Get) -> bool:
    """Whether any nova-compute has ever reported devices.

    If not, neither our trait nor :data:`nova_accel.core.naming.HOST_CLASS`
    exists, and Placement rejects requests that name them (400).
    """
    return bool(get(f'/traits?name=in:{naming.MARKER_TRAIT}')['traits'])


def ours(get: Get, root: str) -> list[listing.Json]:
    """Return our providers of a compute node.

    :param root: uuid of the compute node's provider
    """
    if not is_reported(get):
        return []
    return [provider for provider in providers(
        get, in_tree=root, required=naming.MARKER_TRAIT)
        if naming.is_provider(provider['name'],
                              provider['parent_provider_uuid'],
                              {naming.MARKER_TRAIT})]


def summaries(get: Get, **query: str) -> dict[str, listing.Json]:
    """Return the ``provider_summaries`` of compute nodes with devices.

    :param query: more conditions; without any, Placement may limit the number
        of compute nodes
    """
    found: dict[str, listing.Json] = get(
        '/allocation_candidates?' + parse.urlencode({
            'resources': f'{naming.HOST_CLASS}:1', **query})
    )['provider_summaries']
    return found


def host(get: Get, name: str) -> listing.Host:
    """Return one compute node, with four requests.

    :raises errors.AccelError: if there is none of this name
    """
    node = root(get, name)
    found = ours(get, node['uuid'])
    [host] = listing.hosts(found, [node], summaries(
        get, in_tree=node['uuid']) if found else {})
    return host


def allocations(get: Get, provider: str) -> dict[str, listing.Json]:
    """Return the allocations of a provider, by consumer."""
    found: dict[str, listing.Json] = get(
        f'/resource_providers/{provider}/allocations')['allocations']
    return found


def project(get: Get, consumer: str) -> str:
    """Return the project of a consumer, '' if it has no allocations."""
    return str(get(f'/allocations/{consumer}').get('project_id', ''))


def inventory(get: Get, units: listing.Units) -> listing.Json:
    """Return the inventory of the units of a Region."""
    name = naming.unit_class(units.resource_class)
    found: listing.Json = get(
        f'/resource_providers/{units.provider}/inventories/{name}')
    return found

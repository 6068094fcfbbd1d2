# SPDX-License-Identifier: Apache-2.0
"""Reads the hosts and servers that a plan of moves is about."""

import collections.abc
import functools

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.moves import fleet as fleets
from nova_accel.core.placement import listing
from nova_accel.core.placement import rebuilt
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import arrange
from nova_accel.osc import cloud
from nova_accel.osc import compute

#: How servers move, by status. Servers in another status do not move.
_WAYS = {'ACTIVE': (fleets.LIVE, fleets.COLD), 'SHUTOFF': (fleets.COLD,)}


def read(client: cloud.Cloud) -> fleets.Fleet:
    """Return the compute nodes with devices, and their servers.

    What each server has is read from Placement when it is needed.

    :raises errors.AccelError: if Placement or Nova refuses, or does not answer
    """
    nodes = {node.name: node for node in client.hosts()}
    services = client.compute.services()
    return fleets.Fleet(
        [_host(node, services.get(name)) for name, node in nodes.items()],
        _servers(client.compute, services),
        functools.partial(_held, client, nodes))


def _host(node: listing.Host, service: compute.Service | None) -> fleets.Host:
    return fleets.Host(
        node.name, tuple(
            arrange.AvailableUnits(
                units.provider, units.resource_class, units.traits | {
                    fleets.model_trait(
                        f'{device.properties.ids} {units.name}')},
                units.free,
                rebuilt.place(device.properties, device.address),
                units.free + units.used)
            for device, units in node.units), rebuilt.links({
                device.address: device.properties for device in node.devices}),
        node.resources, *(
            (service.name, service.zone, service.closed) if service
            else (node.name, '', 'it has no nova-compute')),
        frozenset(units.provider for _device, units in node.units
                  if units.is_kept_back))


def _servers(nova: compute.Compute,
             services: collections.abc.Mapping[str, compute.Service],
             ) -> collections.abc.Iterator[fleets.Server]:
    groups = {member: fleets.Group(group.policy, group.members, group.most)
              for group in nova.server_groups() for member in group.members}
    for server in nova.servers():
        if server.host:
            wanted = flavor_request.parse(server.flavor.extra_specs,
                                          server.image_traits)
            yield fleets.Server(
                server.uuid, server.name, server.host, wanted,
                _WAYS.get(server.status, ()),
                _obstacle(server, wanted, services.get(server.host)),
                server.zone, groups.get(server.uuid))


def _obstacle(server: compute.Server, wanted: flavor_request.Request,
              service: compute.Service | None) -> str:
    """Return why a server cannot move, '' if it can."""
    if service is None or not service.is_up:
        return 'the nova-compute of its host is down'
    if server.task:
        return f'Nova is busy with it: {server.task}'
    if server.status not in _WAYS:
        return f'its status is {server.status}'
    try:
        wanted.checked()
    except errors.ProfileError as error:
        return str(error)
    return ''


def _held(client: cloud.Cloud,
          nodes: collections.abc.Mapping[str, listing.Host],
          servers: collections.abc.Collection[fleets.Server],
          ) -> dict[str, fleets.Held]:
    """Return what servers have on their hosts, by uuid."""
    allocations = client.allocations_of(server.uuid for server in servers)
    return {server.uuid: _of_host(allocations[server.uuid],
                                  nodes[server.host]) for server in servers}


def _of_host(allocations: listing.Json, node: listing.Host) -> fleets.Held:
    here = {units.provider: units for _device, units in node.units}
    held = {provider: amount for provider, allocation in allocations.items()
            if provider in here
            and (amount := allocation['resources'].get(naming.unit_class(
                here[provider].resource_class), 0))}
    return fleets.Held(
        held, allocations.get(node.uuid, {}).get('resources', {}),
        all(here[provider].is_live for provider in held))

# SPDX-License-Identifier: Apache-2.0
"""``openstack accel server``: the devices of a server."""

import argparse
import typing

from osc_lib.command import command

from nova_accel.core import naming
from nova_accel.core.placement import listing
from nova_accel.core.request import flavor_request
from nova_accel.osc import cloud
from nova_accel.osc import columns
from nova_accel.osc import compute
from nova_accel.osc import pci_ids


class ShowServer(command.ShowOne):
    """Show what devices a server asks for, and which ones it has.

    Only administrators see the devices.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('server', metavar='<server>',
                            help='Server (name or ID)')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Output:
        client = cloud.of(self)
        server = client.compute.server(parsed_args.server)
        wanted = flavor_request.parse(server.flavor.extra_specs)
        shown: dict[str, typing.Any] = {
            'id': server.uuid,
            'name': server.name,
            'flavor': server.flavor.name,
            'profile': server.flavor.profile,
            'groups': columns.Groups(list(wanted.groups.values())),
            'affinity': columns.Lines(list(map(str, wanted.rules))),
        }
        if server.host:
            shown.update(_for_administrators(client, server, wanted))
        return self.dict2columns(shown)


def _for_administrators(client: cloud.Cloud, server: compute.Server,
                        wanted: flavor_request.Request,
                        ) -> dict[str, typing.Any]:
    """Return host and devices; nothing if Placement refuses to tell."""
    try:
        held = client.devices_of(server.uuid, server.host)
    except cloud.NotAllowed:
        return {}
    return {'host': server.host, 'devices': columns.Devices([
        {'address': device.address, 'name': pci_ids.name(
            device.properties.ids),
         'resource_class': units.resource_class, 'units': count,
         'numa_node': device.properties.place.get('numa_node'),
         'groups': _groups(wanted, units), 'id': units.provider}
        for device, units, count in held])}


def _groups(wanted: flavor_request.Request,
            units: listing.Units) -> str | None:
    """Return the groups that a device can serve, by its class and traits.

    Which of them it serves is only in the alias of the ``<hostdev>``.
    """
    return ' '.join(
        name for name, group in wanted.groups.items()
        if units.resource_class in group.resources
        and units.traits.issuperset(
            set(wanted.traits(name)) - naming.OUR_TRAITS)
        and any(map(units.traits.issuperset, group.any_of or [()]))) or None

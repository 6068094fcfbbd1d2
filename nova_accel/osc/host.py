# SPDX-License-Identifier: Apache-2.0
"""``openstack accel host``: compute nodes and their devices."""

import argparse
import dataclasses

from osc_lib.command import command

from nova_accel.core import model
from nova_accel.core.placement import listing
from nova_accel.osc import cloud
from nova_accel.osc import columns
from nova_accel.osc import draining
from nova_accel.osc import firmware
from nova_accel.osc import fleet
from nova_accel.osc import pci_ids
from nova_accel.osc import picture


class ListHost(command.Lister):
    """List the compute nodes that have devices."""

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Output:
        return ('Name', 'Devices', 'Used', 'Free', 'Withheld', 'Drained'), [
            (host.name, len(host.devices),
             sum(units.used for _device, units in host.units),
             sum(units.free for _device, units in host.units),
             sum(bool(units.reasons) for _device, units in host.units),
             str(host.drained) if host.drained else None)
            for host in cloud.of(self).hosts()]


class DrawHost(command.Command):
    """Draw the devices of compute nodes and who holds them, as SVG.

    The picture is written to standard output; browsers show it. Placement is
    asked about each server with devices.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('hosts', metavar='<host>', nargs='*',
                            help='Only these compute nodes')
        parser.add_argument('--resource-class', metavar='<class>',
                            help='Only devices of this resource class')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = cloud.of(self)
        hosts = [_of_class(host, parsed_args.resource_class) for host in (
            map(client.host, dict.fromkeys(parsed_args.hosts))
            if parsed_args.hosts
            else client.hosts())]
        holders = client.holders(hosts)
        self.app.stdout.write(picture.draw(fleet.Fleet(
            hosts, client.totals(units for host in hosts
                                 for _device, units in host.units),
            holders, client.projects({
                consumer.project for found in holders.values()
                for consumer in found}), client.compute.closed())))


def _of_class(host: listing.Host, name: str | None) -> listing.Host:
    """Return a compute node with the devices of a class, None for all."""
    return host if name is None else dataclasses.replace(
        host, devices=tuple(dataclasses.replace(device, regions=regions)
                            for device in host.devices
                            if (regions := tuple(
                                units for units in device.regions
                                if units.resource_class == name))))


class ShowHost(command.ShowOne):
    """Show the devices of a compute node as a tree of their places."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_host(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Output:
        host = cloud.of(self).host(parsed_args.host)
        return self.dict2columns({
            'name': host.name,
            'id': host.uuid,
            'drained': str(host.drained) if host.drained else None,
            'devices': columns.Tree([
                {'place': _place(device), 'label': _label(device, units),
                 'address': device.address, 'id': units.provider,
                 'resource_class': units.resource_class,
                 'status': str(units.status), 'used': units.used,
                 'free': units.free, 'reasons': list(units.reasons)}
                for device, units in sorted(
                    host.units, key=lambda row: _place(row[0]))]),
        })


class SetHost(command.Command):
    """Drain all devices of a compute node, end that, or accept their firmware.

    Servers that hold devices keep them. Devices that are added later are
    drained as well.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_host(parser)
        group = parser.add_mutually_exclusive_group(required=True)
        draining.add_options(group)
        firmware.add_option(group)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = cloud.of(self)
        host = client.host(parsed_args.host)
        if parsed_args.accept_firmware:
            firmware.accept(client, host.uuid)
        else:
            draining.apply(client, host.uuid, host.devices, parsed_args)


def _add_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('host', metavar='<host>',
                        help='Name of the compute node, as in "openstack '
                             'hypervisor list"')


def _place(device: listing.Device) -> list[str]:
    """Return the names of the parts of the host that a device is in."""
    place = device.properties.place
    return [f'{level.title} {place[level.key]}' for level in model.LEVELS
            if level.key in place]


def _label(device: listing.Device, units: listing.Units) -> str:
    name = ' '.join(filter(None, (
        device.address, pci_ids.name(device.properties.ids),
        units.resource_class, units.name)))
    return ', '.join((f'{name}: {units.status}', *units.reasons))

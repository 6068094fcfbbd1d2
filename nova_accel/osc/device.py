# SPDX-License-Identifier: Apache-2.0
"""``openstack accel device``: the devices of compute nodes."""

import argparse
import collections.abc
import itertools
import typing

from osc_lib.command import command

from nova_accel.core import model
from nova_accel.core.placement import firmware as versions
from nova_accel.core.placement import listing
from nova_accel.core.placement import providers
from nova_accel.osc import cleaning
from nova_accel.osc import cloud
from nova_accel.osc import columns
from nova_accel.osc import draining
from nova_accel.osc import firmware
from nova_accel.osc import pci_ids

_COLUMNS = ('Host', 'Address', 'Name', 'Resource Class', 'Status', 'Used',
            'Free', 'Reason')
_LONG = ('ID', 'Region', 'Traits',
         *(level.title.title().replace('Pcie', 'PCIe').replace('Numa', 'NUMA')
           for level in model.LEVELS), 'Islands', 'Partitions', 'Servers',
         'Projects')

_Row = tuple[typing.Any, ...]

_CHANGED = listing.REASONS[providers.WITHHELD[
    model.WithheldState.FIRMWARE_CHANGED]]


class ListDevice(command.Lister):
    """List devices.

    A device that can be used as several things, such as vGPU types, has a row
    for each.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', metavar='<host>',
                            help='Only the devices of this compute node')
        parser.add_argument('--resource-class', metavar='<class>',
                            help='Only devices of this resource class')
        parser.add_argument(
            '--status', choices=[status.name.lower()
                                 for status in listing.Status],
            help='Only devices with this status')
        parser.add_argument(
            '--long', action='store_true',
            help='Also show traits, places, and the servers that hold the '
                 'devices; this asks Placement about each held device')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Output:
        client = cloud.of(self)
        hosts = ([client.host(parsed_args.host)] if parsed_args.host
                 else client.hosts())
        rows = [(host, device, units) for host in hosts
                for device, units in host.units
                if parsed_args.resource_class in (None, units.resource_class)
                and parsed_args.status in (None, units.status.name.lower())]
        if not parsed_args.long:
            return _COLUMNS, [_row(*row) for row in rows]
        consumers = client.consumers(
            units.provider for _host, _device, units in rows if units.used)
        return (*_COLUMNS, *_LONG), [
            (*_row(host, device, units),
             *_details(device, units, consumers.get(units.provider, [])))
            for host, device, units in rows]


class ShowDevice(command.ShowOne):
    """Show a device."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_device(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Output:
        client = cloud.of(self)
        device = client.device(parsed_args.device)
        consumers = list(itertools.chain.from_iterable(client.consumers(
            units.provider for units in device.regions if units.used
        ).values()))
        return self.dict2columns({
            'host': device.host,
            'address': device.address,
            'id': device.uuid,
            'name': pci_ids.name(device.properties.ids),
            'pci_ids': device.properties.ids,
            **{level.key: device.properties.place.get(level.key)
               for level in model.LEVELS},
            'islands': columns.Lines(sorted(device.properties.islands)),
            'partitions': columns.Lines(sorted(device.properties.partitions)),
            'drained': str(device.drained) if device.drained else None,
            'firmware': columns.Lines(
                versions.describe(device.known_firmware)),
            'regions': columns.Lines(list(map(_region, device.regions))),
            'traits': columns.Lines(sorted({
                trait for units in device.regions for trait in units.traits})),
            'servers': columns.Lines([
                f'{consumer.uuid} {consumer.name}'.strip()
                for consumer in consumers]),
            'projects': columns.Lines(sorted({
                consumer.project for consumer in consumers})),
        })


class SetDevice(command.Command):
    """Drain a device, clean it between two servers, or accept its firmware.

    Servers that hold the device keep it.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_device(parser)
        group = parser.add_mutually_exclusive_group(required=True)
        draining.add_options(group)
        cleaning.add_options(group)
        firmware.add_option(group)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = cloud.of(self)
        device = client.device(parsed_args.device)
        if cleaning.is_asked(parsed_args):
            cleaning.apply(client, device, parsed_args)
        elif parsed_args.accept_firmware:
            firmware.accept(client, client.root(device), [device])
        else:
            draining.apply(client, device.uuid, [device], parsed_args)


def _region(units: listing.Units) -> str:
    name = f'{units.resource_class} {units.name}'.strip()
    return ', '.join([
        f'{name}: {units.status}', f'{units.used} used', f'{units.free} free',
        *units.reasons])


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a device."""
    parser.add_argument('device', metavar='<device>',
                        help='Device as HOST/ADDRESS, such as '
                             'compute-1/0000:81:00.0, or its ID')


def _row(host: listing.Host, device: listing.Device,
         units: listing.Units) -> _Row:
    return (host.name, device.address, pci_ids.name(device.properties.ids),
            units.resource_class, str(units.status), units.used, units.free,
            columns.Reason(_reasons(host, device, units)))


def _reasons(host: listing.Host, device: listing.Device,
             units: listing.Units) -> list[str]:
    changed = '; '.join(versions.changes(device.known_firmware).values())
    found = [f'{reason}: {changed}' if changed and reason == _CHANGED
             else reason for reason in units.reasons]
    for drain in filter(None, (device.drained, host.drained)):
        if 'drained' in found:
            found.remove('drained')
        found.append(f'drained: {drain}')
    return found


def _details(device: listing.Device, units: listing.Units,
             consumers: collections.abc.Sequence[cloud.Consumer]) -> _Row:
    properties = device.properties
    return (units.provider, units.name, columns.Lines(sorted(units.traits)),
            *(properties.place.get(level.key) for level in model.LEVELS),
            columns.Lines(sorted(properties.islands)),
            columns.Lines(sorted(properties.partitions)),
            columns.Lines([consumer.uuid for consumer in consumers]),
            columns.Lines(sorted({consumer.project
                                  for consumer in consumers})))

# SPDX-License-Identifier: Apache-2.0
"""``openstack accel explain``: would a server get its devices now."""

import argparse
import collections
import collections.abc

from osc_lib.command import command

from nova_accel.core import errors
from nova_accel.core import host_domain
from nova_accel.core.capacity import room
from nova_accel.core.placement import listing
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import reasons
from nova_accel.osc import capacity
from nova_accel.osc import cloud
from nova_accel.osc import columns
from nova_accel.osc import compute
from nova_accel.osc import profiles

#: The room of hosts that look alike, by their names.
_Found = collections.abc.Mapping[tuple[str, ...], room.Room]


class Explain(command.ShowOne):
    """Show whether one more server would get its devices now, or why not.

    Only devices are regarded: vCPUs, memory, disk and other filters of the
    scheduler can rule out hosts as well.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        group = parser.add_mutually_exclusive_group(required=True)
        group.add_argument('--profile', metavar='<profile>',
                           help='A server with this device profile')
        group.add_argument('--flavor', metavar='<flavor>',
                           help='A server with this flavor (name or ID)')
        group.add_argument('--server', metavar='<server>',
                           help='A server like this one (name or ID)')
        parser.add_argument('--host', metavar='<host>',
                            help='Only on this compute node')
        parser.add_argument('--long', action='store_true',
                            help='Show each host, and not only the reasons')
        profiles.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Output:
        client = cloud.of(self)
        wanted = _request(client.compute, parsed_args)
        hosts = ([client.host(parsed_args.host)] if parsed_args.host
                 else client.hosts())
        rooms = room.Rooms(wanted, {
            units.resource_class for host in hosts
            for _device, units in host.units})
        if not rooms.classes:
            raise errors.AccelError(
                _name(parsed_args), 'asks for no devices that the cloud has')
        closed = client.compute.closed()
        domains = _domains(client, hosts) if wanted.same_domain else {}
        if wanted.same_domain == device_profile.REQUIRED:
            closed = {**{host.name: 'the host is in no host domain'
                         for host in hosts if host.name not in domains},
                      **closed}
        found = {tuple(names): rooms.of(*looks) for looks, names
                 in capacity.alike(hosts, closed).items()}
        servers = sum(len(names) * each.servers
                      for names, each in found.items())
        return self.dict2columns({
            'request': _name(parsed_args),
            'fits': bool(servers),
            'servers': servers,
            'reason': None if servers else reasons.no_host(
                each.obstacle for each in found.values()),
            **({'alternatives': _by_alternative(wanted, found)}
               if wanted.alternatives else {}),
            'withheld': capacity.withheld(client, hosts, rooms.classes),
            'hosts': _hosts(found) if parsed_args.long else _by_reason(found),
            **({'host_domains': _by_domain(found, domains)}
               if wanted.same_domain else {}),
        })


def _name(options: argparse.Namespace) -> str:
    return next(f'{word} {errors.plain(name)}' for word, name in (
        ('profile', options.profile), ('flavor', options.flavor),
        ('server', options.server)) if name)


def _request(nova: compute.Compute, options: argparse.Namespace,
             ) -> flavor_request.Request:
    if options.profile:
        return profiles.contents(nova, options.profile,
                                 options.profile_dir).request()
    if options.flavor:
        return profiles.request_of(nova, nova.flavor(options.flavor),
                                   options.profile_dir)
    server = nova.server(options.server)
    return profiles.request_of(nova, server.flavor, options.profile_dir,
                               server.image_traits)


def _domains(client: cloud.Cloud,
             hosts: collections.abc.Collection[listing.Host],
             ) -> dict[str, host_domain.Names]:
    """Return the host domains of compute nodes, by name."""
    aggregates = client.compute.domains()
    members = client.members(aggregates)
    return host_domain.by_host(
        (metadata, [host.name for host in hosts if host.uuid in members[uuid]])
        for uuid, metadata in aggregates.items())


def _by_domain(found: _Found,
               domains: collections.abc.Mapping[str, host_domain.Names],
               ) -> columns.Counted:
    """Return how many servers fit in each host domain."""
    rooms = host_domain.total_rooms(
        {name: host_domain.Room(each.servers, each.servers)
         for names, each in found.items() for name in names}, domains,
        on_one_host=False)
    return columns.Counted([{'servers': rooms[name].servers, 'reason': name}
                            for name in sorted(rooms)])


def _by_alternative(wanted: flavor_request.Request, found: _Found,
                    ) -> columns.Counted:
    """Return how many servers would get each alternative, one by one."""
    servers: collections.Counter[int] = collections.Counter()
    for names, each in found.items():
        servers.update({number: count * len(names) for number, count
                        in each.alternatives.items()})
    return columns.Counted([
        {'servers': servers[number], 'reason': name}
        for number, name in enumerate(wanted.alternatives)])


def _by_reason(found: _Found) -> columns.Counted:
    hosts: collections.Counter[tuple[bool, str]] = collections.Counter()
    for names, each in found.items():
        hosts[not each.servers, reasons.clause(each.obstacle)
              if not each.servers else 'devices are free'] += len(names)
    return columns.Counted([
        {'hosts': count, 'reason': reason} for (_fails, reason), count
        in sorted(hosts.items(), key=lambda item: (item[0][0], -item[1]))])


def _hosts(found: _Found) -> columns.Hosts:
    return columns.Hosts(sorted((
        capacity.outlook([name], each)
        for names, each in found.items() for name in names),
        key=lambda row: row['hosts']))

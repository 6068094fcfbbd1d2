# SPDX-License-Identifier: Apache-2.0
"""``openstack accel capacity``: what is used, what is left, what is stranded.
"""

import argparse
import collections
import collections.abc
import typing

from osc_lib.command import command

from nova_accel.core import errors
from nova_accel.core.capacity import room
from nova_accel.core.capacity import usage
from nova_accel.core.capacity import view
from nova_accel.core.placement import listing
from nova_accel.core.solver import reasons
from nova_accel.osc import cloud
from nova_accel.osc import columns
from nova_accel.osc import profiles
from nova_accel.osc import progress

_USAGE = 'Resource Class', 'Total', 'Used', 'Free', 'Withheld', 'Reasons'
_PROFILE = ('Profile', 'Servers', 'Fits', 'Free', 'Stranded', 'Withheld',
            'Reasons')

_Hosts = collections.abc.Collection[listing.Host]
_Row = tuple[typing.Any, ...]
_Table = tuple[collections.abc.Sequence[str], list[_Row]]


class ListCapacity(command.Lister):
    """List how many units of devices are used, free and withheld.

    By profile, list how many more servers fit, one after the other, and which
    free units are of no use for them. Only devices are regarded: vCPUs,
    memory and disk can limit the number of servers further.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--by', choices=sorted(_TABLES), default='class',
            help='What to list (default: resource classes of the whole cloud)')
        parser.add_argument('--host', metavar='<host>',
                            help='Only the devices of this compute node')
        parser.add_argument('--resource-class', metavar='<class>',
                            help='Only devices of this resource class')
        parser.add_argument('--long', action='store_true',
                            help='By profile: also list each host')
        profiles.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Output:
        client = cloud.of(self)
        hosts = ([client.host(parsed_args.host)] if parsed_args.host
                 else client.hosts())
        return _TABLES[parsed_args.by](client, hosts, parsed_args)


def _by_class(client: cloud.Cloud, hosts: _Hosts,
              options: argparse.Namespace) -> _Table:
    return _USAGE, _rows(client, [((), hosts)], options)


def _by_host(client: cloud.Cloud, hosts: _Hosts,
             options: argparse.Namespace) -> _Table:
    return ('Host', *_USAGE), _rows(
        client, [((host.name,), [host]) for host in hosts], options)


def _by_aggregate(client: cloud.Cloud, hosts: _Hosts,
                  options: argparse.Namespace) -> _Table:
    """Nova mirrors the hosts of its aggregates in Placement."""
    aggregates = client.compute.aggregates()
    members = client.members(aggregates.values())
    parts = [((name,), [host for host in hosts if host.uuid in members[uuid]])
             for name, uuid in sorted(aggregates.items())]
    in_any = set().union(*members.values())
    return ('Aggregate', *_USAGE), _rows(client, [*parts, (
        (None,), [host for host in hosts if host.uuid not in in_any])],
        options)


def _by_project(client: cloud.Cloud, hosts: _Hosts,
                options: argparse.Namespace) -> _Table:
    return ('Project', 'Resource Class', 'Used', 'Servers'), [
        (project, name, sum(units.values()), len(units))
        for (project, name), units in sorted(
            client.used_by_project(hosts).items())
        if options.resource_class in (None, name)]


def _rows(client: cloud.Cloud,
          parts: collections.abc.Iterable[tuple[_Row, _Hosts]],
          options: argparse.Namespace) -> list[_Row]:
    """Return the rows of parts of the cloud.

    :param parts: the first columns and the hosts of each
    """
    regions = [(first, _by_resource_class(hosts, options))
               for first, hosts in parts]
    totals = client.totals(units for _first, found in regions
                           for units in sum(found.values(), []))
    rows = []
    for first, found in regions:
        for name, units in sorted(found.items()):
            amounts = usage.of(units, totals)
            rows.append((*first, name, amounts.total, amounts.used,
                         amounts.free, sum(amounts.withheld.values()),
                         _counted(amounts.withheld)))
    return rows


def _by_resource_class(hosts: collections.abc.Iterable[listing.Host],
                       options: argparse.Namespace,
                       ) -> dict[str, list[listing.Units]]:
    found: dict[str, list[listing.Units]] = collections.defaultdict(list)
    for host in hosts:
        for _device, units in host.units:
            if options.resource_class in (None, units.resource_class):
                found[units.resource_class].append(units)
    return dict(found)


def _by_profile(client: cloud.Cloud, hosts: _Hosts,
                options: argparse.Namespace) -> _Table:
    found = profiles.find(client.compute, options.profile_dir)
    regions = _by_resource_class(hosts, options)
    totals = client.totals(sum(regions.values(), []))
    groups = alike(hosts, client.compute.closed())
    rows = []
    for profile in progress.each(found, len(found), 'profile'):
        try:
            rooms = room.Rooms(profile.request(), regions)
        except errors.AccelError as error:
            rows.append((profile.name, profile.servers, *[None] * 4,
                         columns.Counted([{'units': None,
                                           'reason': str(error)}]),
                         columns.Hosts([])))
            continue
        if options.resource_class in (None, *rooms.classes):
            rows.append(_profile_row(profile, rooms, groups, usage.of(
                [units for name in rooms.classes
                 for units in regions.get(name, ())], totals)))
    heads = (*_PROFILE, *['Hosts'] * options.long)
    return heads, [row[:len(heads)] for row in rows]


def _profile_row(profile: profiles.Profile, rooms: room.Rooms,
                 groups: room.Alike, amounts: usage.Usage,
                 ) -> _Row:
    servers, stranded = rooms.total(groups)
    why: collections.Counter[str] = collections.Counter(amounts.withheld)
    hosts = []
    for looks, names in groups.items():
        found = rooms.of(*looks)
        if found.left:
            why[reasons.stranded(found.obstacle)] += (
                sum(found.left.values()) * len(names))
        hosts.append(outlook(names, found))
    return (profile.name, profile.servers, servers, amounts.free, stranded,
            sum(amounts.withheld.values()), _counted(why),
            columns.Hosts(hosts))


def withheld(client: cloud.Cloud,
             hosts: collections.abc.Iterable[listing.Host],
             classes: collections.abc.Container[str]) -> columns.Counted:
    """Return the units of some classes that are withheld, by reason."""
    found = [units for host in hosts for _device, units in host.units
             if units.resource_class in classes]
    return _counted(usage.of(found, client.totals(found)).withheld)


def outlook(names: collections.abc.Iterable[str],
            found: room.Room) -> dict[str, typing.Any]:
    """Return what :class:`.columns.Hosts` shows of hosts that look alike."""
    left = sum(found.left.values())
    return {'hosts': sorted(names), 'fits': found.servers, 'stranded': left,
            'reason': f'{left} free, but {reasons.clause(found.obstacle)}'
            if left else ''}


def alike(hosts: collections.abc.Iterable[listing.Host],
          closed: collections.abc.Mapping[str, str]) -> room.Alike:
    """Return the names of hosts that look alike.

    :param closed: why hosts get no new servers, by name
    """
    found: dict[tuple[view.View, str], list[str]] = collections.defaultdict(
        list)
    for host in hosts:
        found[view.of(host), closed.get(host.name, '')].append(host.name)
    return dict(found)


def _counted(counts: collections.abc.Mapping[str, int]) -> columns.Counted:
    return columns.Counted([
        {'units': units, 'reason': reason} for reason, units
        in sorted(counts.items(), key=lambda item: (-item[1], item[0]))])


_TABLES = {'class': _by_class, 'host': _by_host, 'aggregate': _by_aggregate,
           'project': _by_project, 'profile': _by_profile}

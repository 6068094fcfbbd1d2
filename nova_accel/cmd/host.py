# SPDX-License-Identifier: Apache-2.0
"""``nova-accel host``: the devices of a host, offered and refused."""

import argparse
import collections.abc
import gzip
import json
import pathlib
import sys

from oslo_config import cfg

from nova_accel import nova_claims
from nova_accel.cmd import drawing
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import discovery
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.device_spec import suggestion
from nova_accel.host import loader
from nova_accel.host import reader
from nova_accel.host import recorder
from nova_accel.host import tree as trees

_OPTION = '[nova_accel] device_spec'


def add_parser(topics) -> None:
    topic = topics.add_parser('host', help='the devices of a host')
    # Debian and Ubuntu also have nova-compute.conf, read after nova.conf.
    topic.set_defaults(service='nova-compute')
    verbs = topic.add_subparsers(
        title='verbs', required=True, metavar='show|check|record')
    show = verbs.add_parser(
        'show', help='show devices, regions and topology, and why devices '
                     'are refused')
    add_root(show)
    show.add_argument('--device-spec', action='append', metavar='JSON',
                      help='try this entry instead of those in nova.conf; '
                           'can be repeated')
    show.add_argument('--link-domains', metavar='FILE',
                      help='try this file instead of that in nova.conf')
    show.add_argument('--all', action='store_true',
                      help='also show functions that are not accelerators')
    show.add_argument('--strict', action='store_true',
                      help='exit with 1 also if a function that an entry '
                           'names is refused, or an entry names no device')
    show.add_argument('--json', action='store_true', help='print JSON')
    show.set_defaults(run=_show)
    check = verbs.add_parser(
        'check', help='compare the devices that servers hold (libvirt), their '
                      'allocations (Placement) and the devices of the host '
                      '(sysfs); exit with 1 if they disagree, with 2 if '
                      'libvirt or Placement cannot be queried')
    add_root(check)
    check.add_argument('--host', metavar='NAME',
                       help='name of the compute node (default: the host '
                            'name that libvirt reports)')
    check.add_argument('--json', action='store_true', help='print JSON')
    check.set_defaults(run=_check, failed=2)
    record = verbs.add_parser(
        'record', help='write the facts that nova_accel reads of this host '
                       'to a file, without those that identify the host')
    add_root(record)
    record.add_argument('--identifying', action='store_true',
                        help='keep serial numbers, MAC and IP addresses, '
                             'uuids and names that people chose')
    record.add_argument('file', help='file to write; "-" for standard output; '
                                     'compressed if the name ends in .gz')
    record.set_defaults(run=_record)


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the machine to read."""
    parser.add_argument('--sysfs-root', metavar='PATH',
                        help='/sys, a copy of it, or a recording (default: '
                             'sysfs_root in nova.conf)')


def _show(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> int:
    root = _root(arguments, conf)
    texts, option = ((arguments.device_spec, '--device-spec')
                     if arguments.device_spec else
                     (conf.nova_accel.device_spec, _OPTION))
    entries, broken = reader.parse(texts, option)
    tree = trees.open_tree(root)
    kinds = loader.open_all(tree)
    decide, unusable = _read_host(tree, conf, arguments.link_domains, kinds)
    host = decide(entries)
    problems = [*broken, *unusable, *host.problems]
    warnings = [*map(str, _unmatched(entries, host)), *(
        f'Refused: {error}' for error in drawing.group(host.refusals))]
    found = (suggestion.Suggestions() if texts else
             _suggest(host, kinds, decide))
    if arguments.json:
        print(json.dumps(as_data(host, problems, warnings, found), indent=2))
    else:
        for line in (*drawing.draw(host, root, problems, arguments.all),
                     *drawing.suggest(found)):
            print(line)
    for warning in warnings:
        print(f'nova-accel: {warning}', file=sys.stderr)
    is_wrong = broken or unusable or (arguments.strict and warnings)
    return 1 if is_wrong else 0


def _suggest(host: model.Host, kinds: discovery.Enumerators,
             decide: reader.Offer) -> suggestion.Suggestions:
    # As JSON, because the user pastes them as JSON.
    return suggestion.suggest(
        host.functions, kinds.values(), lambda items: decide(reader.parse(
            map(json.dumps, items), 'suggestion')[0]))


def _unmatched(entries: collections.abc.Iterable[spec_entry.Entry],
               host: model.Host,
               ) -> collections.abc.Iterator[errors.EntryError]:
    """Yield an error for each entry that names no device of this host."""
    functions = {function.address: function for function in host.functions}
    for entry in entries:
        if not any(entry.names(function, functions.get(function.physfn))
                   for function in host.functions):
            yield errors.EntryError(
                entry.label, 'names no device of this host', 'compare it '
                'with the output of nova-accel host show --all')


def _check(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> int:
    # keystoneauth1 is slow to import, and only this verb needs it.
    from nova_accel.cmd import check
    host, problems = read(arguments, conf)
    for problem in problems:
        print(f'nova-accel: {problem}', file=sys.stderr)
    return check.check(host, arguments, conf)


def read(arguments: argparse.Namespace, conf: cfg.ConfigOpts,
         ) -> tuple[model.Host, list[errors.AccelError | str]]:
    """Return the Host by nova.conf, and what is wrong with either.

    :param arguments: parsed, with the option of :func:`add_root`
    :raises errors.AccelError: if the host cannot be read
    """
    entries, broken = reader.parse(conf.nova_accel.device_spec, _OPTION)
    decide, unusable = _read_host(trees.open_tree(_root(arguments, conf)),
                                  conf)
    host = decide(entries)
    return host, [*broken, *unusable, *host.problems]


def _root(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> str:
    return arguments.sysfs_root or conf.nova_accel.sysfs_root


def _read_host(tree: trees.Tree, conf: cfg.ConfigOpts,
               link_domains: str | None = None,
               kinds: discovery.Enumerators | None = None,
               ) -> tuple[reader.Offer, list[errors.LinksError]]:
    """Read the host; also return the errors of the link domains file."""
    links, unusable = reader.parse_links(
        link_domains or conf.nova_accel.link_domains)
    return reader.read_machine(
        tree, nova_claims.claims(conf), kinds, links=links,
        allow_unsafe_host=conf.nova_accel.allow_unsafe_host), unusable


def _record(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> int:
    recording = recorder.record(trees.open_tree(_root(arguments, conf)),
                                arguments.identifying)
    text = recording.dumps()
    if arguments.file == '-':
        sys.stdout.write(text)
        return 0
    content = text.encode()
    if arguments.file.endswith('.gz'):
        # No timestamp, so that equal hosts give equal files.
        content = gzip.compress(content, mtime=0)
    pathlib.Path(arguments.file).write_bytes(content)
    print(f'{arguments.file}: {len(recording.files)} files, '
          f'{len(recording.links)} links, {len(content)} bytes')
    return 0


def as_data(host: model.Host,
            problems: collections.abc.Iterable[errors.AccelError | str],
            warnings: list[str],
            found: suggestion.Suggestions) -> dict:
    """Return a Host as plain data, for JSON; addresses as in sysfs."""
    offered = {address for device in host.devices
               for region in device.regions
               for unit in region.units for address in unit}
    refused = {refusal.address for refusal in host.refusals}
    return {
        'iommu_groups': any(function.iommu_group is not None
                            for function in host.functions),
        'numa_nodes': list(host.numa_nodes),
        'devices': [_device(device) for device in host.devices],
        'refused': [*map(_refusal, host.refusals)],
        'functions': [_function(function, 'offered'
                                if function.address in offered else 'refused'
                                if function.address in refused else 'unnamed')
                      for function in host.functions],
        'links': {'partitions': [*map(sorted, host.links.partitions)],
                  'islands': [*map(sorted, host.links.islands)]},
        'problems': [*map(str, problems)],
        'warnings': warnings,
        'suggestions': [{
            'entry': entry.item, 'units': entry.units, 'others': entry.others}
            for entry in found.entries],
        'not_suggested': [*map(_refusal, found.refusals)],
    }


def _refusal(refusal: model.Refusal) -> dict:
    return {'address': str(refusal.address), 'ids': refusal.ids,
            'reason': refusal.reason, 'remedy': refusal.remedy}


def _device(device: model.Device) -> dict:
    return {
        'address': str(device.address),
        'ids': device.ids,
        'location': _location(device.location),
        'regions': [{
            'name': region.name,
            'resource_class': region.resource_class,
            'traits': sorted(region.traits),
            'managed': region.managed,
            'kind': region.kind,
            'variant': region.variant,
            'mdevs': region.mdevs,
            'live_migratable': region.live_migratable,
            'total': region.total,
            'units': [[str(address) for address in unit]
                      for unit in region.units],
        } for region in device.regions],
    }


def _function(function: model.Function, state: str) -> dict:
    return {
        'address': str(function.address),
        'state': state,
        'vendor_id': function.vendor_id,
        'product_id': function.product_id,
        'subsystem_vendor_id': function.subsystem_vendor_id,
        'subsystem_product_id': function.subsystem_product_id,
        'class': f'{function.class_code:06x}',
        'revision': f'{function.revision:02x}',
        'location': _location(function.location),
        'iommu_group': function.iommu_group,
        'driver': function.driver,
        'physfn': str(function.physfn) if function.physfn else None,
        'total_vfs': function.total_vfs,
        'num_vfs': function.num_vfs,
        'mdev_types': [{'name': mdev_type.name,
                        'available': mdev_type.available,
                        'instances': list(mdev_type.instances)}
                       for mdev_type in function.mdev_types],
        'reset_methods': (None if function.reset_methods is None
                          else list(function.reset_methods)),
        'firmware': function.firmware,
        'bars': (None if function.bars is None
                 else [_bar(bar) for bar in function.bars]),
        'use': function.use,
        'console': function.console,
    }


def _bar(bar: model.Bar) -> dict:
    return {'number': bar.number, 'bytes': bar.size, '64bit': bar.wide,
            'prefetchable': bar.prefetchable}


def _location(location: model.Location) -> dict:
    return {'numa_node': location.numa_node, 'root': location.root,
            'ports': list(location.ports), 'switch': location.switch}

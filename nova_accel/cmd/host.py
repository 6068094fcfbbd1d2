# SPDX-License-Identifier: Apache-2.0
"""``nova-accel host``: what a machine has, offers and refuses."""

import argparse
import gzip
import json
import pathlib
import sys

from oslo_config import cfg

from nova_accel import foreign
from nova_accel.cmd import drawing
from nova_accel.core import entry
from nova_accel.core import model
from nova_accel.host import reader
from nova_accel.host import recorder
from nova_accel.host import tree


def add_parser(topics) -> None:
    verbs = topics.add_parser(
        'host', help='the devices of a machine').add_subparsers(
        title='verbs', required=True, metavar='show|record')
    show = verbs.add_parser(
        'show', help='devices, regions and topology, and why a device is '
                     'refused')
    _add_root(show)
    show.add_argument('--device-spec', action='append', metavar='JSON',
                      help='try this entry in place of those in nova.conf; '
                           'can be repeated')
    show.add_argument('--all', action='store_true',
                      help='also functions that are no accelerators')
    show.add_argument('--json', action='store_true', help='for programs')
    show.set_defaults(run=_show)
    record = verbs.add_parser(
        'record', help='write what the reader reads of this machine to a '
                       'file, without what identifies the machine')
    _add_root(record)
    record.add_argument('--identifying', action='store_true',
                        help='keep serial numbers, MAC and IP addresses')
    record.add_argument('file', help='where to; "-" is standard output, a '
                                     'name in .gz is compressed')
    record.set_defaults(run=_record)


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--sysfs-root', metavar='PATH',
                        help='/sys, a copy of it, or a recording (default: '
                             'sysfs_root in nova.conf)')


def _show(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> int:
    root = arguments.sysfs_root or conf.nova_accel.sysfs_root
    texts, option = ((arguments.device_spec, '--device-spec')
                     if arguments.device_spec else
                     (conf.nova_accel.device_spec, '[nova_accel] device_spec'))
    entries, broken = entry.parse_all(texts, option)
    host = reader.read(tree.open_tree(root), entries, foreign.claims(conf))
    problems = [*map(str, broken), *host.problems]
    if arguments.json:
        print(json.dumps(as_data(host, problems), indent=2))
    else:
        print('\n'.join(drawing.draw(host, root, problems, arguments.all)))
        if not texts:
            print('\n'.join(drawing.suggest(host)))
    return 1 if broken else 0


def _record(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> int:
    root = arguments.sysfs_root or conf.nova_accel.sysfs_root
    recording = recorder.record(tree.open_tree(root), arguments.identifying)
    text = recording.dumps()
    if arguments.file == '-':
        sys.stdout.write(text)
        return 0
    content = text.encode()
    if arguments.file.endswith('.gz'):
        # Without the time, so that equal machines give equal files.
        content = gzip.compress(content, mtime=0)
    pathlib.Path(arguments.file).write_bytes(content)
    print(f'{arguments.file}: {len(recording.files)} files, '
          f'{len(recording.links)} links, {len(content)} bytes')
    return 0


def as_data(host: model.Host, problems: list[str]) -> dict:
    """The Host for programs: plain data, addresses as sysfs writes them."""
    offered = {address for device in host.devices
               for region in device.regions
               for unit in region.units for address in unit}
    refused = {refusal.address for refusal in host.refusals}
    return {
        'iommu_groups': any(function.iommu_group is not None
                            for function in host.functions),
        'numa_nodes': list(host.numa_nodes),
        'devices': [_device(device) for device in host.devices],
        'refused': [{'address': str(refusal.address), 'ids': refusal.ids,
                     'reason': refusal.reason, 'remedy': refusal.remedy}
                    for refusal in host.refusals],
        'functions': [_function(function, 'offered'
                                if function.address in offered else 'refused'
                                if function.address in refused else 'unnamed')
                      for function in host.functions],
        'problems': problems,
    }


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
            'mdev_type': region.mdev_type,
            'live_migratable': region.live_migratable,
            'total': len(region.units),
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
        'firmware': function.firmware,
        'use': function.use,
    }


def _location(location: model.Location) -> dict:
    return {'numa_node': location.numa_node, 'root': location.root,
            'ports': list(location.ports), 'switch': location.switch}

# SPDX-License-Identifier: Apache-2.0
"""Machines of public reports: the files in tests/data/field.

doc/source/contributor/adding-a-machine.rst explains their form.
``python -m tests.unit.field RECORDING`` prints the functions of a recording in
that form.
"""

import dataclasses
import json
import os
import pathlib
import sys

from nova_accel import safe_yaml
from nova_accel.core import model
from nova_accel.host import host_use
from nova_accel.host import netdevs
from nova_accel.host import numa
from nova_accel.host import pci
from nova_accel.host import reader
from nova_accel.host import tree
from nova_accel.host import vfio
from tests.unit import build

FOLDER = build.DATA / 'field'

#: What a host has with vfio-pci, and with groups (CONFIG_VFIO_GROUP).
_VFIO_FOLDERS = ('sys/bus/pci/drivers/vfio-pci', 'sys/class/vfio')
_VFIO_FILES = {vfio.PARAMETER: 'N\n'}

#: How the host uses a function: by key, the class of the disk or port, its
#: folder below the function, and the table in proc that shows the use.
_USES = {
    'mounted': (host_use.BLOCK, 'block', host_use.MOUNTS[0],
                '1 1 0:0 / / rw - ext4 /dev/{} rw\n'),
    'addressed': (netdevs.NET, 'net', host_use.ADDRESSES,
                  '0 00 00 00 00 {}\n')}

#: Keys of a function that are not files of the same name in sysfs.
_KEYS = {'ids', 'class', 'group', 'driver', 'physfn', 'mdev_types', 'config',
         *_USES}

#: The configuration space of a function that does not answer.
_ALL_ONES = b'\xff' * 64


@dataclasses.dataclass(frozen=True)
class Try:
    """Entries, and what ``host show`` has to answer.

    :param entries: if there are none, suggestions are tried: ``offered`` is
        what they offer, and ``refused`` has what is not suggested
    :param conf: another line of [nova_accel]
    :param offered: by resource class, the number of units, or the units
    :param refused: by address, words of the reason or the remedy
    :param said: words of problems and warnings
    :param unsaid: words that they do not have
    :param numa: by address of a device, its NUMA node
    :param awaits: the change that the try needs to pass
    """

    entries: list = ()
    conf: str = ''
    offered: dict = dataclasses.field(default_factory=dict)
    refused: dict = dataclasses.field(default_factory=dict)
    suggested: list = ()
    said: list | str = ()
    unsaid: list | str = ()
    numa: dict = dataclasses.field(default_factory=dict)
    awaits: str = ''

    def nova_conf(self) -> str:
        return '\n'.join(['[nova_accel]', self.conf, *(
            f'device_spec = {json.dumps(entry)}' for entry in self.entries)])


@dataclasses.dataclass(frozen=True)
class Machine:
    """A file of tests/data/field; all scalars are texts.

    :param assumed: which facts are not in the source
    :param functions: their facts by path, ``80:01.0/81:00.0``
    :param vfio: whether vfio-pci is loaded, ``no`` if it is not
    :param nodes: by NUMA node, the content of its files
    :param files: content of other files
    """

    source: str
    situation: str
    functions: dict
    tries: list
    assumed: str = ''
    vfio: str = ''
    nodes: dict = dataclasses.field(default_factory=dict)
    files: dict = dataclasses.field(default_factory=dict)

    def write(self, directory: str | os.PathLike) -> None:
        """Write the files of the machine, ``sys`` and ``proc``."""
        named = {_place(path): facts
                 for path, facts in self.functions.items()}
        places = {**_bridges(named), **named}
        files = {path: f'{text}\n' for path, text in self.files.items()}
        links, folders = {}, [pci.DEVICES]
        if self.vfio != 'no':
            files.update(_VFIO_FILES)
            folders.extend(_VFIO_FOLDERS)
        for node, facts in {**_nodes(places), **self.nodes}.items():
            files.update({f'{numa.NODES}/node{node}/{name}': f'{text}\n'
                          for name, text in facts.items()})
        for place, facts in places.items():
            for key in _USES.keys() & facts.keys():
                above, folder, table, line = _USES[key]
                own = f'devices/{place}/{folder}/{facts[key]}'
                links[f'{above}/{facts[key]}'] = f'../../{own}'
                folders.append(f'sys/{own}')
                files[table] = files.get(table, '') + line.format(facts[key])
        build.sysfs({place: _attributes(place, facts)
                     for place, facts in places.items()},
                    files, links, folders).write(directory)
        for place, facts in places.items():
            if 'config' in facts:
                pathlib.Path(directory, 'sys/devices', place,
                             'config').write_bytes(_ALL_ONES)


def load(path: pathlib.Path) -> Machine:
    """Load a file.

    :raises TypeError: if a key is missing or unknown
    """
    [document] = safe_yaml.load_yaml(path.read_text(), as_texts=True)
    document['tries'] = [Try(**item) for item in document['tries']]
    return Machine(**document)


def full(address: str) -> str:
    """Return an address with its domain; lspci leaves out 0000."""
    return f'0000:{address}' if address.count(':') == 1 else address


def _place(path: str) -> str:
    """Return a path below sys/devices, ``pci0000:80/0000:80:01.0/...``."""
    parts, domain = [], ''
    for part in path.split('/'):
        if part.count(':') == 1:
            part = f'{domain or "0000"}:{part}'
        above, bus, _slot = part.split(':')
        if above != domain:
            # The first bridge, or a domain of Intel's VMD below it.
            domain = above
            parts.append(f'pci{domain}:{bus}')
        parts.append(part)
    return '/'.join(parts)


def _bridges(places) -> dict[str, dict[str, str]]:
    """Return the bridges above functions."""
    return {str(above): {'class': '0604', 'ids': '1b36:000c'}
            for place in places
            for above in pathlib.PurePosixPath(place).parents
            if '.' in above.name}


def _nodes(places) -> dict[str, dict[str, str]]:
    """Return the NUMA nodes of the functions, with 16 CPUs each."""
    numbers = {int(facts.get('numa_node', 0)) for facts in places.values()}
    return {str(node): {'cpulist': f'{16 * node}-{16 * node + 15}'}
            for node in numbers | {0}}


def _attributes(place: str, facts: dict) -> dict[str, str | None]:
    """Return the attributes of a function for :func:`build.sysfs`."""
    sysfs = '../' * (place.count('/') + 2)
    vendor, device = facts['ids'].split(':')
    found = {**dict.fromkeys(build.ATTRIBUTES), 'iommu_group': None,
             'vendor': f'0x{vendor}\n', 'device': f'0x{device}\n',
             'class': f'0x{facts["class"]:0<6}\n', 'numa_node': '-1\n'}
    if facts['class'].startswith('0300'):
        found['boot_vga'] = '0\n'
    if not facts['class'].startswith(('0600', '0601', '0604')):
        found['reset_method'] = 'flr\n'
    if 'group' in facts:
        found['iommu_group'] = f'{sysfs}kernel/iommu_groups/{facts["group"]}'
    if 'driver' in facts:
        found['driver'] = f'{sysfs}bus/pci/drivers/{facts["driver"]}'
    if 'physfn' in facts:
        found['physfn'] = f'../{full(facts["physfn"])}'
    for name, number in facts.get('mdev_types', {}).items():
        found[f'mdev_supported_types/{name}/available_instances'] = number
    return found | {name: f'{text}\n' for name, text in facts.items()
                    if name not in _KEYS}


def describe(host: model.Host) -> str:
    """Return the functions of a machine as a file has them."""
    lines = [_line(function) for function in host.functions
             if not isinstance(function.address, model.ParentName)]
    return '\n'.join(['functions:', *lines, ''])


def _line(function: model.Function) -> str:
    types = ', '.join(f'{mdev_type.name}: {mdev_type.available}'
                      for mdev_type in function.mdev_types)
    facts = {
        'class': f'{function.class_code:06x}'.removesuffix('00'),
        'ids': function.ids,
        'group': function.iommu_group,
        'driver': function.driver,
        'numa_node': function.location.numa_node,
        'physfn': function.physfn,
        'sriov_totalvfs': function.total_vfs or None,
        'sriov_numvfs': function.num_vfs or None,
        'max_link_speed': function.max_link_speed and (
            f'{function.max_link_speed:.1f} GT/s PCIe'),
        'max_link_width': function.max_link_width,
        'boot_display': 1 if function.console else None,
        'reset_subordinate': "''" if function.resets_below else None,
        'mdev_types': f'{{{types}}}' if types else None}
    if not function.is_bridge and function.reset_methods not in (
            None, ('flr',)):
        facts['reset_method'] = ' '.join(function.reset_methods) or "''"
    return '  {}: {{{}}}'.format(
        '/'.join((*function.location.ports, str(function.address))),
        ', '.join(f'{name}: {fact}' for name, fact in facts.items()
                  if fact is not None))


if __name__ == '__main__':
    print(describe(reader.read(tree.open_tree(sys.argv[1]))), end='')

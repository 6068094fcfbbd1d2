# SPDX-License-Identifier: Apache-2.0
"""Build small hosts, cards and entries for the unit tests."""

import json
import pathlib

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.device_spec import discovery
from nova_accel.core.placement import inventory as inventories
from nova_accel.host import loader
from nova_accel.host import numa
from nova_accel.host import reader
from nova_accel.host import tree

DATA = pathlib.Path(__file__).parent.parent / 'data'

#: uuid of the compute node's provider.
ROOT = '5b0bc9e4-6c1f-4f4e-8f33-1f0ee4e6d7a1'

GPU = 0x030200
NIC = 0x020000
HOST_BRIDGE, ISA_BRIDGE, PCI_BRIDGE = 0x060000, 0x060100, 0x060400


def address(text):
    return model.PciAddress.parse(text)


def function(at, ids='10de:2330', **facts):
    """Return a PCI function. By default, its IOMMU group has no other.

    :param facts: other fields of model.Function
    """
    facts = {'class_code': GPU, 'iommu_group': f'g{at}', **facts}
    if isinstance(facts.get('physfn'), str):
        facts['physfn'] = address(facts['physfn'])
    return model.Function(address(at), *ids.split(':'), **facts)


def card(at, vfs, ids='8086:37c8', vf_ids='8086:37c9'):
    """Return a physical function and its enabled virtual functions."""
    stem = at.partition('.')[0]
    return [function(at, ids, total_vfs=16, num_vfs=vfs),
            *(function(f'{stem}.{number}', vf_ids, physfn=at)
              for number in range(1, vfs + 1))]


#: Keys of an entry for all functions of a host: those not on PCI bus ff.
EVERY = {'address': {'bus': '(?!ff)'}}


def entries(*specs, option='[nova_accel] device_spec'):
    """Return parsed entries.

    :param specs: the JSON object of each as a dict; if it names no device, it
        gets :data:`EVERY`
    """
    parsed, problems = reader.parse([json.dumps(
        spec if spec.keys() & {'vendor_id', 'product_id', 'address', 'parent'}
        else {**EVERY, **spec}) for spec in specs], option)
    assert not problems, problems
    return parsed


def host(functions, *specs, foreign=()):
    """Return the Host of these functions and entries."""
    return offer(functions, entries(*specs), foreign)


def offer(functions, entries_, foreign=(), **more):
    """Return the Host of parsed entries, with the installed kinds."""
    return discovery.offer(functions, entries_,
                           loader.open_all(tree.Recording()), foreign, **more)


def holding(*texts):
    """Return the ``held`` argument of offer(): one server, these functions."""
    hostdevs = tuple(hostdev.Hostdev(address(text), '') for text in texts)
    return lambda: {'server': hostdevs}


def inventory(host_, name='host1', root=ROOT):
    """Return the NodeInventory of a Host on the compute node of this name."""
    return inventories.NodeInventory(host_, inventories.Node(root, name))


def units(host_):
    """Return the offered units of all cards: {region name: [unit, ...]}."""
    found = {}
    for device in host_.devices:
        for region in device.regions:
            found.setdefault(region.name, []).extend(
                ' '.join(map(str, unit)) for unit in region.available)
    return found


def refusals(host_):
    """Return the reasons by address."""
    return {str(refusal.address): refusal.reason
            for refusal in host_.refusals}


def region(name='CUSTOM_GPU', count=1, bus=0x81, traits=(), size=1,
           **fields):
    """Return a Region of equal units with ``size`` functions each."""
    return model.Region(
        name, fields.pop('resource_class', name), frozenset(traits),
        tuple(tuple(model.PciAddress(0, bus, slot, number)
                    for number in range(size)) for slot in range(count)),
        **fields)


def device(*regions, at='0000:81:00.0', location=None):
    return model.Device(address(at), '10de:2330',
                        location or model.Location(), tuple(regions))


def offered(*regions, **fields):
    """Return Offered of the first region, on a device at its bus."""
    at = regions[0].units[0][0]
    made = device(*regions, at=str(at), **fields)
    return inventories.Offered(naming.provider_uuid(ROOT, at),
                               f'host1_accel_{at}', made, regions[0])


def recorded(name):
    """Open a recording in tests/data/hosts."""
    return tree.open_tree(DATA / 'hosts' / f'{name}.json')


#: Attributes of a GPU in sysfs.
ATTRIBUTES = {
    'vendor': '0x10de\n', 'device': '0x2330\n', 'class': '0x030200\n',
    'subsystem_vendor': '0x10de\n', 'subsystem_device': '0x16c1\n',
    'revision': '0xa1\n', 'numa_node': '1\n'}


#: Flags of memory ranges (include/linux/ioport.h).
MEMORY, WIDE_MEMORY = 0x40200, 0x14220c


def resource(*bars):
    """Return a function's ``resource`` file in the kernel's format.

    :param bars: size in bytes and flags of each, None where there is none
    """
    lines, start = [], 1 << 44
    for bar in (*bars, *[None] * (13 - len(bars))):
        size, flags = bar or (0, 0)
        ends = (start, start + size - 1) if size else (0, 0)
        lines.append('0x{:016x} 0x{:016x} 0x{:016x}\n'.format(*ends, flags))
        start += 2 * size
    return ''.join(lines)


#: The resource file of an H100: 64-bit BARs of 16 MiB, 128 GiB and 32 MiB.
H100_RESOURCE = resource((16 << 20, WIDE_MEMORY), None, (128 << 30,
                         WIDE_MEMORY), None, (32 << 20, WIDE_MEMORY))


def numa_nodes(nodes):
    """Return the files of NUMA nodes in sysfs, by path.

    :param nodes: by number ``cpulist`` and ``distance``, None to leave it out
    """
    return {f'{numa.NODES}/node{number}/{name}': f'{text}\n'
            for number, texts in nodes.items()
            for name, text in zip(('cpulist', 'distance'), texts, strict=True)
            if text is not None}


#: Two nodes with CPUs. Node 2, and what is on it, is nearest to node 1. Node
#: 10, whose number does not follow, is as near to node 0 as to node 1.
CPULESS_NODES = numa_nodes({
    0: ('0-71,144-215', '10 40 120 80'), 1: ('72-143', '40 10 80 80'),
    2: ('', '120 80 10 90'), 10: ('', '80 80 90 10')})


def sysfs(devices, files=(), links=(), folders=()):
    """Return a recording of PCI functions.

    :param devices: by path below ``sys/devices``: changes to
        :data:`ATTRIBUTES`, None to leave a file out; ``iommu_group``,
        ``driver`` and ``physfn`` are targets of links
    :param files, links, folders: other content
    """
    files, links = dict(files), dict(links)
    for number, (place, changes) in enumerate(devices.items()):
        path = f'sys/devices/{place}'
        name = place.rsplit('/', 1)[-1]
        links[f'sys/bus/pci/devices/{name}'] = f'../../../devices/{place}'
        facts = {**ATTRIBUTES,
                 'iommu_group': f'../../../kernel/iommu_groups/{number}',
                 **changes}
        for key, value in facts.items():
            if value is None:
                continue
            kind = links if key in ('iommu_group', 'driver', 'physfn',
                                    ) else files
            kind[f'{path}/{key}'] = value
    return tree.Recording(files, links, folders)

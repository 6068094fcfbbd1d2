# SPDX-License-Identifier: Apache-2.0
"""What the host itself does with its PCI functions, and so cannot give away.

A disk is in use when it, a partition of it or something stacked on it is
mounted or swapped to, or when it has the label of a ZFS pool that is imported;
a network port when it has an address or a route, or belongs to a bridge, a
bond or anything else stacked on it.

Sources: proc(5) (mountinfo, mounts, swaps), xfs(5) (``logdev``, ``rtdev``),
Documentation/ABI/stable/sysfs-block (``dev``, ``holders``),
Documentation/ABI/testing/sysfs-class-net, and the directories of what is
mounted: fs/btrfs/sysfs.c (``devices``), fs/ext4/sysfs.c, fs/f2fs/sysfs.c and
fs/xfs/xfs_super.c (named after the disk).
"""

import collections.abc
import itertools

from nova_accel.core import model
from nova_accel.host import netdevs
from nova_accel.host import pci
from nova_accel.host import tree as trees
from nova_accel.host import zfs

BLOCK = 'sys/class/block'
# Of disks, in which their partitions are; for recordings without the other.
_WHOLE = 'sys/block'
BTRFS = 'sys/fs/btrfs'
# The same in every container, as proc is not.
_FILESYSTEMS = ('sys/fs/ext4', 'sys/fs/f2fs', 'sys/fs/xfs')
NET = netdevs.NET
# Process 1 sees the host's mounts also where nova-compute is in a container,
# if that has the host's processes.
MOUNTS = ('proc/1/mountinfo', 'proc/self/mountinfo')
# For recordings without the others.
TABLES = ('proc/1/mounts', 'proc/self/mounts')
# Of a file system's options, those that name a further disk.
_OTHER_DISKS = ('logdev=', 'rtdev=')
SWAPS = 'proc/swaps'
ROUTES = 'proc/net/route'
ADDRESSES = 'proc/net/if_inet6'

_NO_MOUNTS = (f'{MOUNTS[0]}, beside sysfs_root, cannot be read, so nobody '
              'knows which disks are mounted; have the host\'s proc there, '
              'and name no disks in device_spec until it is')
_NO_UDEV = (f'{zfs.UDEV}, beside sysfs_root, cannot be read, so nobody knows '
            'which disks belong to the host\'s ZFS pools; have the host\'s '
            'run/udev there, and name no disks in device_spec until it is')


def read(tree: trees.Tree) -> tuple[dict[model.PciAddress, str], list[str]]:
    """In words, what each function in use is used for; and what is wrong."""
    uses: dict[model.PciAddress, str] = {}
    for path, use in (*_disks(tree), *_ports(tree)):
        for address in _in_use(path):
            uses.setdefault(address, use)
    return uses, list(_unknown(tree))


def _in_use(path) -> list[model.PciAddress]:
    """What drives something, and what makes the PCI domain that this is in.

    Behind Intel's VMD disks have a domain of their own.
    """
    way = pci.addresses(path.split('/'))
    return [address for address, below in itertools.zip_longest(way, way[1:])
            if below is None or below.domain != address.domain]


def _unknown(tree) -> collections.abc.Iterator[str]:
    """What keeps disks that are in use from being noticed."""
    disks = _blocks(tree)
    if disks and all(tree.text(path) is None for path in (*MOUNTS, *TABLES)):
        yield _NO_MOUNTS
    if disks and zfs.pools(tree) and all(
            zfs.pool(tree, _number(tree, path)) is None
            for path in disks.values()):
        yield _NO_UDEV


def _blocks(tree) -> dict[str, str]:
    """The directory of each disk and partition."""
    if names := tree.names(BLOCK):
        return {name: trees.follow(tree, f'{BLOCK}/{name}') for name in names}
    found = {}
    for name in tree.names(_WHOLE):
        path = found[name] = trees.follow(tree, f'{_WHOLE}/{name}')
        found.update({part: f'{path}/{part}' for part in tree.names(path)
                      if part.startswith(name)})
    return found


def _number(tree, path) -> str:
    return (tree.text(f'{path}/dev') or '').strip()


def _disks(tree) -> collections.abc.Iterator[tuple[str, str]]:
    mounted, pools = _mounted(tree), zfs.pools(tree)
    swaps = {words[0].rsplit('/', 1)[-1]
             for words in fields(tree.text(SWAPS))[1:]}
    for name, path in _blocks(tree).items():
        number = _number(tree, path)
        if number in mounted or name in mounted:
            use = f'disk {name} is mounted'
        elif name in swaps:
            use = f'disk {name} is swap space'
        elif holders := tree.names(f'{path}/holders'):
            use = f'disk {name} is part of {holders[0]}'
        elif pools and zfs.pool(tree, number) in {*pools, zfs.ANY}:
            use = f'disk {name} is part of a ZFS pool'
        else:
            continue
        for controller in _controllers(tree, path):
            yield controller, use


def _mounted(tree) -> set[str]:
    """Numbers, ``259:0``, and names, ``sda1``, of what is mounted."""
    found = set()
    for number, source in _mounts(tree):
        found.add(number)
        # btrfs and its like mount under a number of their own; bcachefs
        # names all of its disks.
        found.update(disk.removeprefix('/dev/') for disk in source.split(':')
                     if disk.startswith('/dev/'))
    # Of its disks, it names one there.
    for filesystem in tree.names(BTRFS):
        found.update(tree.names(f'{BTRFS}/{filesystem}/devices'))
    for folder in _FILESYSTEMS:
        found.update(tree.names(folder))
    return found - {''}


def _mounts(tree) -> collections.abc.Iterator[tuple[str, str]]:
    tables = [tree.text(path) for path in MOUNTS]
    for table in tables:
        yield from mounts(table)
    if tables == [None] * len(tables):
        for words in (words for path in TABLES
                      for words in fields(tree.text(path))):
            yield '', words[0]


def _controllers(tree, path) -> list[str]:
    """The paths of what drives a disk.

    With native multipath an NVMe namespace belongs to a virtual subsystem,
    in which links lead to the controllers.
    """
    front, virtual, back = path.partition('/nvme-subsystem/')
    if not virtual:
        return [path]
    subsystem = f'{front}{virtual}{back.split("/")[0]}'
    return [trees.follow(tree, f'{subsystem}/{name}')
            for name in tree.names(subsystem)
            if tree.link(f'{subsystem}/{name}')]


def _ports(tree) -> collections.abc.Iterator[tuple[str, str]]:
    routed = {words[0] for words in fields(tree.text(ROUTES))[1:]}
    addressed = {words[-1] for words in fields(tree.text(ADDRESSES))}
    for name in tree.names(NET):
        path = trees.follow(tree, f'{NET}/{name}')
        master = tree.link(f'{path}/master')
        stacked = [entry for entry in tree.names(path)
                   if entry.startswith('upper_')]
        if name in routed or name in addressed:
            yield path, f'network port {name} has an address'
        elif master:
            yield path, (f'network port {name} belongs to '
                         f'{master.rsplit("/", 1)[-1]}')
        elif stacked:
            yield path, (f'network port {name} is under '
                         + stacked[0].removeprefix('upper_'))


def fields(text: str | None) -> list[list[str]]:
    """The words of each line of a table in proc, empty lines left out."""
    return [line.split() for line in (text or '').splitlines()
            if line.strip()]


def mounts(text: str | None) -> list[tuple[str, str]]:
    """Of each line of a mountinfo, the device's number and the source.

    :returns: ``('259:1', '/dev/nvme0n1p1')``, '' for what a line lacks, and
        after colons the file system's other disks
    """
    found = []
    for line in (text or '').splitlines():
        front, _dash, back = line.partition(' - ')
        words = back.split()
        others = [option.partition('=')[2] for option
                  in ''.join(words[2:3]).split(',')
                  if option.startswith(_OTHER_DISKS)]
        found.append((''.join(front.split()[2:3]),
                      ':'.join([*words[1:2], *others])))
    return found

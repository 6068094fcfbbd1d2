# SPDX-License-Identifier: Apache-2.0
"""Find the PCI functions that the host itself uses, which are not offered.

A disk is in use if it, a partition of it or a device stacked on it is mounted
or is swap space, or if it has the label of an imported ZFS pool. A network
port is in use if it has an address or a route, or belongs to a bridge, a bond
or another device stacked on it.

Sources: proc(5) (mountinfo, mounts, swaps), xfs(5) (``logdev``, ``rtdev``),
Documentation/ABI/stable/sysfs-block (``dev``, ``holders``),
Documentation/ABI/testing/sysfs-class-net, and the directories of mounted file
systems: fs/btrfs/sysfs.c (``devices``), fs/ext4/sysfs.c, fs/f2fs/sysfs.c and
fs/xfs/xfs_super.c (named after the disk).
"""

import collections.abc
import itertools

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.host import netdevs
from nova_accel.host import pci
from nova_accel.host import tree as trees
from nova_accel.host import zfs

BLOCK = 'sys/class/block'
# Directories of disks, with those of their partitions below; for recordings
# without BLOCK.
_WHOLE = 'sys/block'
BTRFS = 'sys/fs/btrfs'
# Unlike proc, these are the same in every container.
_FILESYSTEMS = ('sys/fs/ext4', 'sys/fs/f2fs', 'sys/fs/xfs')
NET = netdevs.NET
# Process 1 shows the host's mounts even to nova-compute in a container, if
# the container shares the host's process namespace.
MOUNTS = ('proc/1/mountinfo', 'proc/self/mountinfo')
# The kernel's threads are in the host's process namespace only. This is their
# parent (rest_init() in init/main.c).
KTHREADD = 'proc/2/comm'
# For recordings without MOUNTS.
TABLES = ('proc/1/mounts', 'proc/self/mounts')
# Options of a file system that name a further disk.
_OTHER_DISKS = ('logdev=', 'rtdev=')
SWAPS = 'proc/swaps'
ROUTES = 'proc/net/route'
ADDRESSES = 'proc/net/if_inet6'

_NO_MOUNTS = (f'{MOUNTS[0]}, beside sysfs_root, cannot be read, so it is '
              'unknown which disks are mounted; mount the host\'s proc there, '
              'and name no disks in device_spec until then')
_NOT_THE_HOSTS = (
    'Process 1, beside sysfs_root, is not the host\'s, so it is unknown which '
    'disks are mounted; run nova-compute in the process namespace of the host '
    '("pid: host" of a container), and name no disks in device_spec until '
    'then')
_NO_UDEV = (f'{zfs.UDEV}, beside sysfs_root, cannot be read, so it is unknown '
            'which disks belong to the host\'s ZFS pools; mount the host\'s '
            'run/udev there, and name no disks in device_spec until then')


def read(tree: trees.Tree) -> tuple[dict[model.PciAddress, str], list[str]]:
    """Find the functions that the host uses.

    :returns: the use by function, ``disk sda1 is mounted``; and messages
        about uses that cannot be found
    """
    uses: dict[model.PciAddress, str] = {}
    for path, use in (*_disks(tree), *_ports(tree)):
        for address in _functions_of(path):
            uses.setdefault(address, errors.path(use))
    return uses, list(_problems(tree))


def _functions_of(path: str) -> list[model.PciAddress]:
    """Return the function of a disk or port, and of its PCI domain.

    Behind Intel's VMD, disks are in a PCI domain that the VMD provides.
    """
    found = pci.addresses(path.split('/'))
    return [address for address, below
            in itertools.zip_longest(found, found[1:])
            if below is None or below.domain != address.domain]


def _problems(tree: trees.Tree) -> collections.abc.Iterator[str]:
    """Return messages about uses of disks that cannot be found."""
    disks = _blocks(tree)
    if disks and all(tree.text(path) is None for path in (*MOUNTS, *TABLES)):
        yield _NO_MOUNTS
    elif disks and trees.is_live(tree) and (
            tree.text(KTHREADD) or '').strip() != 'kthreadd':
        yield _NOT_THE_HOSTS
    if disks and zfs.pools(tree) and all(
            zfs.pool(tree, _number(tree, path)) is None
            for path in disks.values()):
        yield _NO_UDEV


def _blocks(tree: trees.Tree) -> dict[str, str]:
    """Return the directory of each disk and partition by name."""
    if names := tree.names(BLOCK):
        return {name: trees.follow(tree, f'{BLOCK}/{name}') for name in names}
    found = {}
    for name in tree.names(_WHOLE):
        path = found[name] = trees.follow(tree, f'{_WHOLE}/{name}')
        found.update({part: f'{path}/{part}' for part in tree.names(path)
                      if part.startswith(name)})
    return found


def _number(tree: trees.Tree, path: str) -> str:
    return (tree.text(f'{path}/dev') or '').strip()


def _disks(tree: trees.Tree,
           ) -> collections.abc.Iterator[tuple[str, str]]:
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


def _mounted(tree: trees.Tree) -> set[str]:
    """Return numbers, ``259:0``, and names, ``sda1``, of mounted disks."""
    found = set()
    for number, source in _mounts(tree):
        found.add(number)
        # btrfs and others mount under a number that is not a disk's; bcachefs
        # names all of its disks.
        found.update(disk.removeprefix('/dev/') for disk in source.split(':')
                     if disk.startswith('/dev/'))
    # The source of a btrfs mount names only one of its disks.
    for filesystem in tree.names(BTRFS):
        found.update(tree.names(f'{BTRFS}/{filesystem}/devices'))
    for folder in _FILESYSTEMS:
        found.update(tree.names(folder))
    return found - {''}


def _mounts(tree: trees.Tree,
            ) -> collections.abc.Iterator[tuple[str, str]]:
    tables = [tree.text(path) for path in MOUNTS]
    for table in tables:
        yield from mounts(table)
    if tables == [None] * len(tables):
        for words in (words for path in TABLES
                      for words in fields(tree.text(path))):
            yield '', words[0]


def _controllers(tree: trees.Tree, path: str) -> list[str]:
    """Return the paths of the controllers of a disk.

    With native multipath, an NVMe namespace belongs to a virtual subsystem,
    and links in the subsystem lead to the controllers.
    """
    front, subsystems, back = path.partition('/nvme-subsystem/')
    if not subsystems:
        return [path]
    subsystem = f'{front}{subsystems}{back.split("/")[0]}'
    return [trees.follow(tree, f'{subsystem}/{name}')
            for name in tree.names(subsystem)
            if tree.link(f'{subsystem}/{name}')]


def _ports(tree: trees.Tree,
           ) -> collections.abc.Iterator[tuple[str, str]]:
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
    """Return the words of each non-empty line of a table in proc."""
    return [line.split() for line in (text or '').splitlines()
            if line.strip()]


def mounts(text: str | None) -> list[tuple[str, str]]:
    """Return device number and source of each line of a mountinfo.

    :returns: ``('259:1', '/dev/nvme0n1p1')``; '' for a missing field; other
        disks of the file system are appended to the source after colons
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

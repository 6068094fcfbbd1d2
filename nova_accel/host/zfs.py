# SPDX-License-Identifier: Apache-2.0
"""Disks of ZFS pools, which neither mounts nor holders show.

A mounted ZFS file system has the name of its pool as source, and ZFS opens
its disks without appearing in ``holders``. udev's database has the ZFS label
of each disk; it also has labels that a guest wrote onto its disk.

Sources: OpenZFS, module/os/linux/spl/spl-kstat.c (below
``/proc/spl/kstat/zfs``, a directory for each pool that is imported);
util-linux, libblkid/src/superblocks/zfs.c (the pool's name is the label);
systemd, udev-builtin-blkid.c (``ID_FS_TYPE``, ``ID_FS_LABEL``).
"""

from nova_accel.host import tree as trees

POOLS = 'proc/spl/kstat/zfs'
UDEV = 'run/udev/data'
#: Lines of udev's database that mark a ZFS disk and name its pool.
MEMBER, LABEL = 'E:ID_FS_TYPE=zfs_member', 'E:ID_FS_LABEL='

#: The pool of a disk whose ZFS label has no name: it may be any pool.
ANY = '?'


def pools(tree: trees.Tree) -> frozenset[str]:
    """Return the names of the imported pools."""
    return frozenset(name for name in tree.names(POOLS)
                     if tree.names(f'{POOLS}/{name}'))


def pool(tree: trees.Tree, number: str) -> str | None:
    """Return the pool that the label of a disk or a partition names.

    :param number: its device number, ``259:1``
    :returns: '' without a ZFS label, :data:`ANY` if the label has no name,
        None if udev has no data of the device
    """
    text = tree.text(f'{UDEV}/b{number}')
    if text is None:
        return None
    lines = text.splitlines()
    if MEMBER not in lines:
        return ''
    return next((line.removeprefix(LABEL) for line in lines
                 if line.startswith(LABEL)), ANY)

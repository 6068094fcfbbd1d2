# SPDX-License-Identifier: Apache-2.0
"""Disks of ZFS pools, of which neither mounts nor holders tell.

What is mounted has the name of its pool, and ZFS opens its disks without
being their holder. Which disks have its label is in udev's database.

Sources: OpenZFS, module/os/linux/spl/spl-kstat.c (below
``/proc/spl/kstat/zfs``, a directory for each pool that is imported); systemd,
udev-builtin-blkid.c (``ID_FS_TYPE``).
"""

from nova_accel.host import tree as trees

POOLS = 'proc/spl/kstat/zfs'
UDEV = 'run/udev/data'
#: The line of udev's that tells.
MEMBER = 'E:ID_FS_TYPE=zfs_member'


def is_used(tree: trees.Tree) -> bool:
    """Whether a pool is imported."""
    return any(tree.names(f'{POOLS}/{name}') for name in tree.names(POOLS))


def has_label(tree: trees.Tree, number: str) -> bool | None:
    """Whether a disk, or a partition, bears the label of a pool.

    :param number: of its device, ``259:1``
    :returns: None where udev does not say
    """
    text = tree.text(f'{UDEV}/b{number}')
    return None if text is None else MEMBER in text.splitlines()

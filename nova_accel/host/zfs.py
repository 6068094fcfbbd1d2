# SPDX-License-Identifier: Apache-2.0
"""Disks of ZFS pools, of which neither mounts nor holders tell.

What is mounted has the name of its pool, and ZFS opens its disks without
being their holder. Which disks have a label of its, and of which pool, is in
udev's database; so is what a guest wrote onto a disk that it has.

Sources: OpenZFS, module/os/linux/spl/spl-kstat.c (below
``/proc/spl/kstat/zfs``, a directory for each pool that is imported);
util-linux, libblkid/src/superblocks/zfs.c (the pool's name is the label);
systemd, udev-builtin-blkid.c (``ID_FS_TYPE``, ``ID_FS_LABEL``).
"""

from nova_accel.host import tree as trees

POOLS = 'proc/spl/kstat/zfs'
UDEV = 'run/udev/data'
#: The lines of udev's that tell.
MEMBER, LABEL = 'E:ID_FS_TYPE=zfs_member', 'E:ID_FS_LABEL='

#: What a disk of any pool is said to belong to.
ANY = '?'


def pools(tree: trees.Tree) -> frozenset[str]:
    """The names of the pools that are imported."""
    return frozenset(name for name in tree.names(POOLS)
                     if tree.names(f'{POOLS}/{name}'))


def pool(tree: trees.Tree, number: str) -> str | None:
    """The pool whose label a disk, or a partition, bears.

    :param number: of its device, ``259:1``
    :returns: '' without a label, :data:`ANY` where the label has no name, and
        None where udev does not say
    """
    text = tree.text(f'{UDEV}/b{number}')
    if text is None:
        return None
    lines = text.splitlines()
    if MEMBER not in lines:
        return ''
    return next((line.removeprefix(LABEL) for line in lines
                 if line.startswith(LABEL)), ANY)

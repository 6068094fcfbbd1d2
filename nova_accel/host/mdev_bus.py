# SPDX-License-Identifier: Apache-2.0
"""Parents of mdevs that are not PCI devices.

Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev (/sys/class/mdev_bus).
"""

import collections.abc

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.host import pci
from nova_accel.host import tree as trees

PARENTS = 'sys/class/mdev_bus'


def read(tree: trees.Tree) -> collections.abc.Iterator[model.Function]:
    """Return each parent as a Function that has a name for an address."""
    for name in tree.names(PARENTS):
        if pci.addresses([name]) or not naming.is_parent_name(name):
            continue
        path = trees.follow(tree, f'{PARENTS}/{name}')
        yield model.Function(
            model.ParentName(name), '', '', 0,
            location=model.Location(root='mdev_bus'),
            mdev_types=pci.read_mdev_types(tree, path))

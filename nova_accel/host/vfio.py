# SPDX-License-Identifier: Apache-2.0
"""What vfio takes, and what it takes without protection.

Sources: drivers/vfio/pci/vfio_pci.c (``disable_denylist``, since Linux 5.9),
drivers/vfio/group.c (a group named ``vfio-noiommu``).
"""

from nova_accel.host import tree as trees

PARAMETER = 'sys/module/vfio_pci/parameters/disable_denylist'

#: Vendor and product: QAT cards and their virtual functions; and, since Linux
#: 6.9 and in what is maintained of older ones, DSA and IAX of Sapphire Rapids.
_DENYLIST = frozenset(('8086', product) for product in (
    '19e2', '19e3', '37c8', '37c9', '0435', '0443', '0b25', '0cfe'))

_NO_IOMMU = 'vfio-noiommu'


def denylist(tree: trees.Tree) -> frozenset[tuple[str, str]]:
    """Vendor and product of what vfio-pci does not take on this machine.

    :returns: nothing where it is not loaded, as nobody can tell then
    """
    disabled = (tree.text(PARAMETER) or '').strip()
    return _DENYLIST if disabled == 'N' else frozenset()


def is_unprotected(tree: trees.Tree, path: str) -> bool:
    """Whether a function's IOMMU group is none, but made up by vfio.

    :param path: of its directory
    """
    name = tree.text(f'{trees.follow(tree, f"{path}/iommu_group")}/name')
    return (name or '').strip() == _NO_IOMMU

# SPDX-License-Identifier: Apache-2.0
"""What vfio takes, and what it takes without protection.

Sources: drivers/vfio/pci/vfio_pci.c (``disable_denylist``, since Linux 5.9),
drivers/vfio/group.c (a group named ``vfio-noiommu``). Those of hazards:
:mod:`nova_accel.core.device_spec.unsafe_host`.
"""

from nova_accel.core.device_spec import unsafe_host
from nova_accel.host import tree as trees

PARAMETER = 'sys/module/vfio_pci/parameters/disable_denylist'
COMMAND_LINE = 'proc/cmdline'

_HAZARDS = {
    'vfio_iommu_type1/parameters/allow_unsafe_interrupts':
        unsafe_host.Hazard.UNSAFE_INTERRUPTS,
    'iommufd/parameters/allow_unsafe_interrupts':
        unsafe_host.Hazard.UNSAFE_INTERRUPTS,
    'vfio/parameters/enable_unsafe_noiommu_mode': unsafe_host.Hazard.NO_IOMMU,
}
_ACS_OVERRIDE = 'pcie_acs_override'

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


def hazards(tree: trees.Tree) -> tuple[unsafe_host.Hazard, ...]:
    """What this host is told to do that is not safe, each once."""
    found = [hazard for name, hazard in _HAZARDS.items()
             if (tree.text(f'sys/module/{name}') or '').strip() == 'Y']
    if acs_overrides(tree.text(COMMAND_LINE) or ''):
        found.append(unsafe_host.Hazard.ACS_OVERRIDE)
    return tuple(dict.fromkeys(found))


def acs_overrides(command_line: str) -> list[str]:
    """The words of a kernel's command line that make up IOMMU groups.

    The kernel takes a hyphen for an underscore (kernel/params.c).
    """
    return [word for word in command_line.split() if word.partition('=')[
        0].replace('-', '_') == _ACS_OVERRIDE]


def is_unprotected(tree: trees.Tree, path: str) -> bool:
    """Whether a function's IOMMU group is none, but made up by vfio.

    :param path: of its directory
    """
    name = tree.text(f'{trees.follow(tree, f"{path}/iommu_group")}/name')
    return (name or '').strip() == _NO_IOMMU

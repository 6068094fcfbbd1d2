# SPDX-License-Identifier: Apache-2.0
"""Read what vfio can reset, what it refuses, and what makes it unsafe.

Sources: drivers/vfio/pci/vfio_pci.c (``disable_denylist``, since Linux 5.9),
drivers/vfio/group.c (a group named ``vfio-noiommu``, class ``vfio``),
drivers/iommu/iommufd/main.c (the device ``iommu``),
drivers/vfio/device_cdev.c (``vfio-dev``). Sources of the hazards:
:mod:`nova_accel.core.device_spec.unsafe_host`.
"""

from nova_accel.core import model
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

#: Vendor and product id of QAT cards and their virtual functions; and, since
#: Linux 6.9 and in maintained older kernels, DSA and IAX of Sapphire Rapids.
_DENYLIST = frozenset(('8086', product) for product in (
    '19e2', '19e3', '37c8', '37c9', '0435', '0443', '0b25', '0cfe'))

_NO_IOMMU = 'vfio-noiommu'

_DRIVER = 'sys/bus/pci/drivers/vfio-pci'
#: Programs open a group, or a device together with iommufd.
GROUPS, IOMMUFD = 'sys/class/vfio', 'sys/class/misc/iommu'
#: /dev/vfio/devices exists only while a function has a vfio driver. The kernel
#: lists the device numbers that vfio has reserved for it.
NUMBERS, CDEV = 'proc/devices', 'vfio-dev'


def bus_reset(tree: trees.Tree) -> model.BusReset:
    """Return how vfio resets all functions of a bus here, or why not."""
    if not tree.has(_DRIVER):
        return model.BusReset.NO_VFIO
    if tree.has(GROUPS) or tree.has(IOMMUFD):
        return model.BusReset.HOT_RESET
    return model.BusReset.NO_FILES


def why_no_iommufd(tree: trees.Tree) -> str:
    """Return why programs cannot open functions with iommufd here, or ''."""
    if not tree.has(IOMMUFD):
        return ('this host has no /dev/iommu: its kernel was built without '
                'CONFIG_IOMMUFD, or no vfio driver is loaded')
    if CDEV not in (tree.text(NUMBERS) or '').split():
        return ('this host has no /dev/vfio/devices: its kernel was built '
                'without CONFIG_VFIO_DEVICE_CDEV, or no vfio driver is loaded')
    return ''


def denylist(tree: trees.Tree) -> frozenset[tuple[str, str]]:
    """Return vendor and product id of devices that vfio-pci refuses here.

    :returns: nothing if vfio-pci is not loaded: its setting is unknown then
    """
    disabled = (tree.text(PARAMETER) or '').strip()
    return _DENYLIST if disabled == 'N' else frozenset()


def hazards(tree: trees.Tree) -> tuple[unsafe_host.Hazard, ...]:
    """Return the unsafe settings of this host, each once."""
    found = [hazard for name, hazard in _HAZARDS.items()
             if (tree.text(f'sys/module/{name}') or '').strip() == 'Y']
    if acs_overrides(tree.text(COMMAND_LINE) or ''):
        found.append(unsafe_host.Hazard.ACS_OVERRIDE)
    return tuple(dict.fromkeys(found))


def acs_overrides(command_line: str) -> list[str]:
    """Return the words of a kernel command line that override IOMMU groups.

    The kernel reads a hyphen as an underscore (kernel/params.c).
    """
    return [word for word in command_line.split() if word.partition('=')[
        0].replace('-', '_') == _ACS_OVERRIDE]


def is_unprotected(tree: trees.Tree, path: str) -> bool:
    """Whether vfio invented a function's IOMMU group, without an IOMMU.

    :param path: the function's directory
    """
    name = tree.text(f'{trees.follow(tree, f"{path}/iommu_group")}/name')
    return (name or '').strip() == _NO_IOMMU

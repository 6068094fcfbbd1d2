# SPDX-License-Identifier: Apache-2.0
"""Settings of a host that weaken the isolation of guests.

Sources: drivers/vfio/vfio_iommu_type1.c and drivers/iommu/iommufd/device.c
(``allow_unsafe_interrupts``), drivers/vfio/group.c
(``enable_unsafe_noiommu_mode``). ``pcie_acs_override`` is a patch in the
kernels of some distributions, not in the mainline kernel.
"""

import enum

#: The option that allows devices to be offered with such a setting.
OPTION = 'allow_unsafe_host'
#: What else helps, unless ``isolation`` is strict.
OVERRIDE = (f'or write {OPTION} = true if all guests of this host can be '
            'trusted')


class Hazard(enum.Enum):
    """An unsafe setting, with its effect and the remedy."""

    UNSAFE_INTERRUPTS = (
        'a guest can send this host any interrupt through its devices, '
        'because allow_unsafe_interrupts is set',
        'switch interrupt remapping on in the firmware, and load '
        'vfio_iommu_type1 and iommufd without allow_unsafe_interrupts')
    NO_IOMMU = (
        'vfio assigns devices without an IOMMU that protects the memory of '
        'this host, because enable_unsafe_noiommu_mode is set',
        'load vfio without enable_unsafe_noiommu_mode')
    ACS_OVERRIDE = (
        'the IOMMU groups of this host cannot be trusted, because its kernel '
        'was booted with pcie_acs_override', 'boot it without')

    @property
    def reason(self) -> str:
        return self.value[0]

    @property
    def remedy(self) -> str:
        return self.value[1]

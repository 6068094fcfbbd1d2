# SPDX-License-Identifier: Apache-2.0
"""Settings of a host that take away what keeps guests and host apart.

Sources: drivers/vfio/vfio_iommu_type1.c and drivers/iommu/iommufd/device.c
(``allow_unsafe_interrupts``), drivers/vfio/group.c
(``enable_unsafe_noiommu_mode``). ``pcie_acs_override`` is of a patch that
some distributions' kernels have, and the mainline kernel does not.
"""

import enum

#: The option that allows them.
OPTION = 'allow_unsafe_host'

_OR = f', or write {OPTION} = true if all guests of this host can be trusted'


class Hazard(enum.Enum):
    """A setting: what it does, and what can be done about it."""

    UNSAFE_INTERRUPTS = (
        'a guest can send this host any interrupt by its devices, since '
        'allow_unsafe_interrupts is set',
        'switch interrupt remapping on in the firmware, and load '
        'vfio_iommu_type1 and iommufd without allow_unsafe_interrupts' + _OR)
    NO_IOMMU = (
        'vfio hands out devices that no IOMMU keeps from the memory of this '
        'host, since enable_unsafe_noiommu_mode is set',
        'load vfio without enable_unsafe_noiommu_mode' + _OR)
    ACS_OVERRIDE = (
        'the IOMMU groups of this host are not true, since its kernel was '
        'booted with pcie_acs_override', 'boot it without' + _OR)

    @property
    def reason(self) -> str:
        return self.value[0]

    @property
    def remedy(self) -> str:
        return self.value[1]

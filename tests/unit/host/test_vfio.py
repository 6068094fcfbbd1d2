# SPDX-License-Identifier: Apache-2.0
"""Whether programs can open functions with iommufd."""

import pytest

from nova_accel.host import tree
from nova_accel.host import vfio

#: As Linux 6.12 lists them, with CONFIG_VFIO_DEVICE_CDEV and vfio loaded.
NUMBERS = """Character devices:
  1 mem
 10 misc
509 vfio-dev
510 vfio

Block devices:
  7 loop
"""
IOMMU = f'{vfio.IOMMUFD}/dev'


@pytest.mark.parametrize('files, option', [
    ({IOMMU: '10:261\n', vfio.NUMBERS: NUMBERS}, ''),
    ({vfio.NUMBERS: NUMBERS}, 'CONFIG_IOMMUFD'),
    ({IOMMU: '10:261\n'}, 'CONFIG_VFIO_DEVICE_CDEV'),
    ({IOMMU: '10:261\n', vfio.NUMBERS: NUMBERS.replace('vfio-dev', 'vfio')},
     'CONFIG_VFIO_DEVICE_CDEV'),
    ({}, 'CONFIG_IOMMUFD')])
def test_reason_names_what_the_kernel_lacks(files, option):
    reason = vfio.why_no_iommufd(tree.Recording(files))
    assert bool(reason) == bool(option)
    assert option in reason

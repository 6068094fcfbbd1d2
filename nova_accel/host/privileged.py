# SPDX-License-Identifier: Apache-2.0
"""What has to be done as root: writes to sysfs, each by a small function.

Nothing is taken on trust: what a path is made of is checked here, where the
rights are.
"""

import os
import uuid

from oslo_privsep import capabilities
from oslo_privsep import priv_context

from nova_accel.core import identity
from nova_accel.core import model

context = priv_context.PrivContext(
    'nova_accel', cfg_section='nova_accel_privileged',
    pypath=f'{__name__}.context',
    capabilities=[capabilities.CAP_DAC_OVERRIDE, capabilities.CAP_SYS_ADMIN])


@context.entrypoint
def create_mdev(sysfs: str, parent: str, mdev_type: str, address: str) -> None:
    """Have a driver make a mediated device.

    Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev (``create``).

    :param sysfs: where sysfs is mounted
    :param parent: PCI address, or a name in /sys/class/mdev_bus
    :param address: the uuid that it is to have
    :raises ValueError: if an argument is not what it should be
    :raises OSError: if the driver refuses
    """
    if not identity.is_mdev_type(mdev_type):
        raise ValueError(f'not the name of an mdev type: {mdev_type!r}')
    _write(os.path.join(
        _sysfs(sysfs), _parent(parent), 'mdev_supported_types', mdev_type,
        'create'), str(uuid.UUID(address)))


@context.entrypoint
def remove_mdev(sysfs: str, address: str) -> None:
    """Remove a mediated device.

    Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev (``remove``).

    :param address: its uuid
    :raises ValueError: if an argument is not what it should be
    :raises OSError: if the driver refuses: somebody has it open
    """
    _write(os.path.join(_sysfs(sysfs), 'bus/mdev/devices',
                        str(uuid.UUID(address)), 'remove'), '1')


@context.entrypoint
def set_vgpu_type(sysfs: str, function: str, number: int) -> None:
    """Set the vGPU type of a virtual function, or clear it.

    Source: NVIDIA, Virtual GPU Software User Guide, on the vendor-specific
    VFIO framework (``current_vgpu_type``).

    :param sysfs: where sysfs is mounted
    :param function: PCI address
    :param number: of the type; 0 for none
    :raises ValueError: if an argument is not what it should be
    :raises OSError: if the driver refuses: the card has no room, a guest has
        the function, or there is a type already
    """
    if type(number) is not int or number < 0:
        raise ValueError(f'not the number of a vGPU type: {number!r}')
    _write(os.path.join(
        _sysfs(sysfs), 'bus/pci/devices',
        str(model.PciAddress.parse(function)), 'nvidia/current_vgpu_type'),
        str(number))


def _parent(text: str) -> str:
    try:
        return f'bus/pci/devices/{model.PciAddress.parse(text)}'
    except ValueError:
        if not identity.is_parent_name(text):
            raise
        return f'class/mdev_bus/{text}'


def _sysfs(path: str) -> str:
    if not os.path.isdir(os.path.join(path, 'bus')):
        raise ValueError(f'not a sysfs: {path!r}')
    return path


def _write(path: str, text: str) -> None:
    # An attribute is there or not; a write must never make a file.
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)

# SPDX-License-Identifier: Apache-2.0
"""What has to be done as root: writes to sysfs, each by a small function.

Nothing is taken on trust: what a path is made of is checked here, where the
rights are.
"""

import errno
import os
import re
import shutil
import stat
import uuid

from oslo_privsep import capabilities
from oslo_privsep import priv_context

from nova_accel.core import identity
from nova_accel.core import model
from nova_accel.host import commands

# NumVFs and TotalVFs are 16 bits wide (PCI Express Base Specification, SR-IOV
# Extended Capability).
_MAX_VFS = 0xffff

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
    _write(_path(sysfs, _parent(parent), 'mdev_supported_types', mdev_type,
                 'create'), str(uuid.UUID(address)))


@context.entrypoint
def remove_mdev(sysfs: str, address: str) -> None:
    """Remove a mediated device.

    Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev (``remove``).

    :param address: its uuid
    :raises ValueError: if an argument is not what it should be
    :raises OSError: if the driver refuses: somebody has it open
    """
    _write(_path(sysfs, 'bus/mdev/devices', str(uuid.UUID(address)),
                 'remove'), '1')


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
    _write(_attribute(sysfs, function, 'nvidia/current_vgpu_type'),
           str(number))


@context.entrypoint
def set_num_vfs(sysfs: str, card: str, number: int) -> None:
    """Have so many virtual functions of a card enabled.

    Source: Documentation/ABI/testing/sysfs-bus-pci (``sriov_numvfs``).

    :param card: PCI address of the physical function
    :param number: 0 where there are any, any where there are none
    :raises ValueError: if an argument is not what it should be
    :raises OSError: if the driver refuses
    """
    if type(number) is not int or not 0 <= number <= _MAX_VFS:
        raise ValueError(f'not a number of virtual functions: {number!r}')
    _write(_attribute(sysfs, card, 'sriov_numvfs'), str(number))


@context.entrypoint
def reset_function(sysfs: str, address: str) -> None:
    """Reset a function, and no other.

    Source: Documentation/ABI/testing/sysfs-bus-pci (``reset``).

    :raises ValueError: if an argument is not what it should be
    :raises OSError: if it was not reset
    """
    _write(_attribute(sysfs, address, 'reset'), '1')


@context.entrypoint
def reset_behind(sysfs: str, bridge: str) -> None:
    """Reset all that is behind a bridge.

    Source: Documentation/ABI/testing/sysfs-bus-pci (``reset_subordinate``).

    :param bridge: its PCI address
    :raises ValueError: if an argument is not what it should be
    :raises OSError: if it was not reset
    """
    _write(_attribute(sysfs, bridge, 'reset_subordinate'), '1')


@context.entrypoint
def unbind_driver(sysfs: str, address: str) -> None:
    """Take a function from the driver that has it.

    Source: Documentation/ABI/testing/sysfs-bus-pci (``unbind``).

    :raises ValueError: if an argument is not what it should be
    :raises OSError: if no driver has it, or the driver refuses
    """
    _write(_attribute(sysfs, address, 'driver/unbind'),
           str(model.PciAddress.parse(address)))


def _parent(text: str) -> str:
    try:
        return f'bus/pci/devices/{model.PciAddress.parse(text)}'
    except ValueError:
        if not identity.is_parent_name(text):
            raise
        return f'class/mdev_bus/{text}'


def _attribute(sysfs: str, address: str, name: str) -> str:
    return _path(sysfs, 'bus/pci/devices',
                 str(model.PciAddress.parse(address)), name)


def _path(sysfs: str, *parts: str) -> str:
    """Where an attribute is, which no link may lead out of the sysfs to."""
    path = os.path.join(_sysfs(sysfs), *parts)
    root = os.path.realpath(sysfs)
    if os.path.commonpath([root, os.path.realpath(path)]) != root:
        raise OSError(errno.EXDEV, f'{path} leads out of {sysfs}')
    return path


@context.entrypoint
def program_by_manager(sysfs: str, manager: str, bitstream: str) -> None:
    """Have an FPGA manager program a bitstream.

    The kernel looks for the file in /lib/firmware, beside the sysfs, where it
    is only while it is being programmed, and only for root.

    Sources: drivers/fpga/fpga-mgr.c of the kernels that have the ``firmware``
    attribute (its name is at most 255 bytes),
    Documentation/driver-api/firmware/fw_search_path.rst.

    :param manager: its name, ``fpga0``
    :param bitstream: the file
    :raises ValueError: if an argument is not what it should be
    :raises OSError: if the kernel refuses
    """
    if not re.fullmatch(r'[\w-]{1,64}', manager, re.ASCII):
        raise ValueError(f'not the name of an FPGA manager: {manager!r}')
    folder = os.path.join(os.path.dirname(os.path.abspath(_sysfs(sysfs))),
                          'lib/firmware')
    name = f'nova_accel-{manager}-{uuid.uuid4()}.bin'
    with _opened(bitstream) as source:
        os.makedirs(folder, exist_ok=True)
        placed = os.path.join(folder, name)
        try:
            with open(os.open(placed, os.O_WRONLY | os.O_CREAT | os.O_EXCL,
                              0o600), 'wb') as target:
                shutil.copyfileobj(source, target)
            _write(_path(sysfs, 'class/fpga_manager', manager, 'firmware'),
                   name)
        finally:
            if os.path.exists(placed):
                os.unlink(placed)


@context.entrypoint
def program_by_command(template: list[str], bitstream: str, address: str,
                       region: str, timeout: float,
                       ) -> tuple[int | None, bytes]:
    """Run a vendor's command that programs a bitstream.

    :param template: its words, with ``{bitstream}``, ``{address}`` and
        ``{region}`` for the other arguments; the first is its absolute path,
        and only root can write there
    :param bitstream: the file
    :param address: PCI address of the card
    :param region: the region's number on the card
    :param timeout: in seconds
    :returns: as :func:`nova_accel.host.commands.run`
    :raises ValueError: if an argument is not what it should be
    :raises OSError: if the command cannot be started
    """
    _check_executable(template[0])
    values = {'{bitstream}': os.path.abspath(bitstream),
              '{address}': str(model.PciAddress.parse(address)),
              '{region}': str(int(region))}
    with _opened(bitstream):
        return commands.run([template[0], *(
            _filled(word, values) for word in template[1:])], timeout)


def _filled(word: str, values: dict[str, str]) -> str:
    return re.sub('|'.join(map(re.escape, values)),
                  lambda match: values[match[0]], word)


def _check_executable(path: str) -> None:
    """Check that nobody but who has our rights decides what is run."""
    if not os.path.isabs(path):
        raise ValueError(f'not an absolute path: {path!r}')
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in (
            0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(f'{path!r} is not a file that only root can write')


def _opened(path: str):
    """A regular file that no link leads to, open for reading."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f'not a file: {path!r}')
    return open(descriptor, 'rb')


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

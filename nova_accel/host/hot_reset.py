# SPDX-License-Identifier: Apache-2.0
"""Reset all functions of a slot or bus through vfio.

The kernel resets them together if they all have a vfio driver, and if the
caller has opened all their IOMMU groups, which nobody else can open then.

Sources: include/uapi/linux/vfio.h (``VFIO_DEVICE_GET_PCI_HOT_RESET_INFO``,
``VFIO_DEVICE_PCI_HOT_RESET``, ``VFIO_DEVICE_BIND_IOMMUFD``, since Linux 6.6),
Documentation/driver-api/vfio.rst, drivers/vfio/pci/vfio_pci_core.c.
"""

import collections.abc
import contextlib
import errno
import fcntl
import os
import platform
import struct
import time

from nova_accel.core import model

#: The files of vfio, relative to the machine's root.
CONTAINER, GROUP = 'dev/vfio/vfio', 'dev/vfio/{}'
IOMMUFD, DEVICE = 'dev/iommu', 'dev/vfio/devices/{}'

# asm-generic/ioctl.h: _IO. PowerPC has a bit for "no transfer".
_IO = ((1 << 29 if platform.machine().startswith('ppc') else 0)
       | ord(';') << 8) + 100
SET_IOMMU, GET_STATUS, SET_CONTAINER = _IO + 2, _IO + 3, _IO + 4
GET_DEVICE, GET_INFO, HOT_RESET, BIND = _IO + 6, _IO + 12, _IO + 13, _IO + 18

#: VFIO_TYPE1v2_IOMMU, VFIO_TYPE1_IOMMU, VFIO_SPAPR_TCE_v2_IOMMU,
#: VFIO_SPAPR_TCE_IOMMU: those of the machine are tried in this order.
_IOMMUS = 3, 1, 7, 2
_VIABLE = 1

#: struct vfio_group_status, vfio_device_bind_iommufd, vfio_pci_hot_reset_info
#: and vfio_pci_hot_reset (both without their array), and
#: vfio_pci_dependent_device.
STATUS, BINDING = struct.Struct('=II'), struct.Struct('=IIiI')
HEADER, AFFECTED = struct.Struct('=III'), struct.Struct('=IHBB')

#: Seconds between tries while another user of sysfs has a device's lock.
_PAUSES = 0.05, 0.1, 0.2, 0.4

#: A bus with ARI has at most 256 functions.
_MOST = 256

Open = collections.abc.Callable[[str], int]


#: A name by function.
Names = collections.abc.Mapping[model.PciAddress, str]


def reset(names: Names, by_group: bool, open_file: Open) -> None:
    """Reset functions that have a vfio driver, and nothing else.

    :param names: of all functions of the slot or bus: their IOMMU group, or
        their vfio device (``vfio0``)
    :param by_group: whether they are IOMMU groups
    :param open_file: opens a file of vfio; a path as :data:`GROUP`
    :raises OSError: if another program has a file open, if the kernel would
        reset other functions as well, or if it does not reset them
    """
    with contextlib.ExitStack() as files:
        opened = _Files(files, open_file)
        device, fds = (_open_groups(names, opened) if by_group else
                       (_open_devices(names.values(), opened), ()))
        _check_affected(device, set(names))
        size = HEADER.size + 4 * len(fds)
        _locked(device, HOT_RESET, struct.pack(
            f'{HEADER.format}{len(fds)}i', size, 0, len(fds), *fds))


def _locked(descriptor: int, request: int, argument: bytes) -> int:
    """Call an ioctl for which the kernel locks devices.

    It does not wait for their locks (``vfio_pci_core_enable``,
    ``pci_reset_bus``), so this function tries again for a moment.
    """
    for pause in _PAUSES:
        with contextlib.suppress(BlockingIOError):
            return _call(descriptor, request, argument)
        time.sleep(pause)
    return _call(descriptor, request, argument)


def _call(descriptor: int, request: int, argument: bytes) -> int:
    # With a bytearray, ioctl returns what the kernel returns.
    answer: int = fcntl.ioctl(descriptor, request, bytearray(argument))
    return answer


class _Files:
    """Opens files that are closed at the end.

    :param files: closes them
    """

    def __init__(self, files: contextlib.ExitStack, open_file: Open) -> None:
        self._files = files
        self._open_file = open_file

    def open(self, path: str) -> int:
        try:
            return self.keep(self._open_file(path))
        except OSError as error:
            raise OSError(error.errno, f'/{path}: ' + (
                'another program has it open' if error.errno == errno.EBUSY
                else f'{error.strerror}')) from None

    def keep(self, descriptor: int) -> int:
        self._files.callback(os.close, descriptor)
        return descriptor


def _open_groups(groups: Names, files: _Files,
                 ) -> tuple[int, collections.abc.Collection[int]]:
    """Open groups and one of their devices.

    :returns: the descriptors of the device and of the groups
    """
    container = files.open(CONTAINER)
    fds = {group: files.open(GROUP.format(group))
           for group in dict.fromkeys(groups.values())}
    for group, descriptor in fds.items():
        status = fcntl.ioctl(descriptor, GET_STATUS, STATUS.pack(
            STATUS.size, 0))
        if not STATUS.unpack(status)[1] & _VIABLE:
            raise OSError(errno.EPERM, f'a function in IOMMU group {group} '
                          'has a driver that is not a vfio driver')
        fcntl.ioctl(descriptor, SET_CONTAINER, struct.pack('=i', container))
    _set_iommu(container)
    address, group = next(iter(groups.items()))
    return files.keep(_locked(
        fds[group], GET_DEVICE, f'{address}\0'.encode())), fds.values()


def _set_iommu(container: int) -> None:
    """Let the container use the machine's IOMMU: no device opens without."""
    for number, kind in enumerate(_IOMMUS, 1):
        try:
            fcntl.ioctl(container, SET_IOMMU, kind)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENODEV) or (
                    number == len(_IOMMUS)):
                raise


def _open_devices(devices: collections.abc.Iterable[str],
                  files: _Files) -> int:
    """Open devices with one iommufd; return the descriptor of one of them."""
    iommufd = files.open(IOMMUFD)
    paths = [DEVICE.format(device) for device in devices]
    fds = [files.open(path) for path in paths]
    for path, descriptor in zip(paths, fds, strict=True):
        try:
            _locked(descriptor, BIND, BINDING.pack(BINDING.size, 0, iommufd,
                                                   0))
        except OSError as error:
            raise OSError(error.errno, f'/{path} cannot be used, as if another'
                          f' program has it: {error.strerror}') from None
    return fds[0]


def _check_affected(device: int, unit: set[model.PciAddress]) -> None:
    """Check that the kernel would reset the functions and no other."""
    size = HEADER.size + _MOST * AFFECTED.size
    answer = bytearray(HEADER.pack(size, 0, 0).ljust(size, b'\0'))
    fcntl.ioctl(device, GET_INFO, answer)
    _size, _flags, count = HEADER.unpack_from(answer)
    found = {model.PciAddress(domain, bus, devfn >> 3, devfn & 7)
             for _owner, domain, bus, devfn in AFFECTED.iter_unpack(
                 answer[HEADER.size:HEADER.size + count * AFFECTED.size])}
    for wrong, what in ((found - unit, 'would also reset'),
                        (unit - found, 'would not reset')):
        if wrong:
            raise OSError(errno.EPERM, f'vfio {what} '
                          + ', '.join(map(str, sorted(wrong))))

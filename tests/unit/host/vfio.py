# SPDX-License-Identifier: Apache-2.0
"""A simulated vfio: what its ioctls do to functions below a bridge.

Sources: include/uapi/linux/vfio.h, drivers/vfio/pci/vfio_pci_core.c.
"""

import errno
import os
import pathlib
import shutil

from nova_accel.core import model
from nova_accel.host import hot_reset


class Vfio:
    """The files and ioctls of vfio on a simulated machine.

    :param root: of the machine
    :param reset: gets the names of the functions that are reset together
    :ivar busy: files that another program has open
    :ivar others: more functions that the kernel would reset
    :ivar iommu: the number of the machine's IOMMU (VFIO_SET_IOMMU)
    :ivar locked: how many times the kernel finds a device's lock taken
    :ivar viable: whether groups have no function with another driver
    """

    def __init__(self, root, reset, groups=True) -> None:
        self._root = pathlib.Path(root)
        self._reset = reset
        self._groups = groups
        self._bus = self._root / 'sys/bus/pci/devices'
        self.busy: set[str] = set()
        self.others: set[str] = set()
        self.iommu, self.viable, self.locked = 3, True, 0
        self._contained: set[str] = set()
        self._bound: set[str] = set()
        self._has_iommu = False
        for path in (hot_reset.CONTAINER, hot_reset.IOMMUFD):
            self._touch(self._root / path)

    def bind(self, name: str) -> None:
        """Create the files of a function that got a vfio driver."""
        place = self._bus / name
        number = name.replace(':', '').replace('.', '')
        (place / f'vfio-dev/vfio{number}').mkdir(parents=True, exist_ok=True)
        group = (place / 'iommu_group').readlink().name
        self._touch(self._root / (
            hot_reset.GROUP.format(group) if self._groups
            else hot_reset.DEVICE.format(f'vfio{number}')))

    def unbind(self, name: str) -> None:
        """Remove the vfio device of a function that lost its driver."""
        shutil.rmtree(self._bus / name / 'vfio-dev', ignore_errors=True)

    def open(self, path: str) -> int:
        """Open a file; the path is relative to the machine's root."""
        if path in self.busy:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return os.open(self._root / path, os.O_RDWR)

    def ioctl(self, descriptor: int, request: int, argument=0):
        path = os.path.relpath(os.readlink(f'/proc/self/fd/{descriptor}'),
                               self._root)
        if self.locked and request in (hot_reset.GET_DEVICE, hot_reset.BIND,
                                       hot_reset.HOT_RESET):
            self.locked -= 1
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return {hot_reset.GET_STATUS: self._status,
                hot_reset.SET_CONTAINER: self._set_container,
                hot_reset.SET_IOMMU: self._set_iommu,
                hot_reset.GET_DEVICE: self._get_device,
                hot_reset.BIND: self._bind_iommufd,
                hot_reset.GET_INFO: self._get_info,
                hot_reset.HOT_RESET: self._hot_reset,
                }[request](path, argument)

    def _status(self, path, argument):
        size, _flags = hot_reset.STATUS.unpack(argument)
        assert size == hot_reset.STATUS.size
        return hot_reset.STATUS.pack(size, self.viable and all(
            self._driver(name) in (None, 'vfio-pci')
            for name in self._members(path)))

    def _set_container(self, path, argument):
        container = int.from_bytes(argument, 'little')
        assert os.readlink(f'/proc/self/fd/{container}').endswith(
            hot_reset.CONTAINER)
        self._contained.add(path)

    def _set_iommu(self, path, kind):
        assert path == hot_reset.CONTAINER and self._contained
        if kind != self.iommu:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        self._has_iommu = True

    def _get_device(self, path, argument):
        name = bytes(argument).decode().rstrip('\0')
        assert self._has_iommu
        if name not in self._members(path):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        self._touch(self._root / 'dev' / name)
        return os.open(self._root / 'dev' / name, os.O_RDWR)

    def _bind_iommufd(self, path, argument):
        size, flags, iommufd, _id = hot_reset.BINDING.unpack(argument)
        assert (size, flags) == (hot_reset.BINDING.size, 0)
        assert os.readlink(f'/proc/self/fd/{iommufd}').endswith(
            hot_reset.IOMMUFD)
        self._bound.add(os.path.basename(path))
        return argument

    def _get_info(self, path, argument):
        size, _flags, _count = hot_reset.HEADER.unpack_from(argument)
        names = sorted({*self._on_bus(path), *self.others})
        assert size >= hot_reset.HEADER.size + 8 * len(names)
        hot_reset.HEADER.pack_into(argument, 0, size, 0, len(names))
        for number, name in enumerate(names):
            at = model.PciAddress.parse(name)
            hot_reset.AFFECTED.pack_into(
                argument, hot_reset.HEADER.size + 8 * number, 7, at.domain,
                at.bus, at.slot << 3 | at.function)
        return 0

    def _hot_reset(self, path, argument):
        size, flags, count = hot_reset.HEADER.unpack_from(argument)
        assert (size, flags) == (len(argument), 0)
        names = self._on_bus(path)
        fds = memoryview(argument)[hot_reset.HEADER.size:].cast('i').tolist()
        assert len(fds) == count == (len({*map(self._group, names)})
                                     if self._groups else 0)
        owned = {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))
                 for descriptor in fds}
        assert all(self._driver(name) == 'vfio-pci' for name in names)
        if not all(self._group(name) in owned if self._groups
                   else self._device(name) in self._bound for name in names):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._reset(names)
        return 0

    def _on_bus(self, path) -> set[str]:
        name = os.path.basename(path)
        if not self._groups:
            [name] = [place.name for place in self._bus.iterdir()
                      if (place / f'vfio-dev/{name}').exists()]
        return {below.name for below in (self._bus / name).resolve(
            ).parent.glob('0000:*')}

    def _members(self, path) -> set[str]:
        return {place.name for place in self._bus.iterdir()
                if self._group(place.name) == os.path.basename(path)}

    def _group(self, name) -> str:
        return (self._bus / name / 'iommu_group').readlink().name

    def _device(self, name) -> str:
        return os.listdir(self._bus / name / 'vfio-dev')[0]

    def _driver(self, name) -> str | None:
        link = self._bus / name / 'driver'
        return link.readlink().name if link.is_symlink() else None

    @staticmethod
    def _touch(path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

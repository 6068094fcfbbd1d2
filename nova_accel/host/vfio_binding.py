# SPDX-License-Identifier: Apache-2.0
"""Bind functions to vfio-pci for the time of a reset through vfio."""

import collections
import collections.abc
import contextlib
import dataclasses
import errno
import os
import threading

from nova_accel.core import model
from nova_accel.core import pci_class
from nova_accel.host import hot_reset
from nova_accel.host import tree as trees
from nova_accel.host import vfio

_DRIVER = 'vfio-pci'
_PCI = 'bus/pci'

#: Held during a reset, by the domain and the number of the bus. Another reset
#: must not take our driver for that of an operator.
_locks: dict[tuple[int, int], threading.Lock] = collections.defaultdict(
    threading.Lock)


@dataclasses.dataclass(frozen=True)
class Host:
    """What a reset uses of a machine.

    :ivar sysfs: path of its mount, or of a copy
    :ivar write: writes a text to an attribute; gets the parts of its path
        relative to the sysfs
    :ivar open_device: as :data:`nova_accel.host.hot_reset.Open`
    """

    sysfs: str
    write: collections.abc.Callable[..., None]
    open_device: hot_reset.Open


def reset(unit: collections.abc.Collection[model.PciAddress],
          host: Host) -> None:
    """Reset all functions of a slot or bus, and nothing else.

    Functions without a driver are bound to vfio-pci for the reset.

    :param unit: the functions, which have a vfio driver or none
    :raises ValueError: if they are not the functions of one bus, or if one is
        a bridge or has a driver of the host
    :raises OSError: as :func:`nova_accel.host.hot_reset.reset`, or if
        vfio-pci does not take a function
    """
    buses = {(address.domain, address.bus) for address in unit}
    if len(set(unit)) != len(unit) or len(buses) != 1:
        raise ValueError('not the functions of a bus: '
                         + ', '.join(map(str, unit)))
    functions = {address: _Function(address, host) for address in unit}
    with _locks[buses.pop()], contextlib.ExitStack() as bound:
        for function in functions.values():
            function.check()
        for function in functions.values():
            bound.enter_context(function.bound())
        by_group = trees.Directory(host.sysfs).has(vfio.GROUPS)
        hot_reset.reset({address: function.file(by_group)
                         for address, function in functions.items()},
                        by_group, host.open_device)


class _Function:
    """A function that vfio resets."""

    def __init__(self, address: model.PciAddress, host: Host) -> None:
        self._address = str(address)
        self._host = host
        self._path = f'{_PCI}/devices/{address}'

    def check(self) -> None:
        """Check that vfio may get the function.

        Source: Documentation/ABI/testing/sysfs-driver-vfio (``vfio-dev``,
        since Linux 6.1).

        :raises ValueError: if it is a bridge or has a driver of the host
        """
        is_bridge = int(self._read('class'), 16) >> 16 == pci_class.BRIDGE
        if is_bridge or self._has('driver') and not (
                self._has('vfio-dev') or 'vfio' in self._target('driver')):
            raise ValueError(f'{self._address} is a bridge or has a driver of '
                             'the host')

    @contextlib.contextmanager
    def bound(self):
        """Bind vfio-pci to the function for a while if it has no driver.

        Sources: Documentation/ABI/testing/sysfs-bus-pci (``driver_override``,
        ``unbind``), drivers/base/bus.c (``drivers_probe``).
        """
        if self._has('driver'):
            yield
            return
        before = self._read('driver_override').strip()
        self._override(_DRIVER)
        try:
            self._host.write(self._address, _PCI, 'drivers_probe')
            if not self._has('driver'):
                raise OSError(errno.ENODEV,
                              f'{_DRIVER} does not take {self._address}')
            try:
                yield
            finally:
                if self._target('driver') == _DRIVER:
                    self._host.write(self._address, self._path,
                                     'driver/unbind')
        finally:
            self._override('\n' if before == '(null)' else before)

    def _override(self, text: str) -> None:
        self._host.write(text, self._path, 'driver_override')

    def file(self, by_group: bool) -> str:
        """Return the name of the IOMMU group, or of the vfio device."""
        if by_group:
            return self._target('iommu_group')
        [name] = os.listdir(self._in('vfio-dev'))
        return name

    def _in(self, name: str) -> str:
        return os.path.join(self._host.sysfs, self._path, name)

    def _has(self, name: str) -> bool:
        return os.path.lexists(self._in(name))

    def _read(self, name: str) -> str:
        with open(self._in(name)) as file:
            return file.read()

    def _target(self, name: str) -> str:
        """Return the last part of what a symbolic link names."""
        return os.path.basename(os.readlink(self._in(name)))

# SPDX-License-Identifier: Apache-2.0
"""Bind functions to vfio-pci for the time of a reset through vfio."""

import collections
import collections.abc
import contextlib
import dataclasses
import os
import threading

from nova_accel.core import model
from nova_accel.core import pci_class
from nova_accel.host import driver_binding
from nova_accel.host import hot_reset
from nova_accel.host import tree as trees
from nova_accel.host import vfio

_DRIVER = 'vfio-pci'

#: Held during a reset, by the domain and the number of the bus. Another reset
#: must not take our driver for that of an operator.
_locks: dict[tuple[int, int], threading.Lock] = collections.defaultdict(
    threading.Lock)


@dataclasses.dataclass(frozen=True)
class Host:
    """What a reset uses of a machine.

    :ivar sysfs: path of its mount, or of a copy
    :ivar write: as :data:`nova_accel.host.driver_binding.Write`
    :ivar open_device: as :data:`nova_accel.host.hot_reset.Open`
    """

    sysfs: str
    write: driver_binding.Write
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
    functions = {address: _Function(address, host.sysfs, host.write)
                 for address in unit}
    with _locks[buses.pop()], contextlib.ExitStack() as bound:
        for function in functions.values():
            function.check()
        for function in functions.values():
            bound.enter_context(function.ready())
        by_group = trees.Directory(host.sysfs).has(vfio.GROUPS)
        hot_reset.reset({address: function.file(by_group)
                         for address, function in functions.items()},
                        by_group, host.open_device)


class _Function(driver_binding.Function):
    """A function that vfio resets."""

    def check(self) -> None:
        """Check that vfio may get the function.

        Source: Documentation/ABI/testing/sysfs-driver-vfio (``vfio-dev``,
        since Linux 6.1).

        :raises ValueError: if it is a bridge or has a driver of the host
        """
        is_bridge = int(self.read('class'), 16) >> 16 == pci_class.BRIDGE
        if is_bridge or self.driver and not (
                self.has('vfio-dev') or 'vfio' in self.driver):
            raise ValueError(f'{self.address} is a bridge or has a driver of '
                             'the host')

    def ready(self) -> contextlib.AbstractContextManager[None]:
        """Bind vfio-pci to the function for a while if it has no driver."""
        return contextlib.nullcontext() if self.driver else self.bound(_DRIVER)

    def file(self, by_group: bool) -> str:
        """Return the name of the IOMMU group, or of the vfio device."""
        if by_group:
            return self.target('iommu_group')
        [name] = os.listdir(self.path('vfio-dev'))
        return name

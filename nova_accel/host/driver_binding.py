# SPDX-License-Identifier: Apache-2.0
"""Bind a function to another driver for a while.

Sources: Documentation/ABI/testing/sysfs-bus-pci (``driver_override``,
``unbind``), drivers/base/bus.c (``drivers_probe``).
"""

import collections.abc
import contextlib
import errno
import os

from nova_accel.core import model

_PCI = 'bus/pci'
_NONE = '(null)'

#: Writes a text to an attribute; gets the parts of its path relative to the
#: sysfs.
Write = collections.abc.Callable[..., None]


class Function:
    """A function in sysfs, and its driver.

    :param sysfs: path of its mount, or of a copy
    """

    def __init__(self, address: model.PciAddress, sysfs: str,
                 write: Write) -> None:
        self.address = str(address)
        self._sysfs = sysfs
        self._write = write
        self._path = f'{_PCI}/devices/{address}'

    @property
    def driver(self) -> str:
        """The name of its driver, '' without."""
        return self.target('driver') if self.has('driver') else ''

    @contextlib.contextmanager
    def bound(self, driver: str) -> collections.abc.Iterator[None]:
        """Bind the function to a driver; afterwards, to the one that it had.

        :raises OSError: if the driver does not take it
        """
        before, override = self.driver, self.read('driver_override').strip()
        if before == driver != override:
            yield
            return
        # What a killed process of ours left does not count.
        override = '' if override in (driver, _NONE) else override
        self._override(driver)
        try:
            if before != driver:
                self._unbind()
                self._probe()
            if self.driver != driver:
                raise OSError(errno.ENODEV,
                              f'{driver} does not take {self.address}')
            try:
                yield
            finally:
                if self.driver == driver:
                    self._unbind()
        finally:
            self._override(override or '\n')
            if before:
                self._probe()

    def _unbind(self) -> None:
        if self.has('driver'):
            self._write(self.address, self._path, 'driver/unbind')

    def _probe(self) -> None:
        self._write(self.address, _PCI, 'drivers_probe')

    def _override(self, text: str) -> None:
        self._write(text, self._path, 'driver_override')

    def has(self, name: str) -> bool:
        """Whether it has an attribute or a link."""
        return os.path.lexists(self.path(name))

    def read(self, name: str) -> str:
        """Return the text of an attribute."""
        with open(self.path(name)) as file:
            return file.read()

    def target(self, name: str) -> str:
        """Return the last part of what a symbolic link names."""
        return os.path.basename(os.readlink(self.path(name)))

    def path(self, name: str) -> str:
        """Return the path of an attribute or a link."""
        return os.path.join(self._sysfs, self._path, name)

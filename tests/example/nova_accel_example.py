# SPDX-License-Identifier: Apache-2.0
"""An example of a kind in its own package: cards with a power mode.

Their driver has an attribute ``power_mode`` for each function, ``eco`` or
``full``. A guest gets a function at full power; after use it returns to eco.
"""

import collections.abc
import os
import typing

from oslo_privsep import priv_context

from nova_accel import plugin

ATTRIBUTE, ECO, FULL = 'power_mode', 'eco', 'full'

context = priv_context.PrivContext(
    'nova_accel_example', cfg_section='nova_accel_example_privileged',
    pypath=f'{__name__}.context', capabilities=[])


@context.entrypoint
def set_mode_as_root(address: str, mode: str) -> None:
    """Write a function's mode; the caller cannot choose the sysfs."""
    set_mode('/sys', address, mode)


def set_mode(sysfs: str, address: str, mode: str) -> None:
    """Write a function's mode; refuse any other mode or path."""
    if mode not in (ECO, FULL):
        raise ValueError(f'not a mode: {mode!r}')
    path = os.path.join(sysfs, 'bus/pci/devices',
                        str(plugin.PciAddress.parse(address)), ATTRIBUTE)
    with open(path, 'r+') as file:
        file.write(f'{mode}\n')
        file.truncate()


@typing.final
class Cards(plugin.Enumerator, plugin.Preparer):
    """Enumerator and Preparer of cards with a power mode."""

    def __init__(self, tree: plugin.Tree) -> None:
        self._tree = tree

    def pools(self, function: plugin.Function, entry: plugin.Entry,
              machine: plugin.Machine,
              ) -> collections.abc.Iterator[plugin.Pool]:
        mode = self._mode(function.address)
        if mode not in (ECO, FULL):
            raise plugin.Refused(f'its {ATTRIBUTE} is {plugin.quote(mode)}',
                                 'load the driver that has power modes')
        if mode == FULL and entry.setting('eco_only'):
            raise plugin.Refused(f'its {ATTRIBUTE} is {FULL}, but its entry '
                                 'says eco_only')
        yield plugin.Pool((machine.bundle(function),),
                          resource_class='CUSTOM_POWER_CARD')

    def prepare(self, device: plugin.Hostdev, item: plugin.Offered,
                config: plugin.DeviceConfig) -> None:
        self._write(device.address, FULL)

    def prepared(self, host: plugin.Host) -> set[plugin.Address]:
        return {address for item in host.devices for region in item.regions
                if region.kind == 'example' for unit in region.units
                for address in unit if self._mode(address) == FULL}

    def release(self, address: plugin.Address) -> None:
        self._write(address, ECO)

    def _mode(self, address: plugin.Address) -> str:
        path = plugin.function_path(self._tree, address)
        return (self._tree.text(f'{path}/{ATTRIBUTE}') or '').strip()

    def _write(self, address: plugin.Address, mode: str) -> None:
        sysfs = plugin.sysfs_path(self._tree)
        try:
            if plugin.is_live(self._tree):
                set_mode_as_root(str(address), mode)
            else:
                set_mode(sysfs, str(address), mode)
        except OSError as error:
            raise plugin.AssignmentError(
                f'device {address}', f'its {ATTRIBUTE} cannot be {mode}: '
                f'{error.strerror}') from None


def _read_flag(value: typing.Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError('is neither true nor false')
    return value


KIND = plugin.Kind(open=Cards, keys={'eco_only': _read_flag})

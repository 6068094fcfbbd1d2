# SPDX-License-Identifier: Apache-2.0
"""Plugins with wrong types.

mypy has to find each fault: it fails if it does not need an "ignore" that is
here.
"""

import collections.abc
import typing

from nova_accel import plugin


class Cards(plugin.Enumerator, plugin.Preparer, plugin.Examiner):
    def __init__(self, tree: plugin.Tree) -> None:
        self._tree = tree

    def pools(  # type: ignore[override]
            self, function: plugin.Function, entry: plugin.Entry,
            machine: plugin.Machine) -> plugin.Pool:
        return plugin.Pool(((function.ids,),))  # type: ignore[arg-type]

    def prepare(  # type: ignore[override]
            self, device: plugin.Hostdev, item: plugin.Offered) -> None:
        self._tree.write(item)  # type: ignore[attr-defined]

    def prepared(  # type: ignore[override]
            self, host: plugin.Host) -> set[str]:
        return {device.ids for device in host.devices}

    def release(  # type: ignore[override]
            self, address: plugin.PciAddress) -> None:
        """Undo it."""

    def examine(  # type: ignore[override]
            self, function: plugin.Function) -> bool:
        return function.vfio


@typing.final
class Incomplete(  # type: ignore[misc]
        plugin.Enumerator, plugin.Preparer, plugin.Inspector):
    """It cannot release what it prepares, nor recognise it."""

    def __init__(self, tree: plugin.Tree) -> None:
        """Keep nothing."""

    def pools(self, function: plugin.Function, entry: plugin.Entry,
              machine: plugin.Machine) -> list[plugin.Pool]:
        return []

    def prepare(self, device: plugin.Hostdev, item: plugin.Offered,
                config: plugin.DeviceConfig) -> None:
        """Prepare it."""

    def prepared(self, host: plugin.Host) -> list[plugin.Address]:
        return []


class Others:
    """It has no base: its methods are compared where it is opened."""

    def __init__(self, tree: plugin.Tree) -> None:
        """Keep nothing."""

    def pools(self, function: plugin.Function, entry: plugin.Entry,
              machine: plugin.Machine) -> collections.abc.Iterable[str]:
        return [function.ids]


@typing.final
class Partitions(plugin.Fabric):  # type: ignore[misc]
    """It has one of five methods."""

    def __init__(self, definition: plugin.Definition,
                 operations: int) -> None:
        self._definition = definition

    def partitions(self) -> list[int]:  # type: ignore[override]
        return [*self._definition.modules]


def _read_power(value: int) -> int:
    return value


def _command(definition: plugin.Definition, operation: str) -> list[str]:
    return [operation]


KIND = plugin.Kind(
    open=Others,  # type: ignore[arg-type]
    keys={'power': _read_power,  # type: ignore[dict-item]
          'words': str.split})  # type: ignore[dict-item]
MANAGER = plugin.FabricManager(
    open=Partitions,  # type: ignore[arg-type]
    keys={'address': int},  # type: ignore[dict-item]
    command=_command)  # type: ignore[arg-type]

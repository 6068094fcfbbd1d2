# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's Fabric Manager, asked with its command fmpm.

It activates partitions for whole cards. For vGPUs, Fabric Manager has to be
told their virtual functions, which only its SDK can do.
"""

import collections.abc
import typing

from nova_accel.core import model
from nova_accel.core.fabric import definition
from nova_accel.core.fabric import fmpm
from nova_accel.core.fabric import manager


@typing.final
class Fmpm(manager.Fabric):
    """The Fabric of a machine.

    :param settings: of ``[nova_accel] fabric_manager``
    :param operations: those on the machine
    """

    def __init__(self, settings: manager.Definition,
                 operations: manager.Operations) -> None:
        self._text = settings.text
        self._operations = operations

    def partitions(self) -> collections.abc.Sequence[manager.Partition]:
        return fmpm.read_partitions(self._run(fmpm.LIST), _thing(fmpm.LIST))

    def activate(self, partition: int,
                 functions: collections.abc.Sequence[model.PciAddress] = (),
                 ) -> None:
        if functions:
            raise manager.FabricError(
                manager.Failure.NOT_SUPPORTED, _thing(fmpm.ACTIVATE),
                'fmpm cannot activate a partition for virtual functions',
                'vGPUs need a fabric manager that uses the SDK of Fabric '
                'Manager')
        self._run(fmpm.ACTIVATE, partition)

    def deactivate(self, partition: int) -> None:
        self._run(fmpm.DEACTIVATE, partition)

    def restore(self, active: collections.abc.Collection[int]) -> None:
        self._run(fmpm.RESTORE, *sorted(active))

    def failed_links(self) -> collections.abc.Sequence[manager.FailedLinks]:
        return fmpm.read_failed_links(self._run(fmpm.FAILED_LINKS),
                                      _thing(fmpm.FAILED_LINKS))

    def _run(self, operation: str, *partitions: int) -> str:
        """Return what the command printed.

        :raises manager.FabricError: if it failed
        """
        thing = _thing(operation, *partitions)
        if not all(0 <= number < fmpm.MAX_PARTITIONS
                   for number in partitions):
            raise manager.FabricError(
                manager.Failure.UNKNOWN_PARTITION, thing,
                'fmpm knows no such partition')
        try:
            code, output = self._operations.run_fabric_manager(
                self._text, operation, list(partitions))
        except Exception as error:
            # The command cannot be run, or the helper that runs it.
            raise manager.FabricError(
                manager.Failure.UNREACHABLE, thing,
                str(error) or repr(error)) from None
        text = output.decode('utf-8', 'replace')
        if failed := fmpm.failure(operation, code, text, thing):
            raise failed
        return text


def _thing(operation: str, *partitions: int) -> str:
    return ' '.join([f'{definition.OPTION}: fmpm: {operation}',
                     *map(str, partitions)])


MANAGER = manager.FabricManager(open=Fmpm, keys=fmpm.KEYS,
                                command=fmpm.command)

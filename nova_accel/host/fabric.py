# SPDX-License-Identifier: Apache-2.0
"""Ask the host's fabric manager, and find the cards of its partitions."""

import collections.abc
import contextlib
import dataclasses
import logging
import math
import os
import pathlib
import time
import typing

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.fabric import definition
from nova_accel.core.fabric import located
from nova_accel.core.fabric import manager
from nova_accel.core.fabric import module_map
from nova_accel.host import commands
from nova_accel.host import loader
from nova_accel.host import operate

LOG = logging.getLogger(__name__)

#: Callers may have to wait for a manager that hangs. Where a failure took
#: longer than the first number of seconds, the manager is not asked for the
#: second number.
_QUICK, _PAUSE = 2, 90

# Failures after which the manager would not do anything else either.
_SILENT = {manager.Failure.UNREACHABLE, manager.Failure.TIMED_OUT,
           manager.Failure.NOT_READY}

_UNLISTED = model.Withheld(
    'the fabric manager has no partition with it: it or a switch was broken '
    'when the manager started', 'look at the log of the fabric manager, and '
    'restart it when that is mended')


def kept(state_path: str, host: str) -> str | None:
    """Return the file in which a compute node keeps the cards by module.

    :param state_path: a directory that several hosts can share, '' for none
    :param host: the name that Nova has for the host
    """
    return state_path and os.path.join(state_path, 'nova_accel', 'modules',
                                       f'{host}.json') or None


class _Checked:
    """A Fabric whose methods raise FabricError only.

    A manager of another package may raise anything.
    """

    def __init__(self, fabric: manager.Fabric) -> None:
        self._fabric = fabric

    def __getattr__(self, name: str,
                    ) -> collections.abc.Callable[..., typing.Any]:
        def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
            try:
                return getattr(self._fabric, name)(*args, **kwargs)
            except manager.FabricError:
                raise
            except Exception as error:
                raise manager.FabricError(
                    manager.Failure.OTHER, definition.OPTION,
                    str(error) or repr(error)) from None
        return call


class Switches:
    """The switched fabric of a host, as its manager lists it.

    It keeps the last list. A host without the option pays nothing.

    :param operations: returns the operations on the machine
    :param kept: the file with the cards by module, None for none
    :param writes: whether that file is written
    """

    def __init__(self,
                 operations: collections.abc.Callable[[], operate.Operations],
                 kept: str | os.PathLike[str] | None = None,
                 writes: bool = True) -> None:
        self._operations = operations
        self._kept = pathlib.Path(kept) if kept else None
        self._writes = writes
        self._text = ''
        self._settings = definition.NONE
        self._unusable: errors.AccelError | None = None
        self._known = module_map.Known()
        self._is_loaded = False
        self._asked: frozenset[model.PciAddress] = frozenset()
        self._not_told: list[str] = []
        self._ask_again = -math.inf
        self._partitions: tuple[manager.Partition, ...] | None = None
        self._failed: collections.abc.Sequence[manager.FailedLinks] = ()
        self._links_unknown = ''
        self._silent = ''
        self._next = -math.inf
        self._fabric: manager.Fabric | None = None

    def configure(self, text: str) -> errors.AccelError | None:
        """Take over the value of the option.

        :returns: why it cannot be used, None if it can
        """
        if text != self._text:
            settings, opened = definition.NONE, None
            unusable: errors.AccelError | None = None
            try:
                managers = loader.load_fabric_managers()
                if parsed := definition.parse(text, managers):
                    settings = parsed
                    opened = typing.cast(manager.Fabric, _Checked(
                        managers[settings.manager].open(
                            settings, self._operations())))
            except errors.AccelError as error:
                unusable = error
            except Exception as error:
                # A manager of another package may raise anything.
                unusable = errors.EntryError(
                    definition.OPTION,
                    f'its manager cannot be opened: {error!r}')
            self._settings, self._fabric = settings, opened
            self._unusable = unusable
            self._partitions, self._silent = None, ''
            self._failed, self._links_unknown = (), ''
            self._asked, self._not_told = frozenset(), []
            self._next = -math.inf
            self._text = text
        return self._unusable

    def refresh(self) -> None:
        """Ask the manager for its partitions, if there is one.

        If it does not answer, those that it listed before are kept.
        """
        if self._fabric is not None and not self.is_left_alone:
            with contextlib.suppress(manager.FabricError):
                self.ask()

    @property
    def is_left_alone(self) -> bool:
        """Whether the manager hung a moment ago."""
        return time.monotonic() < self._next

    @property
    def fabric(self) -> manager.Fabric:
        """The manager's Fabric.

        :raises manager.FabricError: if the option is not set, or cannot be
            used
        """
        if self._fabric is None:
            why = self._unusable or errors.EntryError(definition.OPTION,
                                                      'is not set')
            raise manager.FabricError(manager.Failure.NOT_SUPPORTED,
                                      why.thing, why.reason, why.remedy)
        return self._fabric

    def ask(self) -> None:
        """Ask the manager for its partitions.

        :raises manager.FabricError: if it does not answer, or as
            :attr:`fabric`
        """
        fabric = self.fabric
        began = time.monotonic()
        try:
            self._partitions = tuple(fabric.partitions())
            self._failed, self._links_unknown = _failed_links(fabric)
            self._silent = ''
        except manager.FabricError as error:
            self._silent = str(error)
            now = time.monotonic()
            self._next = now + (_PAUSE if now - began > _QUICK else 0)
            raise

    def locate(self, functions: collections.abc.Sequence[model.Function],
               ) -> located.Located:
        """Return the partitions that were listed last, and their cards.

        The manager is asked if it was not before.

        :param functions: those of the machine
        """
        if self._fabric is None:
            return located.NONE
        if self._partitions is None and not self._silent:
            self.refresh()
        problems = [*filter(None, [self._silent, self._links_unknown])]
        said = self._learn(functions)
        if self._partitions is None:
            listed = self._known.partitions
        else:
            listed = self._partitions
            self._know(partitions=module_map.plain(listed))
        found = located.locate(
            listed, self._settings.modules, self._known.modules
            if self._settings.modules_command else {}, functions,
            self._failed)
        return found.with_problems([*problems, *said])

    def withheld(self, functions: collections.abc.Sequence[model.Function],
                 ) -> dict[model.Address, model.Withheld]:
        """Return the cards that are in no partition, with reason and remedy.

        The parameter is that of :meth:`locate`.
        """
        unlisted = self.locate(functions).unlisted
        return {function.address: _UNLISTED for function in functions
                if str(function.address) in unlisted}

    def _learn(self, functions: collections.abc.Collection[model.Function],
               ) -> list[str]:
        """Learn the cards by module from the driver of the host.

        The command is run when it can see cards that it could not before, and
        a while after it has failed.

        :returns: why that failed
        """
        machine = module_map.cards(functions)
        if not self._is_loaded:
            self._known, self._is_loaded = self._load(), True
            if self._known.cards != machine:
                self._known = module_map.Known(cards=machine)
        if not self._settings.modules_command:
            return []
        visible = module_map.visible(functions)
        if self._not_told and time.monotonic() > self._ask_again:
            self._asked = frozenset()
        missing = visible - self._asked - frozenset(
            self._known.modules.values())
        self._asked &= visible
        if missing:
            self._asked |= visible
            try:
                self._know(cards=machine, modules=module_map.add(
                    self._known, self._modules(), machine))
                self._not_told = []
            except Exception as error:
                # The command has failed, or the helper that runs it.
                self._ask_again = time.monotonic() + _PAUSE
                self._not_told = [f'{definition.OPTION}: modules_command: '
                                  f'{str(error) or repr(error)}']
        return self._not_told

    def _know(self, **facts: typing.Any) -> None:
        """Keep facts that are new, also for the next nova-compute."""
        known = dataclasses.replace(self._known, **facts)
        if known != self._known:
            self._known = known
            self._save()

    def _modules(self) -> module_map.Modules:
        code, output = self._operations().read_modules(self._text)
        if failed := commands.describe(self._settings.modules_command[0],
                                       code, output, module_map.TIMEOUT):
            raise ValueError(failed)
        return module_map.read(output.decode('utf-8', 'replace'))

    def _load(self) -> module_map.Known:
        with contextlib.suppress(OSError):
            if self._kept:
                return module_map.loads(self._kept.read_text())
        return module_map.Known()

    def _save(self) -> None:
        if not self._kept or not self._writes:
            return
        new = self._kept.with_suffix('.new')
        try:
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(self._known.dumps())
            os.replace(new, self._kept)
        except OSError as error:
            LOG.warning('Could not write %s: partitions of the fabric manager '
                        'are not known after a restart of nova-compute while '
                        'the GPUs are bound to vfio-pci: %s', self._kept,
                        error)


def _failed_links(fabric: manager.Fabric) -> tuple[
        collections.abc.Sequence[manager.FailedLinks], str]:
    """Return the failed links, and why they are not known, or ''.

    They are only said to have failed: partitions can be activated without
    knowing.
    """
    try:
        return fabric.failed_links(), ''
    except manager.FabricError as error:
        if error.failure in _SILENT:
            raise
        return (), ('' if error.failure is manager.Failure.NOT_SUPPORTED
                    else str(error))

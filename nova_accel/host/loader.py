# SPDX-License-Identifier: Apache-2.0
"""Load kinds and fabric managers by their entry points."""

import collections.abc
import functools
import logging
import typing

import stevedore

from nova_accel.core import kind as kinds
from nova_accel.core import model
from nova_accel.core.fabric import manager
from nova_accel.host import tree as trees

LOG = logging.getLogger(__name__)

_Plugin = typing.TypeVar('_Plugin')


@functools.cache
def load() -> collections.abc.Mapping[str, kinds.Kind]:
    """Return the installed kinds by name.

    A kind that cannot be loaded is ignored; the log says why.
    """
    return _load('kind', kinds.NAMESPACE, kinds.Kind)


@functools.cache
def load_fabric_managers() -> collections.abc.Mapping[
        str, manager.FabricManager]:
    """Return the installed fabric managers by name, as :func:`load` does."""
    return _load('fabric manager', manager.NAMESPACE, manager.FabricManager)


def _load(word: str, namespace: str, wanted: type[_Plugin],
          ) -> dict[str, _Plugin]:
    found: dict[str, _Plugin] = {}
    installed: stevedore.ExtensionManager[typing.Any] = (
        stevedore.ExtensionManager(namespace))
    for extension in installed:
        if not isinstance(extension.plugin, wanted):
            LOG.error('Ignored %s %s: %s is not a %s.%s', word, extension.name,
                      extension.entry_point_target, wanted.__module__,
                      wanted.__name__)
        elif extension.name in found:
            LOG.error('%s %s is installed twice: ignored %s',
                      word.capitalize(), extension.name,
                      extension.entry_point_target)
        else:
            found[extension.name] = extension.plugin
    return found


def open_all(tree: trees.Tree) -> dict[str, kinds.Enumerator]:
    """Open each installed kind on a tree."""
    return {name: _open(kind, tree) for name, kind in load().items()}


def _open(kind: kinds.Kind, tree: trees.Tree) -> kinds.Enumerator:
    try:
        return kind.open(tree)
    except Exception as error:
        return _Broken(error)


class _Broken:
    """An Enumerator in place of a kind that could not be opened."""

    def __init__(self, error: Exception):
        self._error = error

    def pools(self, function: model.Function, entry: kinds.Entry,
              machine: kinds.Machine) -> collections.abc.Iterable[kinds.Pool]:
        raise self._error

# SPDX-License-Identifier: Apache-2.0
"""Kinds, found by their entry points and opened on a machine."""

import collections.abc
import functools
import logging

import stevedore

from nova_accel.core import kind as kinds
from nova_accel.core import model
from nova_accel.host import tree as trees

LOG = logging.getLogger(__name__)


@functools.cache
def load() -> collections.abc.Mapping[str, kinds.Kind]:
    """The kinds that are installed, by name.

    One that cannot be loaded is left out; the log says why.
    """
    found: dict[str, kinds.Kind] = {}
    for extension in stevedore.ExtensionManager(kinds.NAMESPACE):
        if not isinstance(extension.plugin, kinds.Kind):
            LOG.error('Kind %s: %s is no nova_accel.core.kind.Kind; it is '
                      'left out', extension.name,
                      extension.entry_point_target)
        elif extension.name in found:
            LOG.error('Kind %s: there are two of that name; %s is left out',
                      extension.name, extension.entry_point_target)
        else:
            found[extension.name] = extension.plugin
    return found


def open_all(tree: trees.Tree) -> dict[str, kinds.Enumerator]:
    """Each kind, opened on a machine."""
    return {name: _open(kind, tree) for name, kind in load().items()}


def _open(kind: kinds.Kind, tree: trees.Tree) -> kinds.Enumerator:
    try:
        return kind.open(tree)
    except Exception as error:
        return _Broken(error)


class _Broken:
    """Stands for a kind that cannot be opened."""

    def __init__(self, error: Exception):
        self._error = error

    def pools(self, function: model.Function, entry: kinds.Entry,
              machine: kinds.Machine) -> collections.abc.Iterable[kinds.Pool]:
        raise self._error

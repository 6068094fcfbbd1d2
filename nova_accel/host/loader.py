# SPDX-License-Identifier: Apache-2.0
"""Load kinds by their entry points and open them on a tree."""

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
    """Return the installed kinds by name.

    A kind that cannot be loaded is ignored; the log says why.
    """
    found: dict[str, kinds.Kind] = {}
    for extension in stevedore.ExtensionManager(kinds.NAMESPACE):
        if not isinstance(extension.plugin, kinds.Kind):
            LOG.error('Ignored kind %s: %s is not a '
                      'nova_accel.core.kind.Kind', extension.name,
                      extension.entry_point_target)
        elif extension.name in found:
            LOG.error('Kind %s is installed twice: ignored %s',
                      extension.name, extension.entry_point_target)
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

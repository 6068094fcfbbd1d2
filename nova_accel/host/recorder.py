# SPDX-License-Identifier: Apache-2.0
"""A recording of a machine: exactly what the host reader reads of it.

The reader is run over a Tree that takes notes, so a recording cannot fall
behind the reader. What identifies the machine is taken out of it.
"""

import collections.abc
import posixpath

from nova_accel.core import model
from nova_accel.host import anonymous
from nova_accel.host import fpga
from nova_accel.host import loader
from nova_accel.host import pci
from nova_accel.host import reader
from nova_accel.host import tree as trees

# Attributes that tell one machine from another; recorded only when asked.
_IDENTIFYING = ('unique_id', 'serial_number', 'address', 'wwid', 'uuid')


class _Notes:
    """A Tree that remembers all it was asked."""

    def __init__(self, tree: trees.Tree):
        self._tree = tree
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        #: The names of files, which the reader knows.
        self.asked: set[str] = set()
        self._names: set[str] = set()

    @property
    def folders(self) -> set[str]:
        """Names of which nothing more was asked."""
        return self._names - self.files.keys()

    def names(self, path: str) -> list[str]:
        names = self._tree.names(path)
        for name in names:
            child = posixpath.join(path, name)
            # What is no link is kept as a name; its content, if it is read.
            if self.link(child) is None:
                self._names.add(child)
        return names

    def text(self, path: str) -> str | None:
        self.asked.add(posixpath.basename(path))
        text = self._tree.text(path)
        if text is not None:
            self.files[path] = text
        return text

    def link(self, path: str) -> str | None:
        target = self._tree.link(path)
        if target is not None:
            self.links[path] = target
        return target

    def has(self, path: str) -> bool:
        self.asked.add(posixpath.basename(path))
        there = self._tree.has(path)
        if there and self.link(path) is None:
            self._names.add(path)
        return there


def record(tree: trees.Tree, identifying: bool = False) -> trees.Recording:
    """Record a machine.

    :param identifying: keep what tells this machine from others of its kind
    """
    notes = _Notes(tree)
    host = reader.read(notes)
    of_kinds = [name for kind in loader.load().values()
                for name in kind.files]
    _note(notes, host, of_kinds)
    # Of what only some kinds look at.
    fpga.read(notes)
    if identifying:
        _note(notes, host, _IDENTIFYING)
    recording = trees.Recording(notes.files, notes.links, notes.folders)
    return recording if identifying else anonymous.anonymous(
        recording, notes.asked, of_kinds)


def _note(notes: _Notes, host: model.Host,
          files: collections.abc.Collection[str]) -> None:
    """Read files of each function that has them."""
    for function in host.functions:
        if isinstance(function.address, model.ParentName):
            continue
        path = pci.path(notes, function.address)
        for name in files:
            notes.text(f'{path}/{name}')

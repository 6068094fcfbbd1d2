# SPDX-License-Identifier: Apache-2.0
"""Record a machine: exactly the files that the host reader reads.

The reader runs over a Tree that notes each path that is read, so a recording
always has what the reader needs. Identifying names and contents are removed.
"""

import collections.abc
import posixpath

from nova_accel.core import model
from nova_accel.host import anonymous
from nova_accel.host import fpga
from nova_accel.host import health
from nova_accel.host import loader
from nova_accel.host import pci
from nova_accel.host import reader
from nova_accel.host import tree as trees

# Attributes that identify a machine; recorded only on request.
_IDENTIFYING = ('unique_id', 'serial_number', 'address', 'wwid', 'uuid')


class _Notes:
    """A Tree that notes what is read of another Tree."""

    def __init__(self, tree: trees.Tree):
        self._tree = tree
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        #: Names of files that the reader asks for.
        self.asked: set[str] = set()
        self._names: set[str] = set()

    @property
    def folders(self) -> set[str]:
        """Paths that were listed, but not read as files."""
        return self._names - self.files.keys()

    def names(self, path: str) -> list[str]:
        names = self._tree.names(path)
        for name in names:
            child = posixpath.join(path, name)
            # A link is noted with its target, anything else by its path; the
            # content of a file is noted when it is read.
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
        exists = self._tree.has(path)
        if exists and self.link(path) is None:
            self._names.add(path)
        return exists


def record(tree: trees.Tree, identifying: bool = False) -> trees.Recording:
    """Record a machine.

    :param identifying: also record what identifies this machine
    """
    notes = _Notes(tree)
    host = reader.read(notes)
    of_kinds = [name for kind in loader.load().values()
                for name in kind.files]
    _note(notes, host, of_kinds)
    _note_health(notes, host)
    # Only the kind fpga reads these, for entries that name FPGAs.
    fpga.read(notes)
    if identifying:
        _note(notes, host, _IDENTIFYING)
    recording = trees.Recording(notes.files, notes.links, notes.folders)
    return recording if identifying else anonymous.anonymous(
        recording, notes.asked, of_kinds)


def _note_health(notes: _Notes, host: model.Host) -> None:
    """Read the health of each function, so that it is noted."""
    for function in host.functions:
        if not isinstance(function.address, model.ParentName):
            health.errors(notes, function.address)
            # A generator.
            list(health.links(notes, function))


def _note(notes: _Notes, host: model.Host,
          files: collections.abc.Collection[str]) -> None:
    """Read files of each function, so that they are noted."""
    for function in host.functions:
        if isinstance(function.address, model.ParentName):
            continue
        path = pci.path(notes, function.address)
        for name in files:
            notes.text(f'{path}/{name}')

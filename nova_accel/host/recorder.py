# SPDX-License-Identifier: Apache-2.0
"""A recording of a machine: exactly what the host reader reads of it.

The reader is run over a Tree that takes notes, so a recording cannot fall
behind the reader. It reads no serial number, MAC address or unique id; what
it reads of routes, addresses and mounts is cut down to what it uses.
"""

import collections.abc
import posixpath
import re
import uuid

from nova_accel.core import model
from nova_accel.host import fpga
from nova_accel.host import links
from nova_accel.host import loader
from nova_accel.host import pci
from nova_accel.host import reader
from nova_accel.host import tree as trees
from nova_accel.host import usage
from nova_accel.host import vfio
from nova_accel.host import zfs

# Attributes that tell one machine from another; recorded only when asked.
_IDENTIFYING = ('unique_id', 'serial_number', 'address', 'wwid', 'uuid')

# systemd names a port after its MAC address where it has nothing better, and
# rdma-core (kernel-boot/rdma_rename.c) an RDMA device after its GUID.
_UNIQUE_NAME = re.compile(
    r'(?<![A-Za-z0-9])(en|wl|ww|ib|sl|roce|iw|opa|rdma)x'
    r'([0-9a-f]{16}|[0-9a-f]{12})(?![A-Za-z0-9])')

# btrfs has a directory for each file system that is mounted.
_FILESYSTEM = re.compile(fr'({usage.BTRFS}/)[0-9a-f-]{{36}}(?![^/])')

# So has ZFS for each pool, by its name, which is on its disks as well.
_POOL = re.compile(f'({zfs.POOLS}/|{zfs.LABEL})([^/\n]+)')

# A disk by the kernel's own name; names that people and tools give to disks
# have a folder or a hyphen in them, and may be unique ids.
_DISK = re.compile(r'/dev/[A-Za-z0-9!]+')


class _Notes:
    """A Tree that remembers all it was asked."""

    def __init__(self, tree: trees.Tree):
        self._tree = tree
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
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
    _note(notes, host, [name for kind in loader.load().values()
                        for name in kind.files])
    # Of what only some kinds look at.
    fpga.read(notes)
    if identifying:
        _note(notes, host, _IDENTIFYING)
        return trees.Recording(notes.files, notes.links, notes.folders)
    return _anonymous(notes)


def _note(notes: _Notes, host: model.Host,
          files: collections.abc.Collection[str]) -> None:
    """Read files of each function that has them."""
    for function in host.functions:
        if isinstance(function.address, model.ParentName):
            continue
        path = pci.path(notes, function.address)
        for name in files:
            notes.text(f'{path}/{name}')


def _anonymous(notes: _Notes) -> trees.Recording:
    hives: dict[str, int] = {}

    def scrub(path: str, text: str) -> str:
        if path.endswith(f'/{links.HIVE_ID}'):
            # Unique in the world; which are equal is all that matters.
            return f'{hives.setdefault(text, len(hives) + 1)}\n'
        if path.startswith(f'{zfs.UDEV}/'):
            return _scrub_udev(text)
        return _SCRUBBERS.get(path, str)(text)

    files = {path: scrub(path, text) for path, text in sorted(
        notes.files.items())}
    aliases: dict[str, str] = {}

    def alias(match: re.Match) -> str:
        return aliases.setdefault(
            match[0], f'{match[1]}x{len(aliases):0{len(match[2])}x}')

    filesystems: dict[str, int] = {}

    def number(match: re.Match) -> str:
        place = filesystems.setdefault(match[0], len(filesystems))
        return f'{match[1]}{uuid.UUID(int=place)}'

    pools: dict[str, int] = {}

    def pool(match: re.Match) -> str:
        return f'{match[1]}{pools.setdefault(match[2], len(pools))}'

    def clean(text: str) -> str:
        return _POOL.sub(pool, _FILESYSTEM.sub(
            number, _UNIQUE_NAME.sub(alias, text)))

    return trees.Recording(
        {clean(path): clean(text) for path, text in sorted(files.items())},
        {clean(path): clean(text)
         for path, text in sorted(notes.links.items())},
        map(clean, sorted(notes.folders)))


def _scrub_mounts(text: str) -> str:
    """``0 0 259:1 / / rw - x /dev/sda1``: the number and the device."""
    lines = []
    for number, source in usage.mounts(text):
        named = ':'.join(filter(_DISK.fullmatch, source.split(':')))
        # Everything that is not on a disk has major number 0.
        if number and (named or not number.startswith('0:')):
            lines.append(f'0 0 {number} / / rw - fs {named or "none"}')
    return _joined(lines)


def _scrub_table(text: str) -> str:
    """``/dev/sda1 / ext4 rw``: the device."""
    sources = dict.fromkeys(words[0] for words in usage.fields(text))
    return _joined(f'{source} / fs rw' for source
                   in filter(_DISK.fullmatch, sources))


def _scrub_udev(text: str) -> str:
    lines = text.splitlines()
    return _joined(line for line in lines if zfs.MEMBER in lines
                   and line.startswith((zfs.MEMBER, zfs.LABEL)))


def _scrub_command_line(text: str) -> str:
    return f'{" ".join(vfio.acs_overrides(text))}\n'


def _scrub_swaps(text: str) -> str:
    names = [words[0] for words in usage.fields(text)[1:]]
    return _joined(['Filename', *filter(_DISK.fullmatch, names)])


def _scrub_routes(text: str) -> str:
    ports = dict.fromkeys(words[0] for words in usage.fields(text)[1:])
    return _joined(['Iface', *ports])


def _scrub_addresses(text: str) -> str:
    ports = dict.fromkeys(words[-1] for words in usage.fields(text))
    return _joined([f'{0:032x} 00 00 00 00 {port}' for port in ports])


def _joined(lines: collections.abc.Iterable[str]) -> str:
    return ''.join(f'{line}\n' for line in lines)


_SCRUBBERS = {
    **dict.fromkeys(usage.MOUNTS, _scrub_mounts),
    **dict.fromkeys(usage.TABLES, _scrub_table),
    usage.SWAPS: _scrub_swaps,
    vfio.COMMAND_LINE: _scrub_command_line,
    usage.ROUTES: _scrub_routes,
    usage.ADDRESSES: _scrub_addresses,
}

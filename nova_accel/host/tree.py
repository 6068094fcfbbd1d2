# SPDX-License-Identifier: Apache-2.0
"""Read access to a live /sys or to a recording of one.

No library is used: pyudev reads only the machine that it runs on.
"""

import collections
import collections.abc
import ctypes
import gzip
import json
import os
import pathlib
import platform
import posixpath
import stat
import sys
import tarfile
import typing
import zlib

from nova_accel.core import errors
from nova_accel.core import kind

#: Most bytes that are read of a file. Attributes of sysfs are at most a page
#: (Documentation/filesystems/sysfs).
MAX_FILE = 1 << 20
#: The same in proc: tables of mounts have a line for each container's mounts.
MAX_PROC = 64 << 20
#: Limits of a recording, so that a hostile one cannot fill the memory: bytes
#: of its content, bytes of its directories' paths, and number of entries.
MAX_RECORDING = 64 << 20
MAX_ENTRIES = 500_000

# Members of a tar archive with the name or the link of the next one.
_TAR_HEADERS = frozenset({
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK})
# Paths have at most 4096 bytes.
_MAX_TAR_HEADER = 1 << 14

# The list of a sparse file's parts can have any length.
_SPARSE = 'has a sparse file; pack it without --sparse'

_MARK = 'nova_accel_recording'

# include/uapi/linux/magic.h
_SYSFS_MAGIC = 0x62656572

_libc = ctypes.CDLL(None, use_errno=True)


Tree = kind.Tree


def follow(tree: Tree, path: str) -> str:
    """Resolve a symbolic link once; links of sysfs do not lead to links.

    :returns: a path relative to the root; ``path`` itself if it is not a link
    """
    target = tree.link(path)
    if target is None:
        return path
    return posixpath.normpath(posixpath.join(
        '/', posixpath.dirname(path), target)).lstrip('/')


def architecture(tree: Tree) -> str:
    """Return the machine's architecture as the kernel names it, '' if unknown.

    Source: Documentation/admin-guide/sysctl/kernel.rst (``arch``, since Linux
    6.1).
    """
    return (tree.text('proc/sys/kernel/arch') or '').strip() or (
        platform.machine() if is_live(tree) else '')


class Directory:
    """A Tree of real directories.

    :param sysfs: path of ``/sys`` or of a copy of it
    """

    def __init__(self, sysfs: str | os.PathLike[str]):
        self.sysfs = os.fspath(sysfs)
        self._machine = os.path.dirname(os.path.abspath(self.sysfs))

    def _real(self, path: str) -> str:
        if path == 'sys' or path.startswith('sys/'):
            return self.sysfs + path[3:]
        return os.path.join(self._machine, path)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._real(path)))
        except (OSError, ValueError):
            return []

    def text(self, path: str) -> str | None:
        limit = _limit(path)
        try:
            # O_NONBLOCK: opening a pipe would block.
            handle = os.open(self._real(path), os.O_RDONLY | os.O_NONBLOCK)
        except (OSError, ValueError):
            return None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            chunks, size = [], 0
            while size < limit and (chunk := os.read(handle, 65536)):
                chunks.append(chunk)
                # Count small chunks as 4096 bytes, to bound their number.
                size += max(len(chunk), 4096)
            # Files unpacked from a tar of a live sysfs are padded with zeros.
            return b''.join(chunks)[:limit].rstrip(b'\0').decode(
                'utf-8', 'replace')
        except OSError:
            return None
        finally:
            os.close(handle)

    def bytes(self, path: str, number: int) -> bytes:
        """Return the first bytes of a file; b'' if it cannot be read."""
        try:
            with open(self._real(path), 'rb', buffering=0) as file:
                return file.read(number)
        except (OSError, ValueError):
            return b''

    def link(self, path: str) -> str | None:
        try:
            return os.readlink(self._real(path))
        except (OSError, ValueError):
            return None

    def has(self, path: str) -> bool:
        try:
            return os.path.lexists(self._real(path))
        except ValueError:
            return False


def _limit(path: str) -> int:
    """Return how many bytes of a file are read at most.

    :param path: may have folders above ``proc`` or ``sys``, as in an archive
    """
    path = f'/{path}'
    return MAX_PROC if '/proc/' in path and '/sys/' not in path else MAX_FILE


def mount(tree: Tree) -> str:
    """Return the path of a Tree's sysfs, for writing.

    :raises errors.AssignmentError: if the Tree is a recording
    """
    if isinstance(tree, Directory):
        return tree.sysfs
    raise errors.AssignmentError(
        'sysfs_root', 'is a recording, which cannot be written to')


def is_live(tree: Tree) -> bool:
    """Whether a Tree is the kernel's own sysfs and not a copy."""
    if not isinstance(tree, Directory):
        return False
    try:
        root = os.open(tree.sysfs, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        return is_sysfs(root)
    finally:
        os.close(root)


def is_sysfs(descriptor: int) -> bool:
    """Whether an open file is on a sysfs (fstatfs(2), ``f_type``).

    :raises OSError: if fstatfs fails
    """
    # f_type is the first field; struct statfs has at most 120 bytes.
    answer = ctypes.create_string_buffer(256)
    if _libc.fstatfs(descriptor, answer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int.from_bytes(answer.raw[:4], sys.byteorder) == _SYSFS_MAGIC


class Recording:
    """A Tree in memory.

    :param files: content by path
    :param links: target by path
    :param folders: directories that may be empty
    :raises ValueError: if the paths of its directories are longer together
        than :data:`MAX_RECORDING`
    """

    def __init__(self, files: collections.abc.Mapping[str, str] = {},
                 links: collections.abc.Mapping[str, str] = {},
                 folders: collections.abc.Iterable[str] = ()):
        self.files = dict(files)
        self.links = dict(links)
        self.folders = sorted(set(folders))
        self._names: dict[str, set[str]] = collections.defaultdict(set)
        room = MAX_RECORDING
        for path in (*self.files, *self.links, *self.folders):
            above, name = posixpath.split(path)
            while path and name not in self._names[above]:
                if not self._names[above]:
                    # Each directory, also an implied one, stores its path.
                    room -= len(above)
                if room < 0:
                    raise ValueError('has too many directories, or too deep '
                                     f'ones: {errors.quote(path)}')
                self._names[above].add(name)
                path = above
                above, name = posixpath.split(path)

    def names(self, path: str) -> list[str]:
        return sorted(self._names.get(path, ()))

    def text(self, path: str) -> str | None:
        return self.files.get(path)

    def link(self, path: str) -> str | None:
        return self.links.get(path)

    def has(self, path: str) -> bool:
        above, name = posixpath.split(path)
        return name in self._names.get(above, ())

    def dumps(self) -> str:
        """Return JSON with one line per path, sorted, for easy comparison."""
        return json.dumps(
            {_MARK: 1, 'files': self.files, 'links': self.links,
             'folders': self.folders}, indent=0, sort_keys=True) + '\n'

    @classmethod
    def loads(cls, text: str) -> 'Recording':
        """Read the output of :meth:`dumps`.

        :raises ValueError: if the text is anything else
        """
        # Each value follows one of these, and can take 20 times its size.
        if sum(map(text.count, '[{,')) > 2 * MAX_ENTRIES:
            raise ValueError('holds more than a recording should')
        try:
            loaded = json.loads(text)
        except RecursionError:
            raise ValueError('nested too deep') from None
        if not isinstance(loaded, dict) or loaded.get(_MARK) != 1:
            raise ValueError(f'has no "{_MARK}": 1')
        files, links = loaded.get('files', {}), loaded.get('links', {})
        folders = loaded.get('folders', [])
        if not (_is_text_mapping(files) and _is_text_mapping(links)
                and isinstance(folders, list)
                and all(isinstance(path, str) for path in folders)):
            raise ValueError('its files, links or folders are not text')
        return cls(files, links, folders)

    def write(self, directory: str | os.PathLike[str]) -> None:
        """Write the recording as real files and links below a directory.

        :raises ValueError: if a path leads out of the directory
        """
        base = pathlib.Path(directory)
        for path in (*self.folders, *self.files, *self.links):
            if path.startswith('/') or '..' in path.split('/'):
                raise ValueError(f'leads out of the recording: {path!r}')
        for folder in self.folders:
            (base / folder).mkdir(parents=True, exist_ok=True)
        for path, content in self.files.items():
            (base / path).parent.mkdir(parents=True, exist_ok=True)
            (base / path).write_text(content)
        # Deepest first, so that no file is written through a link.
        for path, target in sorted(self.links.items(), reverse=True,
                                   key=lambda link: link[0].count('/')):
            (base / path).parent.mkdir(parents=True, exist_ok=True)
            (base / path).symlink_to(target)


def open_tree(path: str | os.PathLike[str]) -> Tree:
    """Open the Tree at ``sysfs_root``.

    :param path: ``/sys``, a copy of it, the directory above it, a file that
        ``nova-accel host record`` wrote, or a tar archive of a copy
    :raises errors.TreeError: if it cannot be read
    """
    root = pathlib.Path(path)
    thing = f'sysfs_root {errors.quote(str(path))}'
    try:
        if root.is_dir():
            return _directory(root, thing)
        with root.open('rb') as file:
            start = file.read(2)
        if archive := _open_tar(root):
            with archive:
                return _from_tar(archive)
        with gzip.open(root) if start == b'\x1f\x8b' else root.open(
                'rb') as file:
            content = file.read(MAX_RECORDING + 1)
        if len(content) > MAX_RECORDING:
            raise ValueError(f'is larger than {MAX_RECORDING} bytes')
        return Recording.loads(content.decode())
    except (OSError, EOFError, ValueError, tarfile.TarError,
            zlib.error) as error:
        raise errors.TreeError(
            thing, f'cannot be read ({error})',
            'name /sys, a copy of it, or a file that "nova-accel host '
            'record" wrote') from None


def _directory(root: pathlib.Path, thing: str) -> Directory:
    for candidate in (root, root / 'sys'):
        if (candidate / 'bus').is_dir():
            return Directory(candidate)
    raise errors.TreeError(thing, 'has no bus/ in it',
                           'name /sys or a copy of it')


class _Member(tarfile.TarInfo):
    """A member of an archive; tarfile reads its headers into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str,
                ) -> typing.Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _TAR_HEADERS and member.size > _MAX_TAR_HEADER:
            raise ValueError('has a name that is too long')
        if member.type == tarfile.GNUTYPE_SPARSE:
            raise ValueError(_SPARSE)
        return member

    def _proc_gnusparse_10(self, *_arguments: object) -> typing.NoReturn:
        raise ValueError(_SPARSE)


def _open_tar(path: pathlib.Path) -> tarfile.TarFile | None:
    """Return an open archive, None if the file is no archive."""
    try:
        return tarfile.open(path, tarinfo=_Member)
    except tarfile.TarError:
        return None


def _from_tar(archive: tarfile.TarFile) -> Recording:
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    folders: list[str] = []
    size = count = 0
    for member in archive:
        # tarfile would keep all of them.
        archive.members.clear()  # type: ignore[attr-defined]  # No stub.
        name = posixpath.normpath(member.name).lstrip('/')
        count += 1
        size += len(name) + len(member.linkname)
        if member.issym():
            links[name] = member.linkname
        elif member.isdir():
            folders.append(name)
        elif member.isfile() and (file := archive.extractfile(member)):
            # Files of a live sysfs claim the size of a page and are padded
            # with zeros.
            content = file.read(_limit(name)).rstrip(b'\0')
            size += len(content)
            files[name] = content.decode('utf-8', 'replace')
        if size > MAX_RECORDING or count > MAX_ENTRIES:
            raise ValueError('holds more than a recording should')
    return _from_machine_root(files, links, folders)


def _from_machine_root(files: dict[str, str], links: dict[str, str],
                       folders: list[str]) -> Recording:
    """Make a Recording with paths that begin with ``sys/``.

    The archive may have folders above ``sys/``, or be made inside ``sys/``.
    """
    names = (*files, *links, *folders)
    prefix, missing = _above(names, '/sys/bus/'), ''
    if prefix is None:
        prefix, missing = _above(names, '/bus/pci/'), 'sys/'
    if prefix is None:
        raise ValueError('has no sys/bus/ in it')

    def below(mapping: dict[str, str]) -> dict[str, str]:
        return {missing + name.removeprefix(prefix): value
                for name, value in mapping.items()
                if name.startswith(prefix)}

    return Recording(below(files), below(links),
                     below(dict.fromkeys(folders, '')))


def _above(names: collections.abc.Iterable[str], folder: str) -> str | None:
    """Return the shortest path above a folder; None if no name has it."""
    above = {f'/{name}'[:f'/{name}'.find(folder)]
             for name in names if folder in f'/{name}'}
    return f'{min(above, key=len)}/'.lstrip('/') if above else None


def _is_text_mapping(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(text, str) for text in value.values())

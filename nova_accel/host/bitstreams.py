# SPDX-License-Identifier: Apache-2.0
"""Copies of bitstreams on this host.

A copy is named after its image and its hash, and the hash is checked each
time, so nothing goes out of date here. Files may be deleted at any time. All
of them together have a limit; those that were used least recently make room.
"""

import collections.abc
import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
import time

from nova_accel.core import errors

#: Seconds for which a copy stays when it was used: it may be programmed yet.
IN_USE = 600

# Of two that make room at the same time.
_lock = threading.Lock()


class TooLong(Exception):
    """More than was announced."""


@dataclasses.dataclass(frozen=True)
class Copies:
    """The copies in a folder.

    :param folder: which is made if need be
    :param limit: bytes that all of them may have together
    :param reserve: bytes that have to stay free on the file system
    """

    folder: str
    limit: int
    reserve: int = 0

    def __post_init__(self) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def path(self, image: str, algorithm: str, digest: str) -> str:
        """Where the copy of an image is, if it is there.

        :param algorithm: one of hashlib's
        :param digest: in lower-case hexadecimal digits
        """
        return os.path.join(self.folder, f'{image}.{algorithm}-{digest}.bin')

    def use(self, path: str) -> bool:
        """Whether a copy is there and whole; then it was used just now."""
        algorithm, _hyphen, digest = os.path.basename(path).partition('.')[
            2].removesuffix('.bin').rpartition('-')
        if not digest or _digest(path, algorithm) != digest:
            return False
        with contextlib.suppress(OSError):
            os.utime(path)
        return True

    def describe(self, path: str,
                 properties: collections.abc.Mapping[str, str]) -> None:
        """Keep what an image says of itself beside its copy.

        :raises OSError: if it cannot be written
        """
        with self._replaced(f'{path}.json') as file:
            file.write(json.dumps(dict(properties)).encode())

    def latest(self, image: str) -> tuple[
            str, collections.abc.Mapping[str, str]] | None:
        """The copy of an image that was used last, and what it says of itself.

        :returns: None if there is none that is whole
        """
        ours = [path for _used, _size, path in reversed(self._files())
                if os.path.basename(path).startswith(f'{image}.')
                and path.endswith('.bin')]
        for path in ours:
            if self.use(path):
                with contextlib.suppress(OSError, ValueError):
                    with open(f'{path}.json', 'rb') as file:
                        return path, json.load(file)
        return None

    @contextlib.contextmanager
    def new(self, path: str, size: int,
            ) -> collections.abc.Iterator['Limited']:
        """A copy that is there once all of it is.

        :param size: in bytes; it cannot become longer
        :returns: a context whose value takes the data
        :raises errors.AssignmentError: if there is no room for it
        :raises OSError: if it cannot be written
        """
        with self._replaced(path, size) as file:
            yield Limited(file, size)

    @contextlib.contextmanager
    def _replaced(self, path, size=0):
        with _lock:
            if size:
                self._make_room(path, size)
            file = tempfile.NamedTemporaryFile(dir=self.folder, prefix='new-',
                                               delete=False)
            # Who makes room next counts all of it.
            file.truncate(size)
        try:
            with file:
                yield file
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise

    def _make_room(self, path, size) -> None:
        """Delete what was used least recently, as far as need be."""
        files = self._files()
        missing = max(
            size + sum(size for _used, size, _path in files) - self.limit,
            size + self.reserve - shutil.disk_usage(self.folder).free)
        idle = [(size, path) for used, size, path in files
                if used < time.time() - IN_USE]
        if missing > sum(size for size, _path in idle):
            raise errors.AssignmentError(
                f'bitstream {os.path.basename(path).partition(".")[0]}',
                f'has {size} bytes, and there is no room for a copy: '
                f'bitstreams may have {self.limit} bytes together, and '
                f'{self.reserve} have to stay free on the disk',
                'make room, or raise [nova_accel] bitstream_cache_size')
        for size, path in idle:
            if missing <= 0:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            missing -= size

    def _files(self) -> list[tuple[float, int, str]]:
        """When each file was used, its size and its path; the oldest first."""
        found = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime, status.st_size,
                                  entry.path))
        return sorted(found)


class Limited:
    """A file that takes so many bytes and no more, whatever was announced."""

    def __init__(self, file, limit: int):
        self._file = file
        self._left = limit

    def write(self, chunk: bytes) -> int:
        """
        :raises TooLong: if it is one too many
        """
        self._left -= len(chunk)
        if self._left < 0:
            raise TooLong
        return self._file.write(chunk)

    def truncate(self, size: int | None = None) -> int:
        """As Nova does where a signature is wrong."""
        return self._file.truncate(size)

    def digest(self, algorithm: str) -> tuple[int, str]:
        """How many bytes were written, and their hash."""
        self._file.truncate()
        self._file.flush()
        return self._file.tell(), _digest(self._file.name, algorithm)


def _digest(path, algorithm) -> str:
    """A file's hash, or '' where it is not there."""
    try:
        with open(path, 'rb') as file:
            return hashlib.file_digest(file, lambda: hashlib.new(
                algorithm, usedforsecurity=False)).hexdigest()
    except (OSError, ValueError):
        return ''

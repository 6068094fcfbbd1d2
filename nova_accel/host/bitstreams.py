# SPDX-License-Identifier: Apache-2.0
"""The cache of bitstreams on this host.

A copy is named after its image and its hash, and the hash is checked at each
use, so a copy never becomes outdated. Files may be deleted at any time. The
total size is limited; the least recently used copies are deleted first. (The
library diskcache does not give a program the path of a file.)
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
import typing

from nova_accel.core import errors

#: Seconds after its last use in which a copy is not deleted: it may still be
#: programmed.
IN_USE = 600

# Held while room is made and reserved.
_lock = threading.Lock()


class TooLong(Exception):
    """Raised when an image has more bytes than announced."""


@dataclasses.dataclass(frozen=True)
class Copies:
    """The copies in a folder.

    :param folder: its path; it is created if missing
    :param limit: most bytes of all copies together
    :param reserve: bytes that must stay free on the file system
    """

    folder: str
    limit: int
    reserve: int = 0

    def __post_init__(self) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def path(self, image: str, algorithm: str, digest: str) -> str:
        """Return the path of an image's copy, which need not exist.

        :param algorithm: name of a hash in hashlib
        :param digest: in lower-case hexadecimal digits
        """
        return os.path.join(self.folder, f'{image}.{algorithm}-{digest}.bin')

    def use(self, path: str) -> bool:
        """Whether a copy exists and its hash is right; update its last use."""
        algorithm, _hyphen, digest = os.path.basename(path).partition('.')[
            2].removesuffix('.bin').rpartition('-')
        if not digest or _digest(path, algorithm) != digest:
            return False
        with contextlib.suppress(OSError):
            os.utime(path)
        return True

    def describe(self, path: str,
                 properties: collections.abc.Mapping[str, str]) -> None:
        """Store the properties of an image beside its copy.

        :raises OSError: if they cannot be written
        """
        with self._replaced(f'{path}.json') as file:
            file.write(json.dumps(dict(properties)).encode())

    def latest(self, image: str) -> tuple[
            str, collections.abc.Mapping[str, str]] | None:
        """Return the last used copy of an image, and the image's properties.

        :returns: None if no copy is complete
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
        """Write a new copy, which appears at its path when it is complete.

        :param size: in bytes; more cannot be written
        :returns: a context with a writable file
        :raises errors.AssignmentError: if there is no room for the copy
        :raises OSError: if it cannot be written
        """
        with self._replaced(path, size) as file:
            yield Limited(file, size)

    @contextlib.contextmanager
    def _replaced(self, path: str, size: int = 0,
                  ) -> collections.abc.Iterator[typing.IO[bytes]]:
        with _lock:
            if size:
                self._make_room(path, size)
            file = tempfile.NamedTemporaryFile(dir=self.folder, prefix='new-',
                                               delete=False)
            # Reserve the space: others that make room count the full size.
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

    def _make_room(self, path: str, size: int) -> None:
        """Delete the least recently used copies until a new one fits."""
        files = self._files()
        missing = max(
            size + sum(size for _used, size, _path in files) - self.limit,
            size + self.reserve - shutil.disk_usage(self.folder).free)
        idle = [(size, path) for used, size, path in files
                if used < time.time() - IN_USE]
        if missing > sum(size for size, _path in idle):
            raise errors.AssignmentError(
                f'bitstream {os.path.basename(path).partition(".")[0]}',
                f'has {errors.count(size, "byte")}, and there is no room for '
                f'a copy: the limit of all bitstreams is {self.limit}, and '
                f'{self.reserve} must stay free on the disk',
                'free some space, or raise [nova_accel] bitstream_cache_size')
        for size, path in idle:
            if missing <= 0:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            missing -= size

    def _files(self) -> list[tuple[float, int, str]]:
        """Return time of use, size and path of each file, oldest first."""
        found = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime, status.st_size,
                                  entry.path))
        return sorted(found)


class Limited:
    """A file that raises TooLong once more than ``limit`` bytes are written.

    :param limit: in bytes
    """

    def __init__(self, file: typing.IO[bytes], limit: int) -> None:
        self._file = file
        self._left = limit

    def write(self, chunk: bytes) -> int:
        """Write a chunk.

        :raises TooLong: if it exceeds the limit
        """
        self._left -= len(chunk)
        if self._left < 0:
            raise TooLong
        return self._file.write(chunk)

    def truncate(self, size: int | None = None) -> int:
        """Truncate the file: Nova calls this when a signature is wrong."""
        return self._file.truncate(size)

    def digest(self, algorithm: str) -> tuple[int, str]:
        """Return the number of bytes that were written, and their hash."""
        self._file.truncate()
        self._file.flush()
        return self._file.tell(), _digest(self._file.name, algorithm)


def _digest(path: str, algorithm: str) -> str:
    """Return the hash of a file, or '' if it cannot be read."""
    try:
        with open(path, 'rb') as file:
            return hashlib.file_digest(file, lambda: hashlib.new(
                algorithm, usedforsecurity=False)).hexdigest()
    except (OSError, ValueError):
        return ''

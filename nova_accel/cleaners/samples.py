# SPDX-License-Identifier: Apache-2.0
"""Blocks of a disk that are marked before an erase, and read after it.

What an erase leaves is not defined: the NVM Express specification calls it
indeterminate for Format, and it may be random after a cryptographic erase. So
the only thing that can be demanded of each disk is that the markers are gone.
"""

import collections
import collections.abc
import contextlib
import errno
import mmap
import os

from nova_accel.core import errors

#: How many blocks are marked, at most.
COUNT = 1024

# Not through the page cache, which an erase does not change. O_EXCL without
# O_CREAT: open(2) fails if the system uses the block device.
_FLAGS = os.O_DIRECT | os.O_EXCL

_WORDS = b'nova-accel marked this block before the erase: '


class Disk:
    """A block device that nobody else uses.

    :param path: its file
    :param size: bytes of a logical block
    """

    def __init__(self, path: str, size: int, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size = size
        self._buffer = mmap.mmap(-1, size)
        self._blocks = os.lseek(descriptor, 0, os.SEEK_END) // size

    def mark(self) -> None:
        """Write a marker to each sample, and read it again.

        :raises errors.AccelError: if the disk does not keep it
        """
        for number in self._samples():
            self._buffer[:] = _marker(number, self._size)
            self._move(os.pwritev, number, 'written')
        os.fsync(self._descriptor)
        for number in self._samples():
            if self._read(number) != _marker(number, self._size):
                raise errors.AccelError(
                    self._path, f'block {number} does not keep what is '
                    'written to it')

    def check(self) -> str:
        """Check that no sample has a marker; return what was read.

        :raises errors.AccelError: if one has
        """
        found: collections.Counter[str] = collections.Counter()
        for number in self._samples():
            block = self._read(number)
            if _WORDS in block:
                raise errors.AccelError(
                    self._path, f'block {number} of {self._blocks} was not '
                    'erased')
            found[_content(block)] += 1
        return (f'{self._path}: read {found.total()} of {self._blocks} '
                'blocks, no marker is left: ' + ', '.join(
                    f'{number} {what}' for what, number in found.items()))

    def _samples(self) -> list[int]:
        """Return the numbers of the samples: the first, the last, and between.

        :raises errors.AccelError: if the disk has no block
        """
        if not self._blocks:
            raise errors.AccelError(
                self._path, 'has no blocks', 'give the namespace a format '
                'that the kernel can read (nvme format --lbaf)')
        count = min(COUNT, self._blocks)
        return [index * (self._blocks - 1) // max(count - 1, 1)
                for index in range(count)]

    def _read(self, number: int) -> bytes:
        self._move(os.preadv, number, 'read')
        return self._buffer[:]

    def _move(self, call: collections.abc.Callable[
            [int, list[mmap.mmap], int], int], number: int, done: str) -> None:
        """Read or write a block, and name it in errors."""
        try:
            size = call(self._descriptor, [self._buffer], number * self._size)
        except OSError as error:
            raise self._failure(number, done, error.strerror) from None
        if size != self._size:
            raise self._failure(number, done, f'only {size} bytes')

    def _failure(self, number: int, done: str,
                 reason: str | None) -> errors.AccelError:
        return errors.AccelError(
            self._path, f'block {number} cannot be {done}: {reason}')


@contextlib.contextmanager
def opened(path: str, size: int, writable: bool,
           ) -> collections.abc.Iterator[Disk]:
    """Open a disk; meanwhile, the system cannot mount it or give it to LVM.

    :param size: bytes of a logical block
    :raises errors.AccelError: if it is in use
    :raises OSError: if it cannot be opened
    """
    try:
        descriptor = os.open(
            path, (os.O_RDWR if writable else os.O_RDONLY) | _FLAGS)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        raise errors.AccelError(
            path, 'is in use: it is mounted, or a part of a RAID or of LVM',
            'end that, and exclude the disk there') from None
    try:
        yield Disk(path, size, descriptor)
    finally:
        os.close(descriptor)


def _marker(number: int, size: int) -> bytes:
    """Return the content of a marked block; it names the block."""
    unit = _WORDS + b'%016x\n' % number
    return (unit * (size // len(unit) + 1))[:size]


def _content(block: bytes) -> str:
    return ('zeros' if not any(block) else
            'ones' if block.count(0xff) == len(block) else 'other')

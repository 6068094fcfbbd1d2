# SPDX-License-Identifier: Apache-2.0
"""Checks of files that the process running as root opens or executes."""

import collections.abc
import os
import pathlib
import stat

Check = collections.abc.Callable[[int], None]


def open_regular(path: str, flags: int, check: Check | None = None) -> int:
    """Open a regular file; refuse a symbolic link.

    :param flags: as for :func:`os.open`
    :param check: takes a descriptor; raises if it is the wrong file
    :returns: a descriptor
    :raises OSError: if it cannot be opened
    :raises ValueError: if it is not a regular file
    """
    return _open(path, flags, stat.S_ISREG, check)


def open_device(path: str, flags: int) -> int:
    """Open a character device; refuse a symbolic link.

    The parameters and errors are those of :func:`open_regular`.
    """
    return _open(path, flags, stat.S_ISCHR)


def _open(path: str, flags: int,
          is_kind: collections.abc.Callable[[int], bool],
          check: Check | None = None) -> int:
    """Open a file after its kind was checked.

    Opening a pipe blocks, and opening some devices has effects. ``O_PATH``
    (open(2)) guarantees that the opened file is the checked one, even if the
    path was replaced meanwhile.
    """
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        if not is_kind(os.fstat(place).st_mode):
            raise ValueError(f'not a file: {path!r}'
                             if is_kind is stat.S_ISREG else
                             f'not a character device: {path!r}')
        if check:
            check(place)
        return os.open(f'/proc/self/fd/{place}', flags)
    finally:
        os.close(place)


def check_only_root_writes(path: str) -> None:
    """Check that only root can change a file or any folder above it.

    Each folder and each link of the path must belong to root or to the
    effective user, and nobody else may write there. The check goes from the
    top down, so that a checked folder cannot be replaced afterwards.

    :param path: absolute
    :raises OSError: if the path does not exist
    :raises ValueError: naming the place that others can change
    """
    os.stat(path)
    whole = pathlib.Path(path)
    for place in (*reversed(whole.parents), whole):
        status = place.lstat()
        if status.st_uid not in (0, os.geteuid()):
            raise ValueError(f'{str(place)!r} does not belong to root')
        if stat.S_ISLNK(status.st_mode):
            return check_only_root_writes(os.path.normpath(
                place.parent / place.readlink() / whole.relative_to(place)))
        # In a folder with the sticky bit, others cannot replace root's files.
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (
                status.st_mode & stat.S_ISVTX and place != whole):
            raise ValueError(f'users other than root can write '
                             f'{str(place)!r}')

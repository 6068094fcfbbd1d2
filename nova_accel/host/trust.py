# SPDX-License-Identifier: Apache-2.0
"""Files that what runs as root may rely on, whoever names them."""

import collections.abc
import os
import pathlib
import stat


def open_regular(path: str, flags: int,
                 check: collections.abc.Callable[[int], None] | None = None,
                 ) -> int:
    """Open a regular file that no link leads to.

    It is looked at before it is opened: to open a pipe waits, and to open some
    devices does something. What is opened is what was looked at, whatever has
    that path by then (open(2), ``O_PATH``).

    :param flags: as for :func:`os.open`
    :param check: given a descriptor; raises if it is the wrong file
    :returns: a descriptor
    :raises OSError: if it cannot be opened
    :raises ValueError: if it is no regular file
    """
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise ValueError(f'not a file: {path!r}')
        if check:
            check(place)
        return os.open(f'/proc/self/fd/{place}', flags)
    finally:
        os.close(place)


def check_only_root_writes(path: str) -> None:
    """Check that nobody but root decides what a path leads to.

    Each folder and each link on the way belongs to root, or to who runs this,
    and nobody else can write there. From the top down, so that what was
    checked cannot be exchanged afterwards.

    :param path: absolute
    :raises OSError: if there is nothing
    :raises ValueError: naming what others can change
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
        # Where the sticky bit is set, others cannot exchange what is root's.
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (
                status.st_mode & stat.S_ISVTX and place != whole):
            raise ValueError(f'others than root can write {str(place)!r}')

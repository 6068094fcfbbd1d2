# SPDX-License-Identifier: Apache-2.0
"""The cache of bitstreams and its limit."""

import hashlib
import os
import pathlib
import time

import pytest

from nova_accel.core import errors
from nova_accel.host import bitstreams

_SIZE = 100


def _copies(path, limit=3 * _SIZE, **more):
    return bitstreams.Copies(str(path / 'copies'), limit, **more)


def _path(copies, name, content):
    return copies.path(name, 'sha256', hashlib.sha256(content).hexdigest())


def _add(copies, name, idle=0):
    """Make a copy.

    :param idle: seconds since its last use
    """
    content = name.encode() * _SIZE
    path = _path(copies, name, content)
    with copies.new(path, len(content)) as file:
        file.write(content)
    used = time.time() - idle
    os.utime(path, (used, used))
    return path


def _names(copies):
    return {name[0] for name in os.listdir(copies.folder)}


_IDLE = bitstreams.IN_USE + 60


def test_least_recently_used_copy_is_deleted(tmp_path):
    copies = _copies(tmp_path)
    for number, name in enumerate('abc'):
        path = _add(copies, name, idle=_IDLE - number)
        if name == 'a':
            first = path
    assert copies.use(first)
    _add(copies, 'd')
    assert _names(copies) == set('acd')


@pytest.mark.parametrize('limit, reserve, idle', [
    # Copies in use are not deleted.
    (2 * _SIZE, 0, 0),
    # No copy is deleted if the new one would not fit anyway.
    (_SIZE - 1, 0, _IDLE),
    (3 * _SIZE, 1 << 62, _IDLE)])
def test_new_copy_without_room_raises(tmp_path, limit, reserve, idle):
    copies = _copies(tmp_path)
    for name in 'ab':
        _add(copies, name, idle)
    with pytest.raises(errors.AssignmentError, match='no room') as raised:
        _add(_copies(tmp_path, limit, reserve=reserve), 'c')
    assert raised.value.thing == 'bitstream c'
    assert _names(copies) == set('ab')


def test_file_of_a_dead_process_is_deleted(tmp_path):
    copies = _copies(tmp_path)
    left = pathlib.Path(copies.folder, 'new-x')
    left.write_bytes(b'x' * 3 * _SIZE)
    os.utime(left, (0, 0))
    _add(copies, 'a')
    assert _names(copies) == {'a'}


def test_unfinished_copy_reserves_its_full_size(tmp_path):
    copies = _copies(tmp_path, _SIZE)
    with copies.new(_path(copies, 'a', b''), _SIZE):
        with pytest.raises(errors.AssignmentError):
            _add(copies, 'b')


def test_more_bytes_than_announced_raise(tmp_path):
    copies = _copies(tmp_path)
    with pytest.raises(bitstreams.TooLong):
        with copies.new(_path(copies, 'a', b''), _SIZE) as file:
            file.write(b'x' * (_SIZE + 1))
    assert not _names(copies)


def test_latest_returns_the_complete_copy(tmp_path):
    copies = _copies(tmp_path, 10 * _SIZE)
    assert copies.latest('a') is None
    content = b'a' * _SIZE
    path = _add(copies, 'a', idle=1)
    # A copy without properties is not usable, nor is a damaged one.
    with copies.new(other := _path(copies, 'a', b'b'), 1) as file:
        file.write(b'b')
    with copies.new(damaged := _path(copies, 'a', b'c'), 1) as file:
        file.write(b'd')
    copies.describe(damaged, {'key': 'damaged'})
    assert copies.latest('a') is None
    copies.describe(path, {'key': 'value'})
    assert copies.latest('a') == (path, {'key': 'value'})
    assert pathlib.Path(path).read_bytes() == content
    assert copies.use(other) and not copies.use(damaged)

# SPDX-License-Identifier: Apache-2.0
"""What takes long to make is kept, until that changes which it is made of."""

from collections.abc import Callable
from collections.abc import Iterable
import hashlib
import pathlib
import shutil

from tests.integration import place

CACHE = place.CACHE / 'machine'


def kept(name: str, inputs: Iterable[str | bytes | pathlib.Path],
         make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """A file or directory, made if there is none of these inputs.

    :param inputs: texts, and files of which the contents count
    :param make: is called with the path to make
    :raises Failure: whatever `make` raises; nothing is kept then
    """
    path = CACHE / f'{name}-{_key(inputs)}'
    if path.exists():
        return path
    place.make(CACHE)
    half = CACHE / f'{name}.half'
    _remove(half)
    make(half)
    for old in CACHE.glob(f'{name}-' + '[0-9a-f]' * 12):
        _remove(old)
    return half.rename(path)


def _key(inputs):
    digest = hashlib.sha256()
    for each in inputs:
        if isinstance(each, pathlib.Path):
            each = each.read_bytes()
        elif isinstance(each, str):
            each = each.encode()
        digest.update(hashlib.sha256(each).digest())
    return digest.hexdigest()[:12]


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

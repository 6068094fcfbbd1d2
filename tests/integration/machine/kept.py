# SPDX-License-Identifier: Apache-2.0
"""A cache of built files, which are rebuilt when their inputs change."""

from collections.abc import Callable
from collections.abc import Iterable
import hashlib
import pathlib
import shutil

from tests.integration import place

CACHE = place.CACHE / 'machine'


def kept(name: str, inputs: Iterable[str | bytes | pathlib.Path],
         make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Return a file or directory; make it if none has these inputs.

    :param inputs: texts, and files whose contents count
    :param make: called with the path to make
    :raises Failure: from `make`; then nothing is kept
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

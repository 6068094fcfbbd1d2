# SPDX-License-Identifier: Apache-2.0
"""The commit of the product that figures were measured with."""

import pathlib
import subprocess

_ROOT = pathlib.Path(__file__).parents[2]
_PRODUCT = 'nova_accel'


def commit() -> str:
    """Return the last commit that changed the product.

    "+" follows if the product has changes that are not committed.

    :raises subprocess.CalledProcessError: this is not a clone
    """
    changed = _git('status', '--porcelain', '--', _PRODUCT)
    found = _git('log', '-1', '--abbrev=9', '--format=%h', '--', _PRODUCT)
    return f'{found}+' if changed else found


def _git(*words: str) -> str:
    return subprocess.run(
        ('git', '-C', _ROOT, *words), check=True, capture_output=True,
        text=True).stdout.strip()

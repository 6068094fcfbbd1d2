# SPDX-License-Identifier: Apache-2.0
"""The Novas that are tested: those of the directory constraints.

The documentation takes them from here. README.rst, tox.ini and setup.cfg
cannot: tests/unit/test_novas.py compares them.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent


def tested() -> list[int]:
    """Their first numbers, the oldest first."""
    return sorted(int(re.fullmatch(r'nova(\d+)\.txt', file.name)[1])
                  for file in (ROOT / 'constraints').iterdir())


def release(nova: int) -> str:
    """The release of OpenStack that a Nova is of: two a year, 31 is 2025.1."""
    years, half = divmod(nova - 31, 2)
    return f'{2025 + years}.{half + 1}'


def text() -> str:
    """All of them, for people: no number between is left out."""
    first, *_between, last = tested()
    return f'Nova {first} ({release(first)}) to {last} ({release(last)})'

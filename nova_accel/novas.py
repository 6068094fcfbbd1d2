# SPDX-License-Identifier: Apache-2.0
"""The Novas that nova_accel is tested with.

The documentation and ``nova-accel-status`` take them from here. README.rst,
tox.ini, setup.cfg and the directory constraints cannot:
tests/unit/test_novas.py compares them.
"""

#: The first numbers of their versions.
TESTED = range(31, 35)

#: By how much Placement's first number is lower than Nova's, in each release.
PLACEMENT_OFFSET = 18


def release(nova: int) -> str:
    """The release of OpenStack that a Nova is of: two a year, 31 is 2025.1."""
    years, half = divmod(nova - 31, 2)
    return f'{2025 + years}.{half + 1}'


def text() -> str:
    """All of them, for people: no number between is left out."""
    first, last = TESTED[0], TESTED[-1]
    return f'Nova {first} ({release(first)}) to {last} ({release(last)})'

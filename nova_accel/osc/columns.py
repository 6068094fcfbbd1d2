# SPDX-License-Identifier: Apache-2.0
"""Columns that people read as text and programs as JSON."""

import collections.abc

from cliff import columns


class Lines(columns.FormattableColumn):
    """A list: one item on each line for people."""

    def human_readable(self) -> str:
        return '\n'.join(map(str, self._value))


class Texts(columns.FormattableColumn):
    """Data for programs, and lines of text for people."""

    def __init__(self, value, lines: collections.abc.Iterable[str]) -> None:
        super().__init__(value)
        self._lines = list(lines)

    def human_readable(self) -> str:
        return '\n'.join(self._lines)


class Reason(columns.FormattableColumn):
    """Why a device is not available: reasons, and a drain if it has one.

    :param value: a list of texts
    """

    def human_readable(self) -> str:
        return ', '.join(self._value)


class Tree(columns.FormattableColumn):
    """The devices of a host as a tree of their places.

    :param value: a list of dicts with ``place``, a list of names, the
        outermost first, and ``label``
    """

    def human_readable(self) -> str:
        tree: dict = {}
        for row in self._value:
            branch = tree
            for part in row['place']:
                branch = branch.setdefault(part, {})
            branch[row['label']] = {}
        return '\n'.join(lines(tree))


def lines(tree: dict, indent: str = '') -> collections.abc.Iterator[str]:
    """Yield the lines of a tree, given as nested dicts by label."""
    for index, (label, branch) in enumerate(tree.items(), 1):
        last = index == len(tree)
        yield f'{indent}{"└─" if last else "├─"} {label}'
        yield from lines(branch, indent + ('   ' if last else '│  '))

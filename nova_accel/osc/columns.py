# SPDX-License-Identifier: Apache-2.0
"""Columns that people read as text and programs as JSON."""

import collections
import collections.abc
import typing

from cliff import columns

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.request import alternatives
from nova_accel.core.request import device_profile

#: What a command of cliff returns: the names of its columns, and rows, or the
#: values of one record.
Output = tuple[collections.abc.Sequence[str],
               collections.abc.Iterable[typing.Any]]

if typing.TYPE_CHECKING:
    _Column = columns.FormattableColumn[typing.Any]
else:
    # Older versions of cliff have no types.
    _Column = columns.FormattableColumn


class Lines(_Column):
    """A list: one item on each line for people."""

    def human_readable(self) -> str:
        return '\n'.join(map(str, self._value))


class Texts(_Column):
    """Data for programs, and lines of text for people."""

    def __init__(self, value: typing.Any,
                 lines: collections.abc.Iterable[str]) -> None:
        super().__init__(value)
        self._lines = list(lines)

    def human_readable(self) -> str:
        return '\n'.join(self._lines)


class Reason(_Column):
    """Why a device is not available: reasons, and a drain if it has one.

    :param value: a list of texts
    """

    def human_readable(self) -> str:
        return ', '.join(self._value)


class Counted(_Column):
    """Reasons, with the number of units or of hosts that have each.

    :param value: a list of dicts with ``units``, ``hosts`` or ``servers``,
        which may be None, and ``reason``
    """

    def human_readable(self) -> str:
        return '\n'.join(
            reason if count is None else
            f'{count} {noun.removesuffix("s") if count == 1 else noun}: '
            f'{reason}' for row in self._value
            for (noun, count), (_key, reason) in [row.items()])


class Hosts(_Column):
    """How many servers fit on hosts, and why no more fit.

    :param value: a list of dicts with ``hosts``, a list of names, ``fits`` and
        ``reason``
    """

    def human_readable(self) -> str:
        return '\n'.join(
            f'{", ".join(row["hosts"])}: '
            + errors.count(row['fits'], 'fits', 'fit')
            + f'; {row["reason"]}' * bool(row['reason'])
            for row in self._value)


class Devices(_Column):
    """The devices of a server.

    :param value: a list of dicts
    """

    def human_readable(self) -> str:
        return '\n'.join(', '.join(
            f'{key} {value}' for key, value in row.items()
            if value is not None) for row in self._value)


class Groups(_Column):
    """The groups of a device profile, for programs as Cyborg shows them.

    :param value: a list of :class:`.device_profile.Group`; None if unknown
    """

    def human_readable(self) -> str:
        texts = collections.Counter(
            ' '.join((*(f'{amount} {name}' for name, amount
                        in group.resources.items()), *(
                f'{"with" if strength == device_profile.REQUIRED else "not"} '
                f'{trait}' for trait, strength in group.traits.items()
                if trait not in naming.OUR_TRAITS), *(
                ['with ' + ' else '.join(map(alternatives.text,
                                             group.any_of))]
                if group.any_of else []), *(
                [f'bitstream {group.bitstream}'] * bool(group.bitstream))))
            for group in self._value or ())
        return '\n'.join(text if count == 1 else f'{count} × {text}'
                         for text, count in texts.items())

    def machine_readable(self) -> list[dict[str, typing.Any]] | None:
        return None if self._value is None else [{
            **{f'resources:{name}': str(amount)
               for name, amount in group.resources.items()},
            **{f'trait:{trait}': strength
               for trait, strength in group.traits.items()
               if trait not in naming.OUR_TRAITS},
            **({'any_of': [list(one) for one in group.any_of]}
               if group.any_of else {}),
            **({'accel:bitstream_id': group.bitstream}
               if group.bitstream else {})} for group in self._value]


class Tree(_Column):
    """The devices of a host as a tree of their places.

    :param value: a list of dicts with ``place``, a list of names, the
        outermost first, and ``label``
    """

    def human_readable(self) -> str:
        tree: Branch = {}
        for row in self._value:
            branch = tree
            for part in row['place']:
                branch = branch.setdefault(part, {})
            branch[row['label']] = {}
        return '\n'.join(lines(tree))


#: A tree, as nested dicts by label.
Branch = dict[str, 'Branch']


def lines(tree: Branch, indent: str = '') -> collections.abc.Iterator[str]:
    """Yield the lines of a tree, as plain text: rich would wrap them."""
    for index, (label, branch) in enumerate(tree.items(), 1):
        last = index == len(tree)
        yield f'{indent}{"└─" if last else "├─"} {label}'
        yield from lines(branch, indent + ('   ' if last else '│  '))

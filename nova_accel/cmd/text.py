# SPDX-License-Identifier: Apache-2.0
"""Commands that print text for people, and cliff's formats for programs.

``text`` is a formatter beside those of cliff, and the default.
"""

import argparse
import collections.abc
import typing

from cliff import lister
from cliff import show
from cliff.formatters import base

from nova_accel.cmd import main
from nova_accel.osc import columns

#: Values of the column Severity.
ERROR, WARNING = 'error', 'warning'

#: What a command prints, as JSON has it.
Data = dict[str, typing.Any]

Output = columns.Output

_Names = collections.abc.Sequence[str]


class Formatter(base.ListFormatter, base.SingleFormatter):
    """Prints the lines that the command makes of its columns."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """Add no options."""

    def emit_list(self, column_names: _Names,
                  data: collections.abc.Iterable[typing.Any],
                  stdout: typing.TextIO,
                  parsed_args: argparse.Namespace) -> None:
        for line in parsed_args.lines(column_names, data):
            stdout.write(f'{line}\n')

    emit_one = emit_list


class _Text(main.Command):
    """A command whose default format is text.

    :ivar code: the exit code
    """

    formatter_default = 'text'
    code = 0

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.set_defaults(lines=self.lines)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        return super().run(parsed_args) or self.code

    def lines(self, names: _Names,
              data: collections.abc.Iterable[typing.Any],
              ) -> collections.abc.Iterable[str]:
        """Return the lines for columns and their values, or rows of them."""
        raise NotImplementedError


class ShowOne(_Text, show.ShowOne):
    """Shows a record."""

    formatter_namespace = 'nova_accel.formatter.show'


class Lister(_Text, lister.Lister):
    """Lists records."""

    formatter_namespace = 'nova_accel.formatter.list'


class Findings(Lister):
    """Lists what is wrong; columns begin with those of an AccelError."""

    columns: tuple[str, ...] = ('Thing', 'Reason', 'Remedy')

    def lines(self, names: _Names,
              data: collections.abc.Iterable[typing.Any],
              ) -> collections.abc.Iterator[str]:
        for row in data:
            cells = {'Severity': '', **dict(zip(names, row, strict=True))}
            yield '! ' + ': '.join(
                cells[name] for name in self.columns[:2] if name in cells
                ) + (' (warning)' if cells['Severity'] == WARNING else '')
            if remedy := cells.get(self.columns[2]):
                yield f'  {remedy}'

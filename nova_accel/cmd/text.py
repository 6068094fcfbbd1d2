# SPDX-License-Identifier: Apache-2.0
"""Commands that print text for people, and cliff's formats for programs.

``text`` is a formatter beside those of cliff, and the default.
"""

import collections.abc

from cliff import lister
from cliff import show
from cliff.formatters import base

#: Values of the column Severity.
ERROR, WARNING = 'error', 'warning'


class Formatter(base.ListFormatter, base.SingleFormatter):
    """Prints the lines that the command makes of its columns."""

    def add_argument_group(self, parser) -> None:
        """Add no options."""

    def emit_list(self, column_names, data, stdout, parsed_args) -> None:
        for line in parsed_args.lines(column_names, data):
            stdout.write(f'{line}\n')

    emit_one = emit_list


class _Text:
    """A command whose default format is text.

    :ivar code: the exit code
    """

    formatter_default = 'text'
    code = 0

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.set_defaults(lines=self.lines)
        return parser

    def run(self, parsed_args) -> int:
        return super().run(parsed_args) or self.code

    def lines(self, names, data) -> collections.abc.Iterator[str]:
        """Yield the lines for columns and their values, or rows of them."""
        raise NotImplementedError


class ShowOne(_Text, show.ShowOne):
    """Shows a record."""

    formatter_namespace = 'nova_accel.formatter.show'


class Lister(_Text, lister.Lister):
    """Lists records."""

    formatter_namespace = 'nova_accel.formatter.list'


class Findings(Lister):
    """Lists what is wrong; columns begin with those of an AccelError."""

    columns = ('Thing', 'Reason', 'Remedy')

    def lines(self, names, data):
        for row in data:
            cells = {'Severity': '', **dict(zip(names, row, strict=True))}
            yield '! ' + ': '.join(
                cells[name] for name in self.columns[:2] if name in cells
                ) + (' (warning)' if cells['Severity'] == WARNING else '')
            if remedy := cells.get(self.columns[2]):
                yield f'  {remedy}'

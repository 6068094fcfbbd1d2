# SPDX-License-Identifier: Apache-2.0
"""Reports of benchmarks: sentences, tables and plots, as values.

Standard library only, because reports are also written where Nova is not
installed.
"""

import collections.abc
import dataclasses
import textwrap


@dataclasses.dataclass(frozen=True)
class Table:
    """:param rows: each has as many cells as the header"""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


#: The line that separates the text of a section from its tables.
TABLES = '.. The tables.'

Line = collections.abc.Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Plot:
    """Lines over a common axis, optionally with ratios below them.

    :param name: the end of the file's name, after the benchmark's name
    :param x: the label of the common axis
    :param y: the label of the lines' axis
    :param lines: (x, y) points by side
    :param ratios: (x, ratio) points by side, compared with one of the sides
    :param log: whether the axes are logarithmic
    :param ratio: the label of the ratios' axis
    """

    name: str
    title: str
    x: str
    y: str
    lines: collections.abc.Mapping[str, Line]
    ratios: collections.abc.Mapping[str, Line] = dataclasses.field(
        default_factory=dict)
    log: bool = True
    ratio: str = 'ratio'


@dataclasses.dataclass(frozen=True)
class Report:
    """:param says: paragraphs in reStructuredText"""

    title: str
    says: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()


def rst(name: str, report: Report, measured: str,
        command: str = 'python -m tests.bench {}') -> str:
    """Return a report as a section to be included.

    :param name: the benchmark's name
    :param measured: a sentence about the machine and the versions
    :param command: the command that writes the section; {} is the name
    """
    blocks = [
        f'.. Written by "{command.format(name)}", not by hand.',
        f'{report.title}\n{"-" * len(report.title)}',
        *(wrapped(paragraph) for paragraph in (*report.says, measured)),
        *(image(name, plot) for plot in report.plots),
        *[TABLES] * bool(report.tables),
        *(_table(table) for table in report.tables)]
    return '\n\n'.join(blocks) + '\n'


def plot_file(name: str, plot: Plot) -> str:
    return f'{name}-{plot.name}.svg'


def wrapped(paragraph: str, mark: str = '') -> str:
    """Return a paragraph in lines of at most 79 characters.

    :param mark: the beginning of the first line
    """
    return textwrap.fill(paragraph, 79, break_long_words=False,
                         break_on_hyphens=False, initial_indent=mark,
                         subsequent_indent=' ' * len(mark))


def image(name: str, plot: Plot) -> str:
    return (f'.. image:: /reference/benchmarks/{plot_file(name, plot)}\n'
            f'   :alt: {plot.title}')


def _table(table: Table) -> str:
    lines = [f'.. list-table:: {table.title}', '   :header-rows: 1']
    for row in (table.header, *table.rows):
        lines.append('')
        lines.extend(f'   {"*" if first else " "} - {cell}'.rstrip()
                     for first, cell in zip(
                         (True, *[False] * len(row)), row, strict=False))
    return '\n'.join(lines)


def significant(value: float, digits: int = 2) -> str:
    """Return a number with few significant digits: 0.063, 1.4, 350."""
    rounded = float(f'{value:.{digits - 1}e}')
    return f'{rounded:,.0f}' if abs(rounded) >= 10 else f'{rounded:g}'

# SPDX-License-Identifier: Apache-2.0
"""What a benchmark has to say: sentences, tables and plots, as values.

Standard library only: written wherever the figures are, not where they were
measured.
"""

import collections.abc
import dataclasses
import textwrap


@dataclasses.dataclass(frozen=True)
class Table:
    """:param rows: of as many cells as there are in the header"""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


#: The line between the text of a section and its tables.
TABLES = '.. The tables.'

Line = collections.abc.Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Plot:
    """Lines over a common axis, and below them, if there are any, ratios.

    :param name: what its file is called, after the benchmark's
    :param x: what the axis counts
    :param y: what the lines measure
    :param lines: (x, y) points by who was measured
    :param ratios: the same, of each to the one that they are compared with
    :param log: whether both axes are logarithmic
    :param ratio: what the ratios are
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
    """:param says: paragraphs in reStructuredText, the outcome first"""

    title: str
    says: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()


def rst(name: str, report: Report, measured: str,
        command: str = 'python -m tests.bench {}') -> str:
    """A report as a section to be included.

    :param name: the benchmark's
    :param measured: a sentence about machine and versions
    :param command: what writes it; {} is the name
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
    """:param mark: what the first line begins with"""
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
    """A number that claims no more than was measured: 0.063, 1.4, 350."""
    rounded = float(f'{value:.{digits - 1}e}')
    return f'{rounded:,.0f}' if abs(rounded) >= 10 else f'{rounded:g}'

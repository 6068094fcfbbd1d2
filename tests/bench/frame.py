# SPDX-License-Identifier: Apache-2.0
"""Run a benchmark, store its result and write its documentation.

A benchmark is a module of this package with two functions::

    measure(scale, say) -> dict    # figures, as JSON takes them
    report(figures) -> report.Report

``scale`` is one of :data:`SCALES`, ``say`` takes a line of progress. A
benchmark's module imports Nova inside its functions only, because reports are
also written where Nova is not installed.
"""

import collections.abc
import importlib
import importlib.metadata
import json
import os
import pathlib
import platform
import sqlite3

from tests.bench import commit
from tests.bench import report

QUICK, MEDIUM, FULL = SCALES = ('quick', 'medium', 'full')

#: The folder of the results that the documentation includes.
DIRECTORY = (pathlib.Path(__file__).parents[2] / 'doc' / 'source'
             / 'reference' / 'benchmarks')


def machine() -> dict[str, str | int]:
    """Return the facts of the machine that a report names."""
    return {'commit': commit.commit(),
            'cores': len(os.sched_getaffinity(0)),
            'python': platform.python_version(),
            'nova': importlib.metadata.version('nova'),
            'placement': importlib.metadata.version('openstack-placement'),
            'sqlite': sqlite3.sqlite_version}


def measure(name: str, scale: str,
            say: collections.abc.Callable[[str], None]) -> dict:
    """Run one benchmark, and return its result for :func:`write`."""
    figures = _module(name).measure(scale, say)
    # As if read from the file: JSON makes the keys text.
    return json.loads(json.dumps(
        {'benchmark': name, 'scale': scale, 'machine': machine(),
         'figures': figures}))


def write(result: collections.abc.Mapping, directory: pathlib.Path) -> None:
    """Write a result's JSON, its section and its plots."""
    directory.mkdir(parents=True, exist_ok=True)
    name = result['benchmark']
    (directory / f'{name}.json').write_text(
        json.dumps(result, indent=1) + '\n')
    write_report(result, directory)


def write_report(result: collections.abc.Mapping,
                 directory: pathlib.Path) -> None:
    from tests.bench import plots
    name = result['benchmark']
    (directory / f'{name}.inc').write_text(section(result))
    for plot in reported(result).plots:
        plots.write(directory / report.plot_file(name, plot), plot)


def read(name: str, directory: pathlib.Path = DIRECTORY) -> dict:
    return json.loads((directory / f'{name}.json').read_text())


def reported(result: collections.abc.Mapping) -> report.Report:
    return _module(result['benchmark']).report(result['figures'])


def section(result: collections.abc.Mapping) -> str:
    facts = result['machine']
    cores = 'one core' if facts['cores'] == 1 else f'{facts["cores"]} cores'
    return report.rst(
        result['benchmark'], reported(result),
        f'Measured at scale *{result["scale"]}* on {cores}: '
        f'nova-accel at commit {facts["commit"]}, '
        f'Python {facts["python"]}, Nova {facts["nova"]}, Placement '
        f'{facts["placement"]}, both with SQLite {facts["sqlite"]} in '
        'memory.')


def _module(name: str):
    return importlib.import_module(f'tests.bench.{name}')

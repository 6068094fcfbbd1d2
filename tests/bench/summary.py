# SPDX-License-Identifier: Apache-2.0
"""The summary of the benchmarks: a few lines and two plots."""

import collections.abc
import pathlib
import statistics

from tests.bench import crowded
from tests.bench import few
from tests.bench import frame
from tests.bench import quality
from tests.bench import report
from tests.bench import scheduling
from tests.bench import updates

FILE = 'summary.inc'
#: Plots of the reports that the summary shows.
_PLOTS = ('crowded', 'hosts'), ('quality', 'asked')

#: Takes the name of a benchmark, returns its figures.
Figures = collections.abc.Callable[[str], collections.abc.Mapping]

_number = report.significant


def section(directory: pathlib.Path = frame.DIRECTORY) -> str:
    """Return the summary of the results in a folder."""
    def figures(name: str) -> collections.abc.Mapping:
        return frame.read(name, directory)['figures']

    def image(name: str, plot: str) -> str:
        [found] = [one for one in frame.reported(
            frame.read(name, directory)).plots if one.name == plot]
        return report.image(name, found)

    lines = [line(figures) for line in (
        _plain, _tuned, _few, _served, _reads)]
    return '\n\n'.join((
        '.. Written by "python -m tests.bench", not by hand.',
        *(report.wrapped(line, '* ') for line in lines),
        *(image(*plot) for plot in _PLOTS))) + '\n'


def _plain(figures: Figures) -> str:
    cells = scheduling.Cells(figures('scheduling'))
    hosts = cells.hosts[-1]
    ours, plain = (cells.seconds(scheduling.OURS, hosts, count)
                   for count in (8, 0))
    return (f'On {scheduling.say_hosts(hosts)}, a server with eight devices '
            f'is scheduled in **{_number(ours / plain)} times** the time of a '
            'server without devices.')


def _tuned(figures: Figures) -> str:
    cells = scheduling.Cells(figures('crowded'))
    hosts = cells.hosts_of(scheduling.TUNED, crowded.COUNT)[-1]
    ratio = cells.ratio(scheduling.TUNED, hosts, crowded.COUNT)
    return (f'If only one of {scheduling.say_hosts(hosts)} has eight free '
            "devices, Nova's own way with a tuned Placement takes "
            f'**{_number(ratio)} times** as long.')


def _few(figures: Figures) -> str:
    found = figures('few')
    wrong = [sum(not cell['found'] for cell in found['cells']
                 if cell['side'] == side)
             for side in (few.SHORTLIST, few.FIRST)]
    number = len(found['cells']) // 2
    return (f'If at most five of {found["hosts"]:,} hosts keep a rule, '
            f'**{number - wrong[0]} of {number}** requests get a host. '
            'Without the shortlist, Nova examines the first '
            f'{found["limit"]:,} hosts, and {number - wrong[1]} requests get '
            'a host.')


def _served(figures: Figures) -> str:
    cells = figures('quality')['cells']
    load = sorted({cell['load'] for cell in cells})[-1]

    def share(side) -> float:
        return statistics.mean(
            sum(cell['near'].values()) / sum(cell['asked'].values())
            for cell in cells if (cell['side'], cell['load']) == (side, load))

    return (f'At a load of {load:.0%}, **{share(quality.OURS):.0%}** of the '
            'requests get the devices and NUMA node that they ask for, and '
            f"{share(quality.FIRST):.0%} with Nova's weighers and the first "
            'candidate.')


def _reads(figures: Figures) -> str:
    cells = [cell for cell in figures('updates')['cells']
             if not cell['change']]
    ours = [cell for cell in cells if cell['side'] == updates.OURS][-1]
    [novas] = [cell for cell in cells if cell['side'] == updates.PCI and (
        cell['devices'], cell['regions']) == (
            ours['devices'], ours['regions'])]
    return (f'In an unchanged round, nova-compute makes **{ours["reads"]:g} '
            f'requests** to Placement for {ours["devices"]} devices with '
            f'{ours["regions"]} regions each; Nova\'s driver makes '
            f'{novas["reads"]:g} for as many PCI devices.')

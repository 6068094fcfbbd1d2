# SPDX-License-Identifier: Apache-2.0
"""Write plots as SVG files. The same figures give the same bytes."""

import pathlib

from tests.bench import report

# In the order of the sides. They also differ without colours.
_STYLES = (('#0072b2', 'o', '-'), ('#d55e00', 's', '--'),
           ('#555555', '^', ':'), ('#009e73', 'D', '-.'),
           ('#cc79a7', 'v', '-'), ('#e69f00', 'P', ':'))


def write(path: pathlib.Path, plot: report.Plot) -> None:
    import matplotlib
    matplotlib.use('svg')
    from matplotlib import pyplot
    # Text stays text, and identifiers are the same in each run.
    pyplot.rcParams.update({'svg.hashsalt': plot.name, 'font.size': 9,
                            'svg.fonttype': 'none'})
    panels = 2 if plot.ratios else 1
    figure, axes = pyplot.subplots(
        panels, sharex=True, squeeze=False, layout='constrained',
        figsize=(7, 3.4 if panels == 1 else 5),
        height_ratios=[2, 1][:panels])
    # A side has the same style in both panels.
    styles = dict(zip({**plot.lines, **plot.ratios}, _STYLES, strict=False))
    _draw(axes[0][0], plot.lines, styles, plot.y, plot.log)
    if plot.ratios:
        _draw(axes[1][0], plot.ratios, styles, plot.ratio, plot.log)
    axes[0][0].set_title(plot.title, fontsize=10)
    axes[-1][0].set_xlabel(plot.x)
    figure.savefig(path, metadata={'Date': None, 'Creator': None})
    pyplot.close(figure)
    # matplotlib leaves spaces at the ends of lines.
    path.write_text(''.join(
        f'{line.rstrip()}\n' for line in path.read_text().splitlines()))


def _draw(axis, lines, styles, label, log) -> None:
    from matplotlib import ticker
    if log:
        axis.set_xscale('log')
        axis.set_yscale('log')
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        for one in (axis.xaxis, axis.yaxis):
            one.set_minor_formatter(ticker.NullFormatter())
            one.set_major_formatter(ticker.FuncFormatter(
                lambda value, _position: f'{value:g}'))
    for name, points in lines.items():
        if points:
            colour, marker, style = styles[name]
            axis.plot(*zip(*points, strict=True), label=name, color=colour,
                      marker=marker, linestyle=style, markersize=4)
    axis.set_ylabel(label)
    axis.grid(True, which='major', color='#dddddd')
    if axis.has_data():
        axis.legend(fontsize=8, framealpha=0.9)

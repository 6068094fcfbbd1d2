# SPDX-License-Identifier: Apache-2.0
"""Columns and a table of medians of the figures of trials.

Figures have ``rounds``. Each round maps a way to the result of
:meth:`tests.integration.versus.trial.Trials.run`. Standard library only.
"""

from collections.abc import Mapping
import statistics

from tests.bench import report as report_
from tests.integration.versus import access


def column(figures: Mapping, way: str, step: str, key: str) -> list:
    """Return a figure of each round.

    :param step: ``boot`` or ``delete``
    """
    return [found[way][step][key] for found in figures['rounds']]


def requests(figures: Mapping, way: str, step: str) -> dict[str, float]:
    """Return the median number of requests by kind, without zeros."""
    rounds = column(figures, way, step, 'requests')
    counts = {kind: statistics.median(found.get(kind, 0) for found in rounds)
              for kind in set().union(*rounds)}
    return {kind: count for kind, count in counts.items() if count}


def reading(figures: Mapping, way: str) -> list[int]:
    """Return the milliseconds of each boot's reads per provider.

    A boot without recorded requests has 0.
    """
    return [sum(request.took for request in map(
        access.of_kept, found[way]['boot'].get('asked', []))
        if access.kind(request) == access.PER_PROVIDER)
        for found in figures['rounds']]


def label(kind: str) -> str:
    """Return the label of a number of requests of a kind."""
    return kind if kind == access.EVENTS else f'requests to {kind}'


def medians(figures: Mapping, titles: Mapping[str, str]) -> report_.Table:
    """:param titles: column titles by way"""
    rows = []
    for step in ('boot', 'delete'):
        rows.append((f'{step}, s', *(
            _spread(column(figures, way, step, 'seconds'))
            for way in titles)))
        asked = {way: requests(figures, way, step) for way in titles}
        rows.extend(
            (f'{step}: {label(kind)}', *(
                f'{asked[way].get(kind, 0):g}' for way in titles))
            for kind in sorted(set().union(*asked.values())))
        rows.extend(
            (f'{step}: {what}', *(
                f'{statistics.median(column(figures, way, step, key)):g}'
                for way in titles))
            for key, what in (('transactions', 'commits in MariaDB'),
                              ('writes', 'rows written in MariaDB')))
    return report_.Table(
        'Medians (least to most)', ('', *titles.values()), tuple(rows))


def measured(facts: Mapping, *services: str) -> str:
    """Return where figures were measured.

    :param services: those besides Nova and Placement, with their versions
    """
    versions = ', '.join([
        f'nova-accel at commit {facts["commit"]}', f'Nova {facts["nova"]}',
        f'Placement {facts["openstack-placement"]}', *services])
    return (f'Measured on {facts["cores"]} cores: {versions}; guests are '
            'emulated.')


def _spread(values) -> str:
    return (f'{statistics.median(values):.3f} '
            f'({min(values):.3f} to {max(values):.3f})')

# SPDX-License-Identifier: Apache-2.0
"""The Placement queries that the benchmark compares."""

import pytest

from tests.bench import report
from tests.bench import ways
from tests.bench import worker


def test_bundles_are_derived_from_free_devices():
    tree = ways.WAYS[ways.BUNDLES].tree
    assert tree(()) == {'': {'CUSTOM_GPUS_1': 8, 'CUSTOM_GPUS_2': 4,
                             'CUSTOM_GPUS_4': 2, 'CUSTOM_GPUS_8': 1}}
    # One pair is in use. Six devices are free: three pairs, one four.
    assert tree((2,)) == {'': {'CUSTOM_GPUS_1': 6, 'CUSTOM_GPUS_2': 4,
                               'CUSTOM_GPUS_4': 1, 'CUSTOM_GPUS_8': 0}}


@pytest.mark.parametrize('name, groups', [
    (ways.CLASS, ['CUSTOM_GPU:4']), (ways.EACH, ['CUSTOM_GPU:1'] * 4),
    (ways.REWRITTEN, ['CUSTOM_GPU:1']), (ways.BUNDLES, ['CUSTOM_GPUS_4:1'])])
def test_query_requests_four_devices(name, groups):
    asked = [part.partition('=')[2]
             for part in ways.WAYS[name].query(4).split('&')
             if part.startswith('resources_')]
    assert asked == groups


def test_unfinished_cells_are_marked():
    cells = [{'way': way, 'hosts': 1, 'count': 8, 'state': state,
              'seconds': 0.5, 'candidates': 1, 'hosts_found': 1, 'fit': 1,
              'able': 1}
             for way in ways.WAYS
             for state in (ways.FREE, ways.CROWDED, ways.STALE)]
    cells[0] = {'way': ways.EACH, 'hosts': 1, 'count': 8, 'state': ways.FREE,
                'failed': worker.TIMED_OUT}
    text = report.rst('ways', ways.report({'limit': 30, 'cells': cells}), '')
    assert '     - > 30 s\n' in text
    assert '     - 0.5\n' in text

# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes in sysfs: which have CPUs, and which of these is nearest."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.host import numa
from nova_accel.host import tree
from tests.unit import build


def _read(nodes):
    return numa.read(tree.Recording(build.numa_nodes(nodes)))[:2]


@pytest.mark.parametrize('names, nodes', [
    ([], ()),
    (['node0'], (0,)),
    (['node10', 'node2', 'node0'], (0, 2, 10)),
    (['node0', 'possible', 'online', 'nodeX', 'node', 'xnode1', 'node1\n'],
     (0,)),
])
def test_numa_nodes_are_read_sorted(names, nodes):
    """Without ``cpulist``, as in older recordings, all count as with CPUs."""
    recording = tree.Recording(
        folders=[f'{numa.NODES}/{name}' for name in names])
    assert numa.read(recording)[:2] == (nodes, {})


def test_nodes_without_cpus_count_as_the_nearest_with_cpus():
    """The columns of ``distance`` are the online nodes, with gaps."""
    assert numa.read(tree.Recording(build.CPULESS_NODES))[:2] == (
        (0, 1), {2: 1, 10: 0})


_CPUS = {0: ('0-3', '10 20 30'), 1: ('4-7', '20 10 30')}


@pytest.mark.parametrize('distance, nearest', [
    ('30 20 10', 1), ('20 30 10', 0),
    # The kernel writes a blank first if node 0 is offline.
    (' 30 20 10', 1),
    # As the kernel chooses (numa_nearest_node).
    ('20 20 10', 0), ('255 255 10', 0)])
def test_nearest_is_by_distance_then_by_number(distance, nearest):
    assert _read({**_CPUS, 2: ('', distance)}) == ((0, 1), {2: nearest})


@pytest.mark.parametrize('distance', [
    None, '', '30', '30 20', '30 20 10 10', '30 x 10', '30 -20 10', '? ? ?',
    '30 20\xff 10', f'30 {"9" * 5000} 10'])
def test_node_with_an_unclear_distance_counts_as_with_cpus(distance):
    assert _read({**_CPUS, 2: ('', distance)}) == ((0, 1, 2), {})


@pytest.mark.parametrize('distance', [None, 'x', '30 20'])
def test_only_node_with_cpus_is_nearest_whatever_the_distance(distance):
    assert _read({0: ('', distance), 3: ('0-3', None), 7: ('', distance)}) == (
        (3,), {0: 3, 7: 3})


def test_without_any_cpus_each_node_counts():
    assert _read({0: ('', '10 20'), 1: ('', '20 10')}) == ((0, 1), {})


@given(st.dictionaries(
    st.integers(0, 12), st.tuples(
        st.sampled_from(['', '0', None]) | st.text(max_size=3),
        st.none() | st.text() | st.lists(
            st.integers(-1, 255), max_size=5).map(
                lambda row: ' '.join(map(str, row)))), max_size=5))
def test_each_node_counts_once(nodes):
    with_cpus, nearest = _read(nodes)
    there = {number for number, texts in nodes.items()
             if texts != (None, None)}
    assert sorted([*with_cpus, *nearest]) == sorted(there)
    assert set(nearest.values()) <= set(with_cpus)

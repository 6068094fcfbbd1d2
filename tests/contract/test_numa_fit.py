# SPDX-License-Identifier: Apache-2.0
"""The sets of host NUMA nodes that are tried for a guest."""

import itertools
import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from nova import objects
from nova.virt import hardware
import pytest

from nova_accel import numa_fit


@pytest.fixture(scope='module', autouse=True)
def registered():
    objects.register_all()


def _host(count, networked=(), full=(), cpuless=()):
    """Return a host whose nodes have two dedicated CPUs each.

    :param cpuless: numbers of nodes that have none
    """
    return objects.NUMATopology(cells=[objects.NUMACell(
        id=number, cpuset=set(), pcpuset=(
            set() if number in cpuless else {2 * number, 2 * number + 1}),
        memory=1024, cpu_usage=0, memory_usage=0, mempages=[
            objects.NUMAPagesTopology(size_kb=4, total=262144, used=0)],
        siblings=[{2 * number}, {2 * number + 1}],
        pinned_cpus={2 * number, 2 * number + 1} if number in full else set(),
        network_metadata=objects.NetworkMetadata(
            physnets={'net'} if number in networked else set(),
            tunneled=False))
        for number in range(count)])


def _guest(cells):
    return objects.InstanceNUMATopology(cells=[objects.InstanceNUMACell(
        id=number, cpuset=set(), pcpuset={number}, memory=256, pagesize=None,
        cpu_pinning_raw=None, cpu_policy='dedicated', cpu_thread_policy=None)
        for number in range(cells)])


_NODES = st.sets(st.integers(0, 9))


@given(st.integers(1, 8), st.integers(1, 8), _NODES, _NODES)
def test_small_host_yields_all_sets(count, number, first, networked):
    found = list(numa_fit.node_sets(_host(count, networked), number, first))
    needed = networked & set(range(count))
    everything = {frozenset(nodes) for nodes in itertools.combinations(
        range(count), number) if needed <= set(nodes)}
    assert len(found) == len(set(found))
    if math.factorial(number) < 1000:
        assert set(found) == everything
    else:
        assert set(found) <= everything and bool(found) == bool(everything)
    shares = [len(nodes & first - needed) for nodes in found]
    assert shares == sorted(shares, reverse=True)


@given(st.integers(1, 4), _NODES, st.booleans())
def test_node_without_cpus_is_in_no_set(number, first, is_shared):
    """A host like one of two Grace with four GPUs: libvirt lists 34 nodes."""
    host = _host(34, cpuless=range(4, 34))
    if is_shared:
        for cell in host.cells:
            cell.cpuset, cell.pcpuset = cell.pcpuset, set()
    found = list(numa_fit.node_sets(host, number, first))
    assert set(found) == {frozenset(nodes) for nodes
                          in itertools.combinations(range(4), number)}
    assert len(found) == len(set(found))


def test_network_near_a_node_without_cpus_is_not_forgotten():
    """Nova refuses such a guest, so no set must hide the network."""
    assert all(3 in nodes for nodes in numa_fit.node_sets(
        _host(4, networked={3}, cpuless={2, 3}), 2, {0}))


@settings(deadline=None)
@given(st.integers(9, 40), st.integers(1, 20), _NODES, _NODES)
def test_large_host_yields_each_combination_of_preferred_nodes(
        count, number, first, networked):
    """A large host yields few of possibly millions of sets.

    They include each combination of preferred nodes.
    """
    found = list(numa_fit.node_sets(_host(count, networked), number, first))
    assert len(found) == len(set(found)) <= numa_fit.MOST
    assert all(len(nodes) == number and networked & set(range(count)) <= nodes
               for nodes in found)
    if number == 2 and not networked and len(first) < 6:
        ways = {nodes & first for nodes in found}
        assert len(ways) == sum(
            math.comb(len(first & set(range(count))), size)
            for size in range(3))


def test_full_node_is_given_up_after_few_fits(monkeypatch):
    """A preferred node that is full costs only a few fits.

    None of the 6435 sets with this node fits. Nova's own set fits.
    """
    asked = []
    original = getattr(hardware.numa_fit_instance_to_host, 'nova_accel',
                       hardware.numa_fit_instance_to_host)

    def count(host_topology, *args, **kwargs):
        asked.append(len(host_topology.cells))
        return original(host_topology, *args, **kwargs)

    monkeypatch.setattr(hardware, 'numa_fit_instance_to_host', count)
    numa_fit.numa_fit_instance_to_host.install()
    with numa_fit.preferred_nodes({0}):
        fitted = hardware.numa_fit_instance_to_host(
            _host(16, full={0}), _guest(8), provider_mapping={})
    assert len(fitted.cells) == 8
    assert 0 not in {cell.id for cell in fitted.cells}
    assert asked == [8, 8, 8, 8, 16]


def test_nodes_with_most_room_come_first():
    host = _host(12, full={1, 2, 3, 4})
    host.cells[7].memory_usage = 512
    first, *_more = numa_fit.node_sets(host, 6, {0})
    assert first == {0, 5, 6, 8, 9, 10}

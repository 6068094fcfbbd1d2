# SPDX-License-Identifier: Apache-2.0
"""A guest is put on the NUMA nodes of its devices, if it fits there.

Nova takes the first nodes on which a guest fits, those with most room first as
a rule, wherever the devices are that the guest was promised.

Seam: ``nova.virt.hardware.numa_fit_instance_to_host``, wrapped. Checked with
Nova 33 and 34.
"""

import collections.abc
import contextlib
import contextvars
import functools
import itertools

from nova import objects
from nova.virt import hardware

_near: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar(
    'nova_accel_near', default=frozenset())


@contextlib.contextmanager
def near(nodes: collections.abc.Iterable[int]):
    """Have guests put on these nodes of the host, within; if they fit."""
    token = _near.set(frozenset(nodes))
    try:
        yield
    finally:
        _near.reset(token)


def install() -> None:
    """Wrap the function; once, however often called."""
    original = hardware.numa_fit_instance_to_host
    if hasattr(original, 'nova_accel'):
        return

    @functools.wraps(original)
    def fit(host_topology, instance_topology, *args, **kwargs):
        if host_topology and instance_topology:
            for cells in _choices(host_topology, len(instance_topology),
                                  _near.get()):
                fitted = original(
                    part(host_topology, cells),
                    # The function writes into what it is given.
                    instance_topology.obj_clone(), *args, **kwargs)
                if fitted:
                    return fitted
        return original(host_topology, instance_topology, *args, **kwargs)

    fit.nova_accel = original
    hardware.numa_fit_instance_to_host = fit


def part(host_topology, nodes: collections.abc.Set[int]):
    """A host's topology, as if it had only some of its nodes.

    :param host_topology: nova.objects.NUMATopology
    """
    return objects.NUMATopology(cells=[
        cell for cell in host_topology.cells if cell.id in nodes])


def choices(host_topology, number: int) -> collections.abc.Iterator[
        frozenset[int]]:
    """Each set of so many nodes of a host that a guest can be fitted to."""
    return (nodes for nodes in map(frozenset, itertools.combinations(
        sorted(cell.id for cell in host_topology.cells), number))
        if _may_be_alone(host_topology, nodes))


def _choices(host_topology, number, nodes):
    """The sets of a host's nodes that a guest is fitted to first."""
    wanted = frozenset(cell.id for cell in host_topology.cells) & nodes
    if not wanted or number >= len(host_topology.cells):
        return
    if len(wanted) >= number:
        if _may_be_alone(host_topology, wanted):
            yield wanted
        return
    yield from (chosen for chosen in choices(host_topology, number)
                if wanted <= chosen)


def _may_be_alone(host_topology, nodes) -> bool:
    """Whether Nova misses nothing where it sees these nodes alone.

    It wants to see which other node a physical network is near to.
    """
    return not any(
        'network_metadata' in cell and cell.network_metadata and (
            cell.network_metadata.physnets or cell.network_metadata.tunneled)
        for cell in host_topology.cells if cell.id not in nodes)

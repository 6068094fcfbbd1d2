# SPDX-License-Identifier: Apache-2.0
"""Place a guest on the NUMA nodes of its devices, if it fits there.

Nova takes the first nodes on which a guest fits, usually those with the most
free resources first. It does not consider where the guest's devices are.

Seam: ``nova.virt.hardware.numa_fit_instance_to_host``, wrapped.
"""

import collections.abc
import contextlib
import contextvars
import itertools
import math
import typing

from nova import objects
from nova.virt import hardware

from nova_accel import seams

#: Number of sets of nodes to try. A host with eight nodes has at most 70.
MOST = 128
#: Number of orders of nodes to try, over all sets. If a guest does not fit,
#: Nova tries all orders of a set: 40,320 for eight nodes.
_ORDERS = 30_000
#: Number of sets to try in any case, however many orders they have.
_LEAST = 4

#: ``nova.objects.NUMATopology``
Topology = typing.Any

_near: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar(
    'nova_accel_near', default=frozenset())


@contextlib.contextmanager
def preferred_nodes(nodes: collections.abc.Iterable[int],
                    ) -> collections.abc.Iterator[None]:
    """In this context, place guests on these host nodes if they fit there."""
    token = _near.set(frozenset(nodes))
    try:
        yield
    finally:
        _near.reset(token)


@seams.wrap(hardware, 'numa_fit_instance_to_host')
def numa_fit_instance_to_host(
        original: collections.abc.Callable[..., typing.Any],
        host_topology: Topology | None, instance_topology: typing.Any,
        *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
    """Fit a guest to the :func:`preferred_nodes`, else as Nova does."""
    if host_topology and instance_topology:
        for cells in _choices(host_topology, len(instance_topology),
                              _near.get()):
            fitted = original(
                restrict(host_topology, cells),
                # The function modifies its argument.
                instance_topology.obj_clone(), *args, **kwargs)
            if fitted:
                return fitted
    return original(host_topology, instance_topology, *args, **kwargs)


def restrict(host_topology: Topology,
             nodes: collections.abc.Set[int]) -> Topology:
    """Return a host's topology restricted to some of its nodes."""
    return objects.NUMATopology(cells=[
        cell for cell in host_topology.cells if cell.id in nodes])


def node_sets(host_topology: Topology, number: int,
              first: collections.abc.Set[int] = frozenset(),
              ) -> collections.abc.Iterator[frozenset[int]]:
    """Return the sets of host nodes to which to fit a guest.

    All sets, if there are not too many. Otherwise each combination of the
    preferred nodes, completed with the nodes that have the most room.

    :param number: nodes in each set
    :param first: preferred nodes; sets with more of them come first
    """
    required, limit = _networked(host_topology), _limit(number)
    others = [cell.id for cell in _with_cpus(host_topology)
              if cell.id not in required]
    preferred = [node for node in others if node in first]
    free = number - len(required)
    parts = list(itertools.islice((
        required.union(part)
        for size in range(min(free, len(preferred)), -1, -1)
        for part in itertools.combinations(preferred, size)), limit))
    is_all = free >= 0 and math.comb(len(others), free) <= limit
    each = limit if is_all else max(1, limit // max(1, len(parts)))
    return itertools.islice(itertools.chain.from_iterable(
        _completed(host_topology, number, part, required.union(preferred),
                   each)
        for part in parts), limit)


def _choices(host_topology: Topology, number: int, nodes: frozenset[int],
             ) -> collections.abc.Iterator[frozenset[int]]:
    """Yield the sets of host nodes to try before Nova's own order."""
    cells = _with_cpus(host_topology)
    near = frozenset(cell.id for cell in cells) & nodes
    if not near or number >= len(cells):
        return
    required = _networked(host_topology)
    if len(near) >= number:
        if required <= near:
            yield near
    elif len(near | required) <= number:
        yield from _completed(host_topology, number, near | required,
                              near | required, _limit(number))


def _completed(host_topology: Topology, number: int, part: frozenset[int],
               others: frozenset[int], limit: int,
               ) -> collections.abc.Iterator[frozenset[int]]:
    """Complete a part to sets, with the nodes that have the most room.

    :param others: nodes that must not be added
    """
    rest = sorted((cell for cell in _with_cpus(host_topology)
                   if cell.id not in others), key=_room)
    return (part.union(more) for more in itertools.islice(
        itertools.combinations([cell.id for cell in rest],
                               number - len(part)), limit))


def _with_cpus(host_topology: Topology) -> list[typing.Any]:
    """Return the cells on which a guest can be: libvirt lists all nodes."""
    return [cell for cell in host_topology.cells
            if cell.cpuset or cell.pcpuset]


def _room(cell: typing.Any) -> tuple[int, ...]:
    return -len(cell.free_pcpus), -cell.avail_memory, cell.id


def _limit(number: int) -> int:
    """Return how many sets of this many nodes to try."""
    return max(_LEAST, min(MOST, _ORDERS // math.factorial(number)))


def _networked(host_topology: Topology) -> frozenset[int]:
    """Return the nodes that are near a physical network or tunnels.

    Nova reads from them where networks are, so they are part of every set.
    """
    return frozenset(
        cell.id for cell in host_topology.cells
        if 'network_metadata' in cell and cell.network_metadata and (
            cell.network_metadata.physnets or cell.network_metadata.tunneled))

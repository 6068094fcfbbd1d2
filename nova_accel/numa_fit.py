# SPDX-License-Identifier: Apache-2.0
"""A guest is put on the NUMA nodes of its devices, if it fits there.

Nova takes the first nodes on which a guest fits, those with most room first as
a rule, wherever the devices are that the guest was promised.

Seam: ``nova.virt.hardware.numa_fit_instance_to_host``, wrapped.
"""

import collections.abc
import contextlib
import contextvars
import itertools
import math

from nova import objects
from nova.virt import hardware

from nova_accel import seams

#: How many sets of nodes are tried; all of a host with eight are 70 at most.
MOST = 128
#: In how many orders their nodes are. Nova tries each of a set where a guest
#: does not fit, and with eight nodes there are 40,320.
_ORDERS = 30_000
#: However many orders there are.
_LEAST = 4

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


@seams.wrap(hardware, 'numa_fit_instance_to_host')
def numa_fit_instance_to_host(original, host_topology, instance_topology,
                              *args, **kwargs):
    """Fit a guest to the nodes that :func:`near` says, or as Nova does."""
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


def part(host_topology, nodes: collections.abc.Set[int]):
    """A host's topology, as if it had only some of its nodes.

    :param host_topology: nova.objects.NUMATopology
    """
    return objects.NUMATopology(cells=[
        cell for cell in host_topology.cells if cell.id in nodes])


def choices(host_topology, number: int,
            first: collections.abc.Set[int] = frozenset(),
            ) -> collections.abc.Iterator[frozenset[int]]:
    """Sets of so many nodes of a host that a guest can be fitted to.

    All, or of too many those that matter: with some nodes in each way, and
    besides what has most room.

    :param first: those nodes; sets with more of them come first
    """
    known, most = _networked(host_topology), _most(number)
    near = [cell.id for cell in host_topology.cells
            if cell.id in first and cell.id not in known]
    parts = list(itertools.islice((
        known.union(part)
        for size in range(min(number - len(known), len(near)), -1, -1)
        for part in itertools.combinations(near, size)), most))
    is_all = len(known) <= number and math.comb(
        len(host_topology.cells) - len(known), number - len(known)) <= most
    each = most if is_all else max(1, most // max(1, len(parts)))
    return itertools.islice(itertools.chain.from_iterable(
        _completed(host_topology, number, part, known.union(near), each)
        for part in parts), most)


def _choices(host_topology, number, nodes):
    """The sets of a host's nodes that a guest is fitted to first."""
    wanted = frozenset(cell.id for cell in host_topology.cells) & nodes
    if not wanted or number >= len(host_topology.cells):
        return
    known = _networked(host_topology)
    if len(wanted) >= number:
        if known <= wanted:
            yield wanted
    elif len(wanted | known) <= number:
        yield from _completed(host_topology, number, wanted | known,
                              wanted | known, _most(number))


def _completed(host_topology, number, part, others, most):
    """Sets of a part and what has most room, but for some others."""
    rest = sorted((cell for cell in host_topology.cells
                   if cell.id not in others), key=_room)
    return (part.union(more) for more in itertools.islice(
        itertools.combinations([cell.id for cell in rest],
                               number - len(part)), most))


def _room(cell) -> tuple[int, ...]:
    return -len(cell.free_pcpus), -cell.avail_memory, cell.id


def _most(number: int) -> int:
    return max(_LEAST, min(MOST, _ORDERS // math.factorial(number)))


def _networked(host_topology) -> frozenset[int]:
    """The nodes that Nova has to see beside any others.

    It wants to know which node a physical network is near to.
    """
    return frozenset(
        cell.id for cell in host_topology.cells
        if 'network_metadata' in cell and cell.network_metadata and (
            cell.network_metadata.physnets or cell.network_metadata.tunneled))

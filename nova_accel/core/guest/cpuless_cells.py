# SPDX-License-Identifier: Apache-2.0
"""NUMA cells without CPUs, for devices on such nodes of the host.

A device of a GPU with coherent memory (Grace), for example, is on a node that
has no CPUs. Its guest gets a cell without CPUs for it, as far from the other
cells as the node is from theirs. A kernel ignores a cell without memory, so
the cell takes some from the nearest one.

Sources: libvirt's formatdomain, "Guest NUMA node distance configuration";
ACPI specification, System Locality Information Table (10 is the distance of a
node to itself); QEMU refuses a memory backend of size 0.
"""

import collections.abc

from nova_accel.core import model

#: The memory of a cell without CPUs, in KiB: Linux before 6.7 may ignore a
#: node with less than 4 MiB.
MEMORY_KIB = 16 * 1024

_OWN, _NEAREST, _FARTHEST = 10, 11, 254


def plan(located: collections.abc.Iterable[model.Location],
         cells: collections.abc.Mapping[int, int]) -> dict[int, int]:
    """Return the nodes without CPUs that need a cell.

    :param located: the locations of the guest's hostdevs
    :param cells: the guest's cell by the host's NUMA node
    :returns: the cell on the nearest node with CPUs by node, sorted
    """
    return dict(sorted((location.cpuless_node, cells[location.numa_node])
                       for location in located
                       if location.cpuless_node is not None
                       and location.numa_node is not None
                       and location.numa_node in cells))


def distances(cells: collections.abc.Mapping[int, int],
              known: collections.abc.Mapping[int, collections.abc.Mapping[
                  int, int]]) -> dict[int, dict[int, int]]:
    """Return the distance of each cell to each, as the host has them.

    :param cells: cell by the host's node, with the cells to add
    :param known: distances of the host's nodes
    :returns: nothing if one is unknown
    """
    try:
        return {cell: {other: _OWN if cell == other else min(max(
            known[node][there], _NEAREST), _FARTHEST)
            for there, other in cells.items()}
            for node, cell in cells.items()}
    except KeyError:
        return {}


def memory(available: int, page: int) -> int | None:
    """Return the memory of a cell without CPUs, in KiB.

    :param available: memory of the nearest cell, in KiB
    :param page: size of its pages, in KiB
    :returns: None if the nearest cell has too little
    """
    size = -(-MEMORY_KIB // page) * page
    return size if 2 * size <= available else None

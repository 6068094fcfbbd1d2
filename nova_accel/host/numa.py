# SPDX-License-Identifier: Apache-2.0
"""Read NUMA nodes from sysfs.

A node can have memory or devices and no CPUs: that of a GPU with coherent
memory (Grace), of CXL memory, or of HBM in flat mode. No guest runs there, so
what is on such a node counts as on the nearest node with CPUs.

Sources: the kernel's Documentation/ABI/stable/sysfs-devices-node (``cpulist``,
``distance``); drivers/base/node.c (node_read_distance has a column for each
online node, and the directories are those of online nodes); mm/mempolicy.c
(numa_nearest_node takes the lowest of equally near nodes).
"""

import re
import typing

from nova_accel.host import tree as trees

NODES = 'sys/devices/system/node'

_NUMBER = re.compile(r'[0-9]{1,9}')


class Nodes(typing.NamedTuple):
    """The NUMA nodes of a machine.

    :param with_cpus: sorted
    :param nearest: the nearest of these by each other node
    :param distances: of each node to each, as far as they are known
    """

    with_cpus: tuple[int, ...]
    nearest: dict[int, int]
    distances: dict[int, dict[int, int]]


def read(tree: trees.Tree) -> Nodes:
    """Return the NUMA nodes.

    A node without ``cpulist`` counts as one with CPUs, as does one whose
    ``distance`` does not tell which node is nearest.
    """
    nodes = sorted(int(name.removeprefix('node')) for name in tree.names(NODES)
                   if re.fullmatch(r'node\d{1,9}', name))
    with_cpus = [node for node in nodes if _has_cpus(tree, node)]
    # Read those of all nodes, so that a recording has them.
    distances = {node: _distances(tree, node, nodes) for node in nodes}
    nearest = {
        node: found for node in nodes if node not in with_cpus
        and (found := _nearest(distances[node], with_cpus)) is not None}
    return Nodes(tuple(node for node in nodes if node not in nearest), nearest,
                 {node: found for node, found in distances.items() if found})


def _nearest(distances: dict[int, int], with_cpus: list[int]) -> int | None:
    """Return the nearest node, None if that is unknown."""
    if distances:
        return min(with_cpus, key=distances.__getitem__, default=None)
    return with_cpus[0] if len(with_cpus) == 1 else None


def _has_cpus(tree: trees.Tree, node: int) -> bool:
    cpus = tree.text(f'{NODES}/node{node}/cpulist')
    return cpus is None or bool(cpus.strip())


def _distances(tree: trees.Tree, node: int, nodes: list[int],
               ) -> dict[int, int]:
    """Return the distance to each node; empty if it cannot be understood."""
    words = (tree.text(f'{NODES}/node{node}/distance') or '').split()
    if len(words) != len(nodes) or not all(map(_NUMBER.fullmatch, words)):
        return {}
    return dict(zip(nodes, map(int, words), strict=True))

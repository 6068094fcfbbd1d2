# SPDX-License-Identifier: Apache-2.0
"""The NUMA cells of a guest, and cells for its devices on nodes without CPUs.

Seams: ``nova.virt.libvirt.config.LibvirtConfigGuestCPUNUMACell``, whose
format_dom has no distances, ``LibvirtConfigGuestNUMATuneMemNode`` and
``LibvirtConfigGuestMemoryBackingPage``.
"""

import collections.abc

from lxml import etree
from nova.virt.libvirt import config
from oslo_log import log as logging

from nova_accel.core import model
from nova_accel.core.guest import cpuless_cells

LOG = logging.getLogger(__name__)

_SMALL_PAGE = 4


class _Cell(config.LibvirtConfigGuestCPUNUMACell):
    """Nova's cell, with its distances to all cells."""

    def __init__(self, cell: config.LibvirtConfigGuestCPUNUMACell,
                 distances: collections.abc.Mapping[int, int]) -> None:
        super().__init__()
        self.id, self.cpus = cell.id, cell.cpus
        self.memory, self.memAccess = cell.memory, cell.memAccess
        self.distances = distances

    def format_dom(self):
        element = super().format_dom()
        if self.distances:
            siblings = etree.SubElement(element, 'distances')
            for other, value in self.distances.items():
                etree.SubElement(siblings, 'sibling', id=str(other),
                                 value=str(value))
        return element


def of(guest: config.LibvirtConfigGuest) -> dict[int, int]:
    """Return the guest's NUMA cells, by the host's node of their memory."""
    return {node: memnode.cellid
            for memnode in (guest.numatune.memnodes if guest.numatune else ())
            for node in memnode.nodeset}


def add_cpuless(guest: config.LibvirtConfigGuest,
                located: collections.abc.Iterable[model.Location],
                host: model.Host) -> dict[int, int]:
    """Add cells for the devices on nodes without CPUs.

    :param located: the locations of the guest's hostdevs
    :returns: the guest's cells by the host's node, with the added ones
    """
    cells = of(guest)
    numa = guest.cpu and guest.cpu.numa
    if not numa:
        return cells
    added = {}
    for node, nearest in cpuless_cells.plan(located, cells).items():
        # libvirt wants consecutive ids.
        if _add(guest, node, nearest, len(numa.cells)):
            added[node] = numa.cells[-1].id
    if added:
        cells |= added
        distances = cpuless_cells.distances(cells, host.distances)
        numa.cells = [_Cell(cell, distances.get(cell.id, {}))
                      for cell in numa.cells]
    return cells


def _add(guest, node: int, nearest_id: int, number: int) -> bool:
    """Add a cell, with memory of the nearest one and on the same node."""
    nearest = next(cell for cell in guest.cpu.numa.cells
                   if cell.id == nearest_id)
    pages = [page for page in (guest.membacking.hugepages
                               if guest.membacking else ())
             if nearest_id in page.nodeset]
    memory = cpuless_cells.memory(nearest.memory, max(
        [page.size_kb for page in pages], default=_SMALL_PAGE))
    if memory is None:
        LOG.info('Devices on NUMA node %d get no cell of their own: the '
                 'nearest cell of the guest has only %d KiB of memory',
                 node, nearest.memory)
        return False
    nearest.memory -= memory
    cell = config.LibvirtConfigGuestCPUNUMACell()
    cell.id, cell.memory = number, memory
    cell.memAccess = nearest.memAccess
    guest.cpu.numa.cells.append(cell)
    for page in pages:
        page.nodeset = [*page.nodeset, number]
    bound = next(memnode for memnode in guest.numatune.memnodes
                 if memnode.cellid == nearest_id)
    memnode = config.LibvirtConfigGuestNUMATuneMemNode()
    memnode.cellid, memnode.mode = number, bound.mode
    memnode.nodeset = bound.nodeset
    guest.numatune.memnodes.append(memnode)
    return True

# SPDX-License-Identifier: Apache-2.0
"""The definition of a guest with NUMA cells, as Nova makes it."""

import collections.abc

from nova.virt.libvirt import config

#: The memory of a cell, in KiB.
MEMORY = 256 * 1024


def define(nodes: collections.abc.Sequence[int], ports: int,
           mach_type: str | None = 'pc-q35-8.2', arch: str | None = 'x86_64',
           ) -> config.LibvirtConfigGuest:
    """A guest before it is given devices.

    :param nodes: the host's node of each of its cells, which have one CPU
    :param ports: how many PCIe root ports, as ``[libvirt] num_pcie_ports``
        has it
    """
    guest = config.LibvirtConfigGuest()
    guest.os_arch, guest.os_mach_type = arch, mach_type
    if nodes:
        guest.cpu = config.LibvirtConfigGuestCPU()
        guest.cpu.mode = None
        guest.numatune = config.LibvirtConfigGuestNUMATune()
        guest.cpu.numa = config.LibvirtConfigGuestCPUNUMA()
    for number, node in enumerate(nodes):
        cell = config.LibvirtConfigGuestCPUNUMACell()
        cell.id, cell.cpus, cell.memory = number, {number}, MEMORY
        guest.cpu.numa.cells.append(cell)
        memnode = config.LibvirtConfigGuestNUMATuneMemNode()
        memnode.cellid, memnode.nodeset = number, [node]
        guest.numatune.memnodes.append(memnode)
    if ports:
        guest.add_device(config.LibvirtConfigGuestPCIeRootController())
    for _port in range(ports):
        guest.add_device(config.LibvirtConfigGuestPCIeRootPortController())
    return guest

# SPDX-License-Identifier: Apache-2.0
"""Libvirt configuration of the PCI buses that hostdevs are on.

Seam: ``nova.virt.libvirt.config.LibvirtConfigGuestController``, which has no
addresses and no expander buses.
"""

import collections.abc

from lxml import etree
import nova.conf
from nova.virt.libvirt import config

from nova_accel.compute.guest import hostdev_xml
from nova_accel.compute.guest import numa_cells
from nova_accel.core import model
from nova_accel.core.guest import guest_buses
from nova_accel.core.guest import pcie_topology

CONF = nova.conf.CONF


class _Controller(config.LibvirtConfigGuestController):
    """A PCI controller, with the address and the target that we choose."""

    def __init__(self, planned: guest_buses.Controller) -> None:
        super().__init__()
        self.type = 'pci'
        self.model, self.index = planned.model, planned.index
        self._planned = planned

    def format_dom(self):
        element = super().format_dom()
        planned = self._planned
        if planned.number is not None:
            target = etree.SubElement(element, 'target',
                                      busNr=str(planned.number))
            etree.SubElement(target, 'node').text = str(planned.cell)
        if planned.address:
            address = hostdev_xml.address(planned.address)
            if planned.model == 'pcie-root-port' and (
                    not planned.address.function):
                address.set('multifunction', 'on')
            element.append(address)
        return element


def add(guest: config.LibvirtConfigGuest,
        located: collections.abc.Mapping[model.Address, model.Location],
        host: model.Host, switches: bool = False,
        ) -> collections.abc.Mapping[model.Address, model.PciAddress]:
    """Add buses on a guest's NUMA cells, and switches, for hostdevs.

    :param guest: complete except for the hostdevs
    :param located: their locations on the host
    :param switches: whether the profile asks for switches
    :returns: address in the domain by the hostdev's address on the host
    """
    if not _takes_buses(guest):
        return {}
    cells = (numa_cells.add_cpuless(guest, located.values(), host)
             if CONF.nova_accel.guest_numa_affinity else {})
    plan = pcie_topology.plan(located, cells, _first_index(guest), switches)
    for controller in plan.controllers:
        guest.add_device(_Controller(controller))
    return plan.places


def _takes_buses(guest) -> bool:
    """Whether libvirt supports such buses for the guest's machine type."""
    machine = guest.os_mach_type or ''
    return (guest.os_arch == 'x86_64' and 'q35' in machine
            or guest.os_arch == 'aarch64' and machine.startswith('virt'))


def _first_index(guest) -> int:
    """Return the first free index of PCI controllers.

    Nova's controllers have no index: libvirt assigns the lowest ones in order.
    Index 0 is the root bus, whether Nova adds it or not.
    """
    return max(1, sum(
        isinstance(device, config.LibvirtConfigGuestController)
        and device.type == 'pci' for device in guest.devices))

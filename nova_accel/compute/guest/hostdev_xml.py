# SPDX-License-Identifier: Apache-2.0
"""Libvirt configuration of hostdevs, and of the PCI buses that they are on.

Seams: ``nova.virt.libvirt.config.LibvirtConfigGuestHostdevPCI`` and ``MDEV``,
whose format_dom omits the alias and the guest's address, and
``LibvirtConfigGuestController``, which has no addresses and no expander buses.
"""

import collections.abc

from lxml import etree
import nova.conf
from nova.virt.libvirt import config
from nova.virt.libvirt import host

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.guest import pcie_topology

CONF = nova.conf.CONF


class _Aliased:
    """Nova's hostdev element, with its user alias and the guest's address."""

    guest_address: model.PciAddress | None = None

    def format_dom(self):
        element = super().format_dom()
        if self.alias and element.find('alias') is None:
            etree.SubElement(element, 'alias', name=self.alias)
        if self.guest_address:
            element.append(_address(self.guest_address))
        return element


class AliasedFunction(_Aliased, config.LibvirtConfigGuestHostdevPCI):
    pass


class AliasedMdev(_Aliased, config.LibvirtConfigGuestHostdevMDEV):
    pass


class RootBus(config.LibvirtConfigGuestController):
    """A ``pcie-expander-bus``."""

    def __init__(self, planned: pcie_topology.RootBus):
        super().__init__()
        self.type = 'pci'
        self.model = 'pcie-expander-bus'
        self.index = planned.index
        self.number = planned.number
        self.cell = planned.cell

    def format_dom(self):
        element = super().format_dom()
        target = etree.SubElement(element, 'target', busNr=str(self.number))
        etree.SubElement(target, 'node').text = str(self.cell)
        return element


class RootPort(config.LibvirtConfigGuestPCIeRootPortController):
    """Nova's root port, with an address that we choose."""

    def __init__(self, bus: pcie_topology.RootBus,
                 planned: pcie_topology.RootPort):
        super().__init__()
        self.index = planned.index
        self.address = model.PciAddress(0, bus.index, planned.slot,
                                        planned.function)

    def format_dom(self):
        element = super().format_dom()
        address = _address(self.address)
        if not self.address.function:
            address.set('multifunction', 'on')
        element.append(address)
        return element


def add(guest: config.LibvirtConfigGuest, hostdevs: hostdev.Hostdevs,
        located: collections.abc.Mapping[model.Address, model.Location],
        ) -> None:
    """Add hostdevs to a guest, on buses of its NUMA cells if possible.

    :param guest: complete except for the hostdevs
    :param located: their locations on the host
    """
    buses = ()
    if CONF.nova_accel.guest_numa_affinity and _takes_root_buses(guest):
        buses = pcie_topology.plan(located, _cells(guest),
                                   _first_index(guest))
    places = {}
    for bus in buses:
        guest.add_device(RootBus(bus))
        for port in bus.ports:
            guest.add_device(RootPort(bus, port))
            places[port.holds] = port.guest_address
    for device in hostdevs:
        guest.add_device(hostdev_config(device, places.get(device.address)))


def _takes_root_buses(guest) -> bool:
    """Whether libvirt supports expander buses for the guest's machine type."""
    machine = guest.os_mach_type or ''
    return (guest.os_arch == 'x86_64' and 'q35' in machine
            or guest.os_arch == 'aarch64' and machine.startswith('virt'))


def _cells(guest) -> dict[int, int]:
    """Return the guest's NUMA cells, by the host's node of their memory."""
    return {node: memnode.cellid
            for memnode in (guest.numatune.memnodes if guest.numatune else ())
            for node in memnode.nodeset}


def _first_index(guest) -> int:
    """Return the first free index of PCI controllers.

    Nova's controllers have no index: libvirt assigns the lowest ones in order.
    Index 0 is the root bus, whether Nova adds it or not.
    """
    return max(1, sum(
        isinstance(device, config.LibvirtConfigGuestController)
        and device.type == 'pci' for device in guest.devices))


def hostdev_config(planned: hostdev.Hostdev,
                   guest_address: model.PciAddress | None = None,
                   ) -> AliasedFunction | AliasedMdev:
    """Return the configuration object for one hostdev.

    :param guest_address: its address in the guest; libvirt chooses if None
    """
    element = _hostdev_config(planned)
    element.guest_address = guest_address
    return element


def _hostdev_config(planned):
    if isinstance(planned.address, model.MdevAddress):
        element = AliasedMdev()
        element.uuid = planned.address.uuid
        element.alias = planned.alias
        return element
    element = AliasedFunction()
    address = planned.address
    element.domain = f'{address.domain:04x}'
    element.bus = f'{address.bus:02x}'
    element.slot = f'{address.slot:02x}'
    element.function = f'{address.function:x}'
    element.alias = planned.alias
    element.managed = 'yes' if planned.managed else 'no'
    return element


def _address(at: model.PciAddress):
    element = config.LibvirtConfigGuestDeviceAddressPCI()
    element.domain = f'0x{at.domain:04x}'
    element.bus = f'0x{at.bus:02x}'
    element.slot = f'0x{at.slot:02x}'
    element.function = f'0x{at.function:x}'
    return element.format_dom()


def libvirt():
    """Return the libvirt module.

    Nova imports it on the first connection, so that Nova's modules can be
    loaded without it.
    """
    return host.libvirt


def holds(element, is_theirs: collections.abc.Callable[
        [model.MdevAddress], bool]) -> bool:
    """Whether a configuration object is an mdev with such an address."""
    return (isinstance(element, config.LibvirtConfigGuestHostdevMDEV)
            and is_theirs(model.MdevAddress(element.uuid)))

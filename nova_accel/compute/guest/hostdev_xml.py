# SPDX-License-Identifier: Apache-2.0
"""Libvirt configuration of hostdevs.

Seam: ``nova.virt.libvirt.config.LibvirtConfigGuestHostdevPCI`` and ``MDEV``,
whose format_dom omits the alias and the guest's address.
"""

import collections.abc

from lxml import etree
from nova.virt.libvirt import config

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.host import libvirt_xml


class _Aliased:
    """Nova's hostdev element, with its user alias and the guest's address."""

    guest_address: model.PciAddress | None = None

    def format_dom(self):
        element = super().format_dom()
        if self.alias and element.find('alias') is None:
            etree.SubElement(element, 'alias', name=self.alias)
        if self.guest_address:
            element.append(address(self.guest_address))
        return element


class AliasedFunction(_Aliased, config.LibvirtConfigGuestHostdevPCI):
    """A function; QEMU opens it with iommufd if that is set.

    :ivar clique: that of a GPU, None if it has none
    """

    iommufd = False
    clique: int | None = None

    def format_dom(self):
        element = super().format_dom()
        if self.iommufd:
            etree.SubElement(element, 'driver', iommufd='yes')
        return element


class AliasedMdev(_Aliased, config.LibvirtConfigGuestHostdevMDEV):
    pass


def add(guest: config.LibvirtConfigGuest, hostdevs: hostdev.Hostdevs,
        places: collections.abc.Mapping[model.Address, model.PciAddress],
        ) -> None:
    """Add hostdevs to a guest.

    :param places: their addresses in the domain; libvirt places the others
    """
    for device in hostdevs:
        guest.add_device(hostdev_config(device, places.get(device.address)))


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
    at = planned.address
    element.domain = f'{at.domain:04x}'
    element.bus = f'{at.bus:02x}'
    element.slot = f'{at.slot:02x}'
    element.function = f'{at.function:x}'
    element.alias = planned.alias
    element.managed = 'yes' if planned.managed else 'no'
    element.iommufd = planned.iommufd
    return element


def address(at: model.PciAddress) -> etree._Element:
    """Return the ``<address>`` of a device in the domain."""
    element = config.LibvirtConfigGuestDeviceAddressPCI()
    element.domain = f'0x{at.domain:04x}'
    element.bus = f'0x{at.bus:02x}'
    element.slot = f'0x{at.slot:02x}'
    element.function = f'0x{at.function:x}'
    return element.format_dom()


def holds(element, is_theirs: collections.abc.Callable[
        [model.MdevAddress], bool]) -> bool:
    """Whether a configuration object is an mdev with such an address."""
    return (isinstance(element, config.LibvirtConfigGuestHostdevMDEV)
            and is_theirs(model.MdevAddress(element.uuid)))


def not_ours(mdevs: collections.abc.Iterable[
        config.LibvirtConfigGuestHostdevMDEV], xml: str,
        ) -> list[config.LibvirtConfigGuestHostdevMDEV]:
    """Return the mdevs of a guest that are not ours.

    :param xml: of its domain
    """
    ours = {device.address
            for device in hostdev.ours(libvirt_xml.parse(xml)[1])}
    return [mdev for mdev in mdevs if not holds(mdev, ours.__contains__)]

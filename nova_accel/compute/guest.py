# SPDX-License-Identifier: Apache-2.0
"""A Hostdev as libvirt configuration.

Seam: ``nova.virt.libvirt.config.LibvirtConfigGuestHostdevPCI`` and ``MDEV``,
whose format_dom leaves the alias out. Checked with Nova 33 and 34.
"""

from lxml import etree
from nova.virt.libvirt import config
from nova.virt.libvirt import host

from nova_accel.core import hostdev
from nova_accel.core import model


class _Aliased:
    """Nova's hostdev element, with its user alias."""

    def format_dom(self):
        element = super().format_dom()
        if self.alias and element.find('alias') is None:
            etree.SubElement(element, 'alias', name=self.alias)
        return element


class AliasedFunction(_Aliased, config.LibvirtConfigGuestHostdevPCI):
    pass


class AliasedMdev(_Aliased, config.LibvirtConfigGuestHostdevMDEV):
    pass


def hostdev_config(planned: hostdev.Hostdev) -> AliasedFunction | AliasedMdev:
    """The configuration object for one hostdev."""
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


def libvirt():
    """The libvirt module.

    Nova, too, gets hold of it only when it first talks to it, so that its
    modules can be loaded without it.
    """
    return host.libvirt


def holds(element, addresses) -> bool:
    """Whether a configuration object is an mdev of these addresses."""
    return (isinstance(element, config.LibvirtConfigGuestHostdevMDEV)
            and model.MdevAddress(element.uuid) in addresses)

# SPDX-License-Identifier: Apache-2.0
"""A Hostdev as libvirt configuration.

Seam: ``nova.virt.libvirt.config.LibvirtConfigGuestHostdevPCI``, whose
format_dom leaves the alias out. Checked with Nova 33 and 34.
"""

from lxml import etree
from nova.virt.libvirt import config

from nova_accel.core import hostdev


class AliasedHostdev(config.LibvirtConfigGuestHostdevPCI):
    """Nova's hostdev element, with its user alias."""

    def format_dom(self):
        element = super().format_dom()
        if self.alias and element.find('alias') is None:
            etree.SubElement(element, 'alias', name=self.alias)
        return element


def hostdev_config(planned: hostdev.Hostdev) -> AliasedHostdev:
    """The configuration object for one hostdev."""
    element = AliasedHostdev()
    address = planned.address
    element.domain = f'{address.domain:04x}'
    element.bus = f'{address.bus:02x}'
    element.slot = f'{address.slot:02x}'
    element.function = f'{address.function:x}'
    element.alias = planned.alias
    element.managed = 'yes' if planned.managed else 'no'
    return element

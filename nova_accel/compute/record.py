# SPDX-License-Identifier: Apache-2.0
"""Who holds which device, read from libvirt, which is where it is kept.

Seam: ``nova.virt.libvirt.host.Host.list_instance_domains``. Checked with Nova
33 and 34. XML: libvirt's formatdomain, "Host device assignment"; network
interfaces of type hostdev and disks of type nvme hold their functions in the
same way, and so may domains that are not Nova's.
"""

import collections.abc

from lxml import etree

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model

# USB and SCSI addresses have a bus, too, but no slot.
_HOLDING = etree.XPath('./devices/*[source/address/@slot]')


class Record:
    """What the domains that libvirt has defined hold.

    :param host: nova.virt.libvirt.host.Host
    """

    def __init__(self, host):
        self._host = host

    def holders(self) -> dict[model.PciAddress, str]:
        """The domain's uuid, by function; servers of Nova's and any other."""
        return {held.address: uuid for uuid, hostdevs in self.read().items()
                for held in hostdevs}

    def held_by(self, uuid: str) -> tuple[hostdev.Hostdev, ...]:
        """What a server holds, as its definition has it."""
        return self.read().get(uuid, ())

    def read(self) -> dict[str, tuple[hostdev.Hostdev, ...]]:
        held = {}
        for xml in self._definitions():
            uuid, hostdevs = parse(xml)
            held[uuid] = hostdevs
        return held

    def _definitions(self) -> collections.abc.Iterator[str]:
        libvirt = _libvirt()
        for domain in self._host.list_instance_domains(only_running=False):
            try:
                yield domain.XMLDesc(0)
            except libvirt.libvirtError as error:
                # A domain can go between the list and the look. Of any other
                # nobody knows what it holds.
                if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                    raise errors.AssignmentError(
                        'libvirt', f'does not describe a domain: {error}'
                    ) from None


def parse(xml: str) -> tuple[str, tuple[hostdev.Hostdev, ...]]:
    """A domain's uuid and the PCI functions that it holds.

    :raises errors.AssignmentError: if it cannot be understood
    """
    try:
        domain = etree.fromstring(xml)
        return domain.findtext('uuid'), _hostdevs(domain)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise errors.AssignmentError(
            'libvirt', f'describes a domain in XML that cannot be read: '
            f'{error}') from None


def _hostdevs(domain) -> tuple[hostdev.Hostdev, ...]:
    return tuple(
        hostdev.Hostdev(_address(element.find('source/address')),
                        _alias(element),
                        element.get('managed', 'yes') == 'yes')
        for element in _HOLDING(domain))


def _address(element) -> model.PciAddress:
    return model.PciAddress(*(
        int(element.get(part, '0'), 16)
        for part in ('domain', 'bus', 'slot', 'function')))


def _alias(element) -> str:
    alias = element.find('alias')
    return '' if alias is None else alias.get('name', '')


def _libvirt():
    # Nova, too, gets hold of libvirt only when it first talks to it, so that
    # its modules can be loaded without it.
    from nova.virt.libvirt import host
    return host.libvirt

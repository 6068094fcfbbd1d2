# SPDX-License-Identifier: Apache-2.0
"""What libvirt's domains hold, read from their XML.

XML: libvirt's formatdomain, "Host device assignment"; network interfaces of
type hostdev and disks of type nvme hold their functions in the same way, and
so may domains that are not Nova's.
"""

import dataclasses

from lxml import etree

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model

# USB and SCSI addresses have a bus, too, but no slot.
_HOLDING = etree.XPath('./devices/*[source/address[@slot or @uuid]]')


@dataclasses.dataclass(frozen=True)
class Domain:
    """What one domain holds.

    A suspended guest has released its devices; its definition keeps them.

    :param held: the hostdevs of its definition and of its running guest
    :param lacks: those of its definition that its running guest does not have
    """

    held: hostdev.Hostdevs
    lacks: hostdev.Hostdevs


def read_domain(domain, libvirt) -> Domain | None:
    """What a domain holds; None if the domain does not exist any more.

    :param domain: libvirt.virDomain, running or not
    :param libvirt: the module, or what stands for it
    :raises errors.AssignmentError: if libvirt does not say
    """
    described = [describe(domain, flags, libvirt)
                 for flags in (libvirt.VIR_DOMAIN_XML_INACTIVE, 0)]
    if not any(described):
        return None
    defined, has = (parse(xml)[1] if xml else () for xml in described)
    by_address = {device.address: device for device in (*defined, *has)}
    there = {device.address for device in has}
    return Domain(tuple(by_address.values()), tuple(
        device for device in defined if device.address not in there))


def read(domains, libvirt) -> dict[str, hostdev.Hostdevs]:
    """What each of several domains holds, by its uuid.

    :raises errors.AssignmentError: if it is not known of all of them
    """
    return {domain.UUIDString(): looked.held for domain in domains
            if (looked := read_domain(domain, libvirt))}


def describe(domain, flags: int, libvirt) -> str:
    """A domain's XML, or '' where the domain has gone meanwhile.

    :raises errors.AssignmentError: if libvirt does not give it
    """
    try:
        return domain.XMLDesc(flags)
    except libvirt.libvirtError as error:
        # Of any other domain nobody knows what it holds.
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return ''
        raise errors.AssignmentError(
            'libvirt', f'does not describe a domain: {error}') from None


def parse(xml: str) -> tuple[str, hostdev.Hostdevs]:
    """A domain's uuid and the PCI functions and mdevs that it holds.

    :raises errors.AssignmentError: if it cannot be understood
    """
    try:
        domain = etree.fromstring(xml)
        return domain.findtext('uuid'), _hostdevs(domain)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise errors.AssignmentError(
            'libvirt', f'describes a domain in XML that cannot be read: '
            f'{error}') from None


def _hostdevs(domain) -> hostdev.Hostdevs:
    return tuple(
        hostdev.Hostdev(_address(element.find('source/address')),
                        _alias(element),
                        element.get('managed', 'yes') == 'yes',
                        _guest_address(element))
        for element in _HOLDING(domain))


def _address(element) -> model.Address:
    if element.get('uuid'):
        return model.MdevAddress(element.get('uuid'))
    return _pci_address(element)


def _guest_address(element) -> model.PciAddress | None:
    address = element.find('address[@type="pci"]')
    return None if address is None else _pci_address(address)


def _pci_address(element) -> model.PciAddress:
    return model.PciAddress(*(
        int(element.get(part, '0'), 16)
        for part in ('domain', 'bus', 'slot', 'function')))


def _alias(element) -> str:
    alias = element.find('alias')
    return '' if alias is None else alias.get('name', '')

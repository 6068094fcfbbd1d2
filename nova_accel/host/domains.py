# SPDX-License-Identifier: Apache-2.0
"""What a libvirt domain holds, read from its XML.

XML: libvirt's formatdomain, "Host device assignment"; network interfaces of
type hostdev and disks of type nvme hold their functions in the same way, and
so may domains that are not Nova's.
"""

from lxml import etree

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model

# USB and SCSI addresses have a bus, too, but no slot.
_HOLDING = etree.XPath('./devices/*[source/address[@slot or @uuid]]')


def parse(xml: str) -> tuple[str, tuple[hostdev.Hostdev, ...]]:
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


def _hostdevs(domain) -> tuple[hostdev.Hostdev, ...]:
    return tuple(
        hostdev.Hostdev(_address(element.find('source/address')),
                        _alias(element),
                        element.get('managed', 'yes') == 'yes')
        for element in _HOLDING(domain))


def _address(element) -> model.Address:
    if element.get('uuid'):
        return model.MdevAddress(element.get('uuid'))
    return model.PciAddress(*(
        int(element.get(part, '0'), 16)
        for part in ('domain', 'bus', 'slot', 'function')))


def _alias(element) -> str:
    alias = element.find('alias')
    return '' if alias is None else alias.get('name', '')

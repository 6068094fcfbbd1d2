# SPDX-License-Identifier: Apache-2.0
"""Writes a document into QEMU's firmware configuration (fw_cfg) of a guest.

Linux shows it with the module ``qemu_fw_cfg``, which needs ACPI on x86, at
``/sys/firmware/qemu_fw_cfg/by_name/opt/…/raw``.

Sources: libvirt's formatdomain, "SMBIOS System Information" (``fwcfg``, since
6.5.0); docs/specs/fw_cfg.rst in QEMU's source (names below ``opt/``);
Documentation/ABI/testing/sysfs-firmware-qemu_fw_cfg.
"""

import base64

from lxml import etree
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

NAME = 'opt/org.openstack.nova-accel/devices'

#: The limit of the encoded text: Linux takes no longer word on QEMU's command
#: line than 128 KiB (MAX_ARG_STRLEN).
MAX_LENGTH = 64 * 1024


def is_readable(xml: str) -> bool:
    """Whether the guest of a domain can read a document."""
    domain = etree.fromstring(xml)
    kind = domain.find('os/type')
    return (domain.get('type') in ('kvm', 'qemu') and kind is not None
            and kind.get('arch') == 'x86_64'
            and domain.find('features/acpi') is not None)


def without_document(xml: str) -> str:
    """Return the XML of a domain without an older document."""
    if NAME not in xml:
        return xml
    domain = etree.fromstring(xml)
    for parent in domain.findall('sysinfo[@type="fwcfg"]'):
        for entry in parent.findall('entry'):
            if entry.get('name') == NAME:
                parent.remove(entry)
                if not len(parent):
                    domain.remove(parent)
    return etree.tostring(domain, encoding='unicode')


def with_document(xml: str, text: str, instance=None) -> str:
    """Return the XML of a domain with a document.

    :param xml: without one
    :param instance: nova.objects.Instance, for the log
    """
    # libvirt 9.0 does not escape commas for QEMU.
    encoded = base64.b64encode(text.encode()).decode()
    if len(encoded) > MAX_LENGTH:
        LOG.warning('The guest gets no document of its devices: it would have '
                    '%d bytes, more than %d', len(encoded), MAX_LENGTH,
                    instance=instance)
        return xml
    domain = etree.fromstring(xml)
    entries = domain.find('sysinfo[@type="fwcfg"]')
    if entries is None:
        entries = etree.SubElement(domain, 'sysinfo', type='fwcfg')
    etree.SubElement(entries, 'entry', name=NAME).text = encoded
    return etree.tostring(domain, encoding='unicode')

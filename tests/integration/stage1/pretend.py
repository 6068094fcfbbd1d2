# SPDX-License-Identifier: Apache-2.0
"""A command on a machine without vfio, with libvirt spared the devices.

    python -P pretend.py COMMAND ARGUMENT...

runs a command of this Python's environment, such as nova-compute, with two
classes of libvirt-python replaced. What they define, libvirt stores without
the ``<hostdev>`` elements of vfio, which are kept in the domain's
``<metadata>``; what they read of it has them where they were. So libvirt is
the record as ever, for as long as it remembers the domain, and it has one for
the definition and one for the guest that runs, as it has of hostdevs. Nova and
nova_accel are what they are everywhere.

What libvirt would do with a hostdev is not done: nothing is bound to vfio-pci,
and QEMU has no device more.
"""

import pathlib
import runpy
import sys

import libvirt
from lxml import etree

NAMESPACE = 'https://nova-accel.example/held'

_HELD = 'held'
_IN_METADATA = f'metadata/{{{NAMESPACE}}}{_HELD}'
_VFIO = etree.XPath('./devices/hostdev[@type="pci" or @type="mdev"]')


def put_away(xml: str) -> str:
    """A domain's XML with its devices where libvirt does not look."""
    domain = etree.fromstring(xml)
    hostdevs = _VFIO(domain)
    if not hostdevs:
        return xml
    metadata = domain.find('metadata')
    if metadata is None:
        metadata = etree.SubElement(domain, 'metadata')
    metadata.append(_held(
        hostdevs, f'{{{NAMESPACE}}}{_HELD}', {'accel': NAMESPACE}))
    return etree.tostring(domain, encoding='unicode')


def bring_back(xml: str) -> str:
    """A domain's XML as it was before :func:`put_away`."""
    domain = etree.fromstring(xml)
    held = domain.find(_IN_METADATA)
    if held is None:
        return xml
    held.getparent().remove(held)
    for element in held.iter():
        # setMetadata() puts all of it into the name space.
        element.tag = etree.QName(element).localname
    domain.find('devices').extend(held)
    return etree.tostring(domain, encoding='unicode')


def _held(hostdevs, tag=_HELD, names=None):
    # They move: an element has one parent.
    element = etree.Element(tag, nsmap=names)
    element.extend(hostdevs)
    return element


class Connection(libvirt.virConnect):
    """libvirt, to which domains come without their devices."""

    def defineXML(self, xml):
        return super().defineXML(put_away(xml))

    def defineXMLFlags(self, xml, flags=0):
        return super().defineXMLFlags(put_away(xml), flags)

    def createXML(self, xmlDesc, flags=0):
        return super().createXML(put_away(xmlDesc), flags)


class Domain(libvirt.virDomain):
    """A domain that has its devices whenever it is looked at."""

    def XMLDesc(self, flags=0):
        return bring_back(super().XMLDesc(flags))

    def attachDeviceFlags(self, xml, flags=0):
        if not _is_vfio(xml):
            return super().attachDeviceFlags(xml, flags)
        device = etree.fromstring(xml)
        return self._change(flags, lambda held: [*held, device])

    def detachDeviceFlags(self, xml, flags=0):
        if not _is_vfio(xml):
            return super().detachDeviceFlags(xml, flags)
        gone = _source(etree.fromstring(xml))
        return self._change(flags, lambda held: [
            device for device in held if _source(device) != gone])

    def _change(self, flags, change):
        """Change what is held by the guest, by its definition, or by both."""
        for flag, which in (
                (libvirt.VIR_DOMAIN_AFFECT_LIVE, 0),
                (libvirt.VIR_DOMAIN_AFFECT_CONFIG,
                 libvirt.VIR_DOMAIN_XML_INACTIVE)):
            if flags & flag:
                held = _held(change(_VFIO(etree.fromstring(
                    self.XMLDesc(which)))))
                # libvirt puts the name into its space by itself.
                self.setMetadata(
                    libvirt.VIR_DOMAIN_METADATA_ELEMENT,
                    etree.tostring(held, encoding='unicode')
                    if len(held) else None, 'accel', NAMESPACE, flag)
        return 0


def _is_vfio(xml: str) -> bool:
    element = etree.fromstring(xml)
    return element.tag == 'hostdev' and element.get('type') in ('pci', 'mdev')


def _source(hostdev):
    """What a hostdev is of, by which libvirt finds the one to detach."""
    address = hostdev.find('source/address')
    return {name: int(value, 16) if name != 'uuid' else value
            for name, value in address.attrib.items() if name != 'type'}


def install() -> None:
    """Have libvirt's functions return ours: they look the names up here."""
    libvirt.virConnect = Connection
    libvirt.virDomain = Domain


def main() -> None:
    command = pathlib.Path(sys.executable).with_name(sys.argv[1])
    del sys.argv[0]
    sys.argv[0] = str(command)
    install()
    runpy.run_path(str(command), run_name='__main__')


if __name__ == '__main__':
    main()

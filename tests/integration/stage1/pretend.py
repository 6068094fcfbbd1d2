# SPDX-License-Identifier: Apache-2.0
"""Run a command on a machine without vfio, and hide hostdevs from libvirt.

    python -P pretend.py COMMAND ARGUMENT...

runs a command of this Python's environment, for example nova-compute. Two
classes of libvirt-python are replaced. When the command defines a domain, the
``<hostdev>`` elements of vfio move into the domain's ``<metadata>``. When the
command reads the domain, they move back. So libvirt still stores the hostdevs,
separately for the persistent definition and for the running guest. Nova and
nova_accel run unchanged.

libvirt does not act on these hostdevs: it binds no device to vfio-pci, and
QEMU gets no devices.
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
    """Move the hostdevs of a domain's XML into its metadata."""
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
    """Undo :func:`put_away`."""
    domain = etree.fromstring(xml)
    held = domain.find(_IN_METADATA)
    if held is None:
        return xml
    held.getparent().remove(held)
    for element in held.iter():
        # setMetadata() puts all elements into the namespace.
        element.tag = etree.QName(element).localname
    domain.find('devices').extend(held)
    return etree.tostring(domain, encoding='unicode')


def _held(hostdevs, tag=_HELD, names=None):
    # This moves the elements: an lxml element has one parent.
    element = etree.Element(tag, nsmap=names)
    element.extend(hostdevs)
    return element


class Connection(libvirt.virConnect):
    """A connection that hides the hostdevs of domains from libvirt."""

    def defineXML(self, xml):
        return super().defineXML(put_away(xml))

    def defineXMLFlags(self, xml, flags=0):
        return super().defineXMLFlags(put_away(xml), flags)

    def createXML(self, xmlDesc, flags=0):
        return super().createXML(put_away(xmlDesc), flags)


class Domain(libvirt.virDomain):
    """A domain whose XML shows the hidden hostdevs."""

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
        """Change the hidden hostdevs.

        :param flags: select the running guest, the definition, or both
        :param change: takes the list of hostdevs and returns the new one
        """
        for flag, which in (
                (libvirt.VIR_DOMAIN_AFFECT_LIVE, 0),
                (libvirt.VIR_DOMAIN_AFFECT_CONFIG,
                 libvirt.VIR_DOMAIN_XML_INACTIVE)):
            if flags & flag:
                held = _held(change(_VFIO(etree.fromstring(
                    self.XMLDesc(which)))))
                # libvirt adds the namespace to the element's name.
                self.setMetadata(
                    libvirt.VIR_DOMAIN_METADATA_ELEMENT,
                    etree.tostring(held, encoding='unicode')
                    if len(held) else None, 'accel', NAMESPACE, flag)
        return 0


def _is_vfio(xml: str) -> bool:
    element = etree.fromstring(xml)
    return element.tag == 'hostdev' and element.get('type') in ('pci', 'mdev')


def _source(hostdev):
    """Return a hostdev's source, by which libvirt finds a device."""
    address = hostdev.find('source/address')
    return {name: int(value, 16) if name != 'uuid' else value
            for name, value in address.attrib.items() if name != 'type'}


def install() -> None:
    """Replace libvirt's classes, which its functions look up by name."""
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

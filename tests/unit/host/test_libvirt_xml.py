# SPDX-License-Identifier: Apache-2.0
"""Changes of the XML of domains."""

from lxml import etree
import pytest

from nova_accel.core import errors
from nova_accel.host import libvirt_xml
from tests.unit import build

#: As libvirt 10.0 describes hostdevs that Nova defined without an alias.
XML = """<domain type='kvm' id='3'>
  <name>instance-00000007</name>
  <uuid>0a6f4c7e-4a86-4f5e-8f0f-1d3fb0c4d2a1</uuid>
  <devices>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <driver name='vfio'/>
      <source>
        <address domain='0x0000' bus='0x43' slot='0x00' function='0x0'/>
      </source>
      <alias name='hostdev0'/>
      <address type='pci' domain='0x0000' bus='0x05' slot='0' function='0'/>
    </hostdev>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source>
        <address domain='0x0000' bus='0x44' slot='0x00' function='0x0'/>
      </source>
      <address type='pci' domain='0x0000' bus='0x06' slot='0' function='0'/>
    </hostdev>
    <hostdev mode='subsystem' type='usb'>
      <source><address bus='1' device='2'/></source>
    </hostdev>
  </devices>
</domain>"""
ALIASES = {'0000:43:00.0': 'ua-accel-ACCEL0-a-0',
           '0000:44:00.0': 'ua-accel-ACCEL1-b-0'}


def test_aliases_are_added_and_replaced():
    changed = libvirt_xml.with_aliases(XML, {
        build.address(at): alias for at, alias in ALIASES.items()})
    _uuid, before = libvirt_xml.parse(XML)
    _uuid, after = libvirt_xml.parse(changed)
    assert {str(device.address): device.alias for device in after} == ALIASES
    assert [(device.address, device.guest_address) for device in after] == [
        (device.address, device.guest_address) for device in before]


def test_backend_and_clique_are_read():
    domain = etree.fromstring(XML)
    domain.find('devices/hostdev/driver').set('iommufd', 'yes')
    domain.append(etree.fromstring("""
        <qemu:override xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
          <qemu:device alias='hostdev0'>
            <qemu:frontend>
              <qemu:property name='x-pci-sub-device-id' type='remove'/>
              <qemu:property name='x-nv-gpudirect-clique' type='unsigned'
                             value='15'/>
            </qemu:frontend>
          </qemu:device>
        </qemu:override>"""))
    _uuid, held = libvirt_xml.parse(etree.tostring(domain, encoding='unicode'))
    assert [(device.iommufd, device.clique) for device in held] == [
        (True, '15'), (False, '')]


@pytest.mark.parametrize('others', ['', '<address bus="1" device="2"/>'])
@pytest.mark.parametrize('address, held', [
    ('bus="0x43" slot="0x00" function="0x1"', ['0000:43:00.1']),
    ('uuid="83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"',
     ['83b8f4f2-509f-382f-3c1e-e6bfe0fa1001']),
    ('type="drive" bus="0" unit="1"', [])])
def test_address_of_what_is_held_is_found_among_others(address, held, others):
    _uuid, found = libvirt_xml.parse(
        f'<domain><devices><hostdev><source>{others}<address {address}/>'
        '</source></hostdev></devices></domain>')
    assert [str(device.address) for device in found] == held


def test_nothing_but_the_aliases_changes():
    changed = etree.fromstring(libvirt_xml.with_aliases(XML, {
        build.address('0000:43:00.0'): 'ua-x'}))
    changed.find('devices/hostdev/alias').set('name', 'hostdev0')
    assert etree.tostring(changed) == etree.tostring(etree.fromstring(XML))


@pytest.mark.parametrize('read', [
    libvirt_xml.parse, libvirt_xml.guest_buses_of, libvirt_xml.numa_cells_of,
    lambda xml: libvirt_xml.with_aliases(xml, {})])
@pytest.mark.parametrize('xml', [
    '', '\0', '<domain>\n', '<?xml version="1.0" encoding="x"?><domain/>',
    '<domain><cpu><numa><cell/></numa></cpu><devices><hostdev><source>'
    '<address domain="x" slot="0x0"/></source></hostdev></devices></domain>'])
def test_damaged_xml_is_one_line_of_an_error(read, xml):
    with pytest.raises(errors.AssignmentError) as caught:
        read(xml)
    assert 'cannot be parsed' in str(caught.value)
    assert str(caught.value).isprintable()

# SPDX-License-Identifier: Apache-2.0
"""Hostdevs, written with Nova's configuration classes and read back."""

import pathlib

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from nova_accel.compute.guest import hostdev_xml
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.host import libvirt_xml

GOLDEN = pathlib.Path(__file__).parents[1] / 'data' / 'golden' / 'domain.xml'
UUID = '5a1c7f0e-7c55-4d0c-9f3a-3f0f6d2f9a11'

FIRST = hostdev.Hostdev(
    model.PciAddress.parse('0000:81:00.0'),
    'ua-accel-ACCEL0-4f6c08b3-2324-54ab-b04c-61c99d0c476c-0-10de2330')
SECOND = hostdev.Hostdev(
    model.PciAddress.parse('0001:82:1f.7'),
    'ua-accel-ACCEL1-dc0a994d-ad61-58d3-9255-b00e1949eccc-0', managed=False)

functions = st.builds(
    hostdev.Hostdev,
    address=st.builds(model.PciAddress, st.integers(0, 0xffff),
                      st.integers(0, 0xff), st.integers(0, 0x1f),
                      st.integers(0, 7)),
    alias=st.builds(naming.alias, st.sampled_from(['', 'ACCEL0', 'ACCEL12']),
                    st.uuids().map(str), st.integers(0, 99),
                    st.sampled_from(['', '10de:2330'])),
    managed=st.booleans())
# libvirt can change the driver of PCI functions only.
mdevs = st.builds(
    hostdev.Hostdev,
    address=st.builds(model.MdevAddress, st.uuids().map(str)),
    alias=st.builds(naming.alias, st.just('ACCEL0'), st.uuids().map(str),
                    st.integers(0, 99)),
    managed=st.just(False))
hostdevs = functions | mdevs


def test_golden_definition_is_read():
    uuid, held = libvirt_xml.parse(GOLDEN.read_text())
    assert uuid == UUID
    assert held[3:] == (FIRST, SECOND)


def test_guest_address_does_not_affect_equality():
    _uuid, held = libvirt_xml.parse(GOLDEN.read_text())
    assert [device.guest_address and str(device.guest_address)
            for device in held] == [
        None, '0000:01:00.0', None, '0000:02:00.0', None]
    assert held[3] == FIRST and FIRST.guest_address is None


def test_guest_address_is_written_back():
    _uuid, held = libvirt_xml.parse(GOLDEN.read_text())
    for device in held[2:]:
        element = hostdev_xml.hostdev_config(device,
                                             device.guest_address).to_xml()
        _uuid, [again] = libvirt_xml.parse(
            f'<domain><uuid/><devices>{element}</devices></domain>')
        assert again.guest_address == device.guest_address


def test_all_assigned_host_functions_are_read():
    _uuid, held = libvirt_xml.parse(GOLDEN.read_text())
    assert [str(device.address) for device in held] == [
        '0000:05:00.0', '0000:06:10.2',
        '83b8f4f2-509f-382f-3c1e-e6bfe0fa1001', '0000:81:00.0',
        '0001:82:1f.7']


def test_golden_elements_are_written():
    golden = etree.parse(str(GOLDEN)).findall('.//hostdev[@type="pci"]')
    for planned, element in zip((FIRST, SECOND), golden, strict=True):
        # libvirt adds these elements to the XML.
        for added in element.findall('driver') + element.findall('address'):
            element.remove(added)
        written = etree.fromstring(
            hostdev_xml.hostdev_config(planned).to_xml())
        assert etree.tostring(written, method='c14n2', strip_text=True) == (
            etree.tostring(element, method='c14n2', strip_text=True))


@given(st.lists(hostdevs))
def test_written_hostdevs_are_read_back(planned):
    elements = ''.join(hostdev_xml.hostdev_config(device).to_xml()
                       for device in planned)
    assert libvirt_xml.parse(
        f'<domain><uuid>{UUID}</uuid><devices>{elements}</devices></domain>'
    ) == (UUID, tuple(planned))


@given(st.sampled_from(['', 'ACCEL0', 'ACCEL99', 'a-b']), st.uuids().map(str),
       st.integers(0, 99))
def test_alias_contains_group_and_provider(group, provider, index):
    text = naming.alias(group, provider, index)
    assert naming.parse_alias(text) == (group or 'flavor', provider)

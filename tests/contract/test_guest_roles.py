# SPDX-License-Identifier: Apache-2.0
"""What guests are told of their devices, in Nova's classes."""

import base64
import inspect
import json
from unittest import mock

from lxml import etree
from nova import objects
from nova.api.metadata import base as metadata
import nova.conf
from nova.virt.libvirt import driver
import pytest

from nova_accel import conf
from nova_accel.compute.guest import fw_cfg
from nova_accel.compute.guest import guest_roles
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory

CONF = nova.conf.CONF
PROVIDER = '4f6c08b3-2324-54ab-b04c-61c99d0c476c'
ALIAS = naming.alias('ACCEL0', PROVIDER, 0)

_DOMAIN = '''
<domain type="{kind}"><uuid>{uuid}</uuid><name>x</name>{more}
  <os><type arch="{arch}">hvm</type></os><features>{features}</features>
  <cpu><numa><cell id="0" cpus="0"/></numa></cpu>
  <devices><controller type="pci" index="0" model="pcie-root"/>
    <hostdev type="pci"><source><address bus="0x43" slot="0x0"/></source>
      <alias name="{alias}"/>{address}</hostdev></devices></domain>'''
_ADDRESS = '<address type="pci" bus="0x0" slot="0x7" function="0x0"/>'


def domain(kind='kvm', arch='x86_64', features='<acpi/>', more='',
           address=_ADDRESS, alias=ALIAS):
    return _DOMAIN.format(kind=kind, arch=arch, features=features, more=more,
                          address=address, alias=alias, uuid=PROVIDER)


@pytest.fixture(autouse=True)
def options():
    CONF([], project='nova', default_config_files=[])
    conf.register_opts(CONF)
    objects.register_all()


def entries(xml):
    return [(entry.get('name'), entry.text)
            for entry in etree.fromstring(xml).iterfind(
                'sysinfo[@type="fwcfg"]/entry')]


@pytest.mark.parametrize('facts, readable', [
    ({}, True), ({'kind': 'qemu'}, True), ({'kind': 'lxc'}, False),
    ({'arch': 'aarch64'}, False), ({'features': ''}, False)])
def test_guests_that_can_read_the_document(facts, readable):
    assert fw_cfg.is_readable(domain(**facts)) == readable


def test_document_replaces_an_older_one_and_no_other():
    smbios = '<sysinfo type="smbios"><entry name="x">y</entry></sysinfo>'
    other = ('<sysinfo type="fwcfg"><entry name="opt/other">x</entry>'
             '</sysinfo>')
    xml = fw_cfg.with_document(fw_cfg.without_document(fw_cfg.with_document(
        domain(more=smbios + other), 'old')), 'a, "b"')
    assert entries(xml) == [('opt/other', 'x'), (
        fw_cfg.NAME, base64.b64encode(b'a, "b"').decode())]
    assert etree.fromstring(xml).findtext(
        'sysinfo[@type="smbios"]/entry') == 'y'


def test_document_that_is_too_long_is_left_out():
    xml = fw_cfg.with_document(domain(), 'x' * fw_cfg.MAX_LENGTH)
    assert entries(xml) == []


def roles(host=None, unreadable=None, defined=None):
    """Return the GuestRoles of a compute node, and its libvirt."""
    state = mock.Mock()
    state.read_or_empty.return_value = (inventory.NodeInventory(
        host or model.Host(), inventory.Node(PROVIDER, 'x')), unreadable)
    libvirt = mock.Mock()
    libvirt.write_instance_config.return_value.get_xml_desc.return_value = (
        defined)
    libvirt.get_guest.return_value.get_xml_desc.return_value = domain()
    return guest_roles.GuestRoles(state, libvirt), libvirt


def instance(specs=(('resources:CUSTOM_GPU', '1'),)):
    return objects.Instance(uuid=PROVIDER, flavor=objects.Flavor(
        extra_specs=dict(specs)))


@pytest.mark.parametrize('address, defined', [(_ADDRESS, False), ('', True)])
def test_domain_is_defined_if_libvirt_has_to_choose_an_address(address,
                                                               defined):
    ours, libvirt = roles(defined=domain())
    xml = ours.with_document(domain(address=address), instance())
    assert libvirt.write_instance_config.called == defined
    [(_name, text)] = entries(xml)
    [device] = json.loads(base64.b64decode(text))['requests'][0]['devices']
    assert device['attributes']['path'] == {'string': '00/07.0'}
    # libvirt chooses the address again.
    assert (etree.fromstring(xml).find('devices/hostdev/address')
            is None) == defined


def test_unreadable_host_is_not_described():
    ours, _libvirt = roles(unreadable=errors.TreeError('sysfs_root', 'no'))
    [(_name, text)] = entries(ours.with_document(domain(), instance()))
    [device] = json.loads(base64.b64decode(text))['requests'][0]['devices']
    assert device['attributes'].keys() == {
        'group', 'path', 'provider', 'resource.kubernetes.io/pciBusID'}


def test_guest_without_devices_of_ours_keeps_its_metadata():
    ours, libvirt = roles()
    libvirt.get_guest.return_value.get_xml_desc.return_value = domain(
        alias='hostdev0')
    assert ours.with_metadata(None, instance()) is None
    theirs = objects.InstanceDeviceMetadata(devices=[])
    assert ours.with_metadata(theirs, instance()) is theirs


def test_libvirt_is_not_asked_for_a_server_without_devices():
    ours, libvirt = roles()
    assert ours.with_metadata(None, instance(())) is None
    assert not libvirt.mock_calls


def test_metadata_has_no_address_of_the_host():
    """The alias of an mdev has that of its card."""
    ours, libvirt = roles()
    libvirt.get_guest.return_value.get_xml_desc.return_value = domain(
        alias=naming.alias('ACCEL0', PROVIDER, 0, '10de:2330', 'nvidia-1',
                           model.PciAddress.parse('0000:81:00.0')))
    text = json.dumps(ours.with_metadata(None, instance()).obj_to_primitive())
    assert 'accel-0' in text
    assert not any(host in text for host in ('81', '2330'))


def test_metadata_that_is_too_long_is_left_out():
    """The column of Nova's database would refuse it."""
    ours, libvirt = roles()
    devices = etree.fromstring(domain())
    for number in range(200):
        device = etree.fromstring(etree.tostring(devices.find(
            'devices/hostdev')))
        device.find('alias').set('name', naming.alias('ACCEL0', PROVIDER,
                                                      number + 1))
        devices.find('devices').append(device)
    libvirt.get_guest.return_value.get_xml_desc.return_value = (
        etree.tostring(devices, encoding='unicode'))
    assert ours.with_metadata(None, instance()) is None


@pytest.mark.parametrize('why', ['option', 'failure'])
def test_older_document_is_removed_if_there_is_no_new_one(why):
    ours, _libvirt = roles()
    old = fw_cfg.with_document(domain(), 'old')
    if why == 'option':
        CONF.set_override('guest_device_document', False, 'nova_accel')
    else:
        ours._state.read_or_empty.side_effect = ValueError('a bug')
    try:
        assert entries(ours.with_document(old, instance())) == []
    finally:
        CONF.clear_override('guest_device_document', 'nova_accel')


def test_metadata_of_nova_stays():
    ours, _libvirt = roles()
    nic = objects.NetworkInterfaceMetadata(mac='52:54:00:00:00:01')
    found = ours.with_metadata(objects.InstanceDeviceMetadata(devices=[nic]),
                               instance())
    assert found.devices[0] is nic
    assert found.devices[1].bus.address == '0000:00:07.0'


# Behaviour of Nova that the code relies on

def test_nova_renders_disks_with_tags_serial_and_address():
    source = inspect.getsource(metadata.InstanceMetadata._get_device_metadata)
    for text in ('metadata_obj.DiskMetadata', "'serial' in device",
                 'device.bus.address', 'device.tags'):
        assert text in source


def test_nova_calls_back_between_definition_and_start():
    source = inspect.getsource(driver.LibvirtDriver._create_guest)
    assert (source.index('Guest.create(') < source.index(
        'post_xml_callback()') < source.index('guest.launch('))


def test_nova_builds_the_metadata_of_a_config_drive_in_that_callback():
    assert '_build_device_metadata' in inspect.getsource(
        driver.LibvirtDriver._create_configdrive)
    for method in ('spawn', 'finish_migration'):
        source = inspect.getsource(getattr(driver.LibvirtDriver, method))
        assert 'post_xml_callback=gen_confdrive' in source


@pytest.mark.parametrize('method', ['finish_revert_migration', 'unrescue'])
def test_nova_does_not_rebuild_metadata_there(method):
    source = inspect.getsource(getattr(driver.LibvirtDriver, method))
    assert '_build_device_metadata' not in source

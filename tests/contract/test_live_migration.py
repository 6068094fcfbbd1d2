# SPDX-License-Identifier: Apache-2.0
"""The guest XML that Nova rewrites for a live migration's destination."""

import dataclasses

from lxml import etree
from nova import objects
from nova.virt.libvirt import migration
import pytest

from nova_accel.compute.guest import hostdev_xml
from nova_accel.compute.guest import migration_message
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming

objects.register_all()

HERE = '4f6c08b3-2324-54ab-b04c-61c99d0c476c'
THERE = 'dc0a994d-ad61-58d3-9255-b00e1949eccc'
MDEVS = ['83b8f4f2-509f-582f-8c1e-e6bfe0fa1001',
         '1e5a1c7f-7c55-5d0c-9f3a-3f0f6d2f9a11']


def function(slot, group, provider):
    return hostdev.Hostdev(model.PciAddress(0, 0x81, slot, 0),
                           naming.alias(f'ACCEL{group}', provider, 0))


def mdev(uuid, group, provider):
    return hostdev.Hostdev(model.MdevAddress(uuid),
                           naming.alias(f'ACCEL{group}', provider, 0),
                           managed=False)


def place(number):
    return model.PciAddress(0, 0x81, 2 - number, 0)


class Guest:
    """The part of Nova's Guest that Nova's code uses here."""

    def __init__(self, hostdevs):
        # The guest addresses have the form of host addresses.
        self._elements = ''.join(
            hostdev_xml.hostdev_config(device, place(number)).to_xml()
            for number, device in enumerate(hostdevs))

    def get_xml_desc(self, dump_migratable=False):
        assert dump_migratable
        return ('<domain><name>x</name><uuid/><devices>'
                f'{self._elements}</devices></domain>')


def moved(source, destination):
    """Return the alias and host address of each hostdev after a migration."""
    data = objects.LibvirtLiveMigrateData(
        serial_listen_addr=None, bdms=[], supported_perf_events=[],
        serial_listen_ports=[], dst_wants_file_backed_memory=False,
        graphics_listen_addr_vnc=None)
    migration_message.announce(data, {device: 'alike' for device in source})
    # Serialize and deserialize the object, as RPC does.
    data = objects.LibvirtLiveMigrateData.obj_from_primitive(
        data.obj_to_primitive())
    announced = migration_message.take_announced(data)
    assert not data.source_mdev_types
    # The compute manager sets this before.
    data.pci_dev_map_src_dst = {}
    pairs = dict(zip(announced, destination, strict=True))
    migration_message.answer(data, pairs, {
        alias: address for alias, (address, _text) in announced.items()})
    claimed = migration_message.planned_hostdevs(data)
    assert {(device.address, device.alias) for device in claimed} == {
        (device.address, device.alias) for device in destination}
    xml = migration.get_updated_guest_xml(
        objects.Instance(flavor=objects.Flavor(extra_specs={})),
        migration_message.MigratingGuest(Guest(source), data), data, None)
    elements = list(etree.fromstring(xml).iterfind('.//hostdev'))
    assert [element.get('managed') == 'yes' for element in elements
            if element.get('type') == 'pci'] == [
        device.managed for device in destination
        if isinstance(device.address, model.PciAddress)]
    # The guest addresses must not change.
    assert [address(element.find('address')) for element in elements] == [
        place(number) for number in range(len(elements))]
    return [(element.find('alias').get('name'),
             str(address(element.find('source/address'))))
            for element in elements]


def address(element):
    if element.get('uuid'):
        return element.get('uuid')
    return model.PciAddress(*(int(element.get(part), 16) for part in (
        'domain', 'bus', 'slot', 'function')))


@pytest.mark.parametrize('slots', [(1, 2), (2, 1), (2, 3), (3, 1)])
def test_each_function_is_replaced_by_its_counterpart(slots):
    """Each function is replaced, even by an address that another one had."""
    source = [function(1, 0, HERE), function(2, 1, HERE)]
    destination = [function(slots[0], 0, THERE), function(slots[1], 1, THERE)]
    assert moved(source, destination) == [
        (device.alias, str(device.address)) for device in destination]


@pytest.mark.parametrize('managed', [True, False])
def test_managed_is_taken_from_the_destination(managed):
    source, destination = function(1, 0, HERE), function(2, 0, THERE)
    moved([dataclasses.replace(source, managed=not managed)],
          [dataclasses.replace(destination, managed=managed)])


def _answered(**message):
    """Return the XML for a destination that sent this message."""
    source = function(1, 0, HERE)
    data = objects.LibvirtLiveMigrateData(**{
        'target_mdevs': {source.alias: function(2, 0, THERE).alias},
        'pci_dev_map_src_dst': {'0000:81:01.0': '0000:81:02.0'}, **message})
    return migration_message.MigratingGuest(
        Guest([source]), data).get_xml_desc(dump_migratable=True)


@pytest.mark.parametrize('message', [
    {'pci_dev_map_src_dst': {}},
    {'pci_dev_map_src_dst': {'0000:81:01.0': 'x'}},
    {'target_mdevs': {function(1, 0, HERE).alias: 'a\0b'}}])
def test_incomplete_answer_of_the_destination_is_an_error(message):
    assert function(2, 0, THERE).alias in _answered()
    with pytest.raises(errors.AssignmentError, match='destination did not'):
        _answered(**message)


def test_managed_is_yes_or_no():
    alias = function(2, 0, THERE).alias
    assert 'managed="yes"' in _answered(target_mdevs={
        function(1, 0, HERE).alias: alias, alias: '0000:81:02.0 a\0b'})


def test_announced_device_may_have_no_description():
    alias = function(1, 0, HERE).alias
    assert migration_message.take_announced(objects.LibvirtLiveMigrateData(
        source_mdev_types={alias: '0000:81:01.0'})) == {
        alias: ('0000:81:01.0', '')}


def test_mdevs_and_functions_are_replaced():
    source = [function(1, 0, HERE), mdev(MDEVS[0], 1, HERE)]
    destination = [function(7, 0, THERE), mdev(MDEVS[1], 1, THERE)]
    assert moved(source, destination) == [
        (device.alias, str(device.address)) for device in destination]

# SPDX-License-Identifier: Apache-2.0
"""Live migration moves the state of devices to equal devices."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.guest import device_state
from tests.unit import build

_SPEC = {'vendor_id': '10de', 'live_migratable': 'yes'}


def _offered(host, root=build.ROOT):
    return {item.uuid: item
            for item in build.inventory(host, 'host1', root).offered}


def _held(offered, groups=None):
    """Return a hostdev of each unit, for groups ACCEL0, ACCEL1, ..."""
    units = [(item, unit) for item in offered.values()
             for unit in item.region.units]
    return [hostdev.Hostdev(unit[0], naming.alias(
        f'ACCEL{index if groups is None else groups[index]}', item.uuid,
        index)) for index, (item, unit) in enumerate(units)]


def _described(host, offered, groups=None):
    return {device.alias: device_state.describe(device, host, offered)
            for device in _held(offered, groups)}


def test_device_that_is_not_live_migratable_is_refused():
    host = build.host([build.function('0000:81:00.0')],
                      {'vendor_id': '10de'})
    offered = _offered(host)
    with pytest.raises(errors.AssignmentError) as raised:
        device_state.check_source(_held(offered), offered)
    assert '0000:81:00.0 (10de:2330)' in str(raised.value)
    assert '"live_migratable": "yes"' in raised.value.remedy


def test_device_of_a_removed_entry_is_refused():
    host = build.host([build.function('0000:81:00.0')], _SPEC)
    with pytest.raises(errors.AssignmentError, match='no entry'):
        device_state.check_source(_held(_offered(host)), {})


def test_device_in_a_clique_is_refused():
    host = build.host([build.function('0000:81:00.0')], _SPEC)
    offered = _offered(host)
    [device] = _held(offered)
    with pytest.raises(errors.AssignmentError, match='gpu_cliques') as raised:
        device_state.check_source(
            [dataclasses.replace(device, clique='0')], offered)
    assert raised.value.remedy == 'migrate the server cold'


def test_guest_that_runs_without_a_device_is_refused():
    held = _held(_offered(build.host(
        [build.function(f'0000:8{number}:00.0') for number in (1, 2)],
        _SPEC)))
    device_state.check_complete(held, held)
    with pytest.raises(errors.AssignmentError, match='0000:82:00.0'):
        device_state.check_complete(held[:1], held)


def test_more_devices_on_the_destination_are_refused():
    host = build.host([build.function(f'0000:8{number}:00.0')
                       for number in (1, 2)], _SPEC)
    offered = _offered(host)
    described = _described(host, offered, [0, 0])
    described.popitem()
    with pytest.raises(errors.AssignmentError, match='no device that could'):
        device_state.pair(described, _held(offered, [0, 0]), host, offered)


def test_live_migratable_device_is_accepted():
    host = build.host([build.function('0000:81:00.0')], _SPEC)
    offered = _offered(host)
    device_state.check_source(_held(offered), offered)


@pytest.mark.parametrize('changes', [
    {'product_id': '2331'}, {'revision': 2}, {'firmware': (('NVME', '2'),)},
    {'subsystem_vendor_id': '1028', 'subsystem_product_id': '1'}])
def test_device_with_another_property_is_refused(changes):
    function = build.function('0000:81:00.0', revision=1,
                              firmware=(('NVME', '1'),))
    source = build.host([function], _SPEC)
    destination = build.host([dataclasses.replace(function, **changes)],
                             _SPEC)
    here, there = _offered(source), _offered(destination)
    described = _described(source, here)
    with pytest.raises(errors.AssignmentError) as raised:
        device_state.pair(described, _held(there), destination, there)
    assert 'group ACCEL0' in str(raised.value)
    # The message describes the device of the source and of the destination.
    assert str(raised.value).count('revision') == 2


def test_the_host_driver_does_not_matter():
    function = build.function('0000:81:00.0', driver='vfio-pci')
    source = build.host([function], _SPEC)
    destination = build.host([dataclasses.replace(
        function, driver=None, location=model.Location(1))], _SPEC)
    there = _offered(destination)
    pairs = device_state.pair(_described(source, _offered(source)),
                              _held(there), destination, there)
    assert len(pairs) == 1


def test_virtual_function_has_the_firmware_of_its_card():
    functions = build.card('0000:81:00.0', 1)
    functions[0] = dataclasses.replace(functions[0], firmware=(
        ('INFINIBAND', '28.39'),))
    host = build.host(functions, {'product_id': '37c9',
                                  'live_migratable': 'yes'})
    assert list(_described(host, _offered(host)).values()) == [
        '8086:37c9 revision 00 firmware 28.39']


def test_mdev_is_described_by_type_and_parent():
    parent = build.function('0000:81:00.0', '10de:20b0', mdev_types=(
        model.MdevType('nvidia-471', 1),))
    host = build.host([parent], {'vendor_id': '10de',
                                 'mdev_type': 'nvidia-471'})
    [item] = _offered(host).values()
    device = hostdev.Hostdev(
        model.MdevAddress(naming.mdev_uuid(build.ROOT, item.uuid, 0)),
        naming.alias('ACCEL0', item.uuid, 0))
    assert device_state.describe(device, host, {item.uuid: item}) == (
        'mdev nvidia-471 of 10de:20b0 revision 00')


def _of_types(*names):
    """Return a host with a parent of mdevs, and what the host offers."""
    parent = build.function('0000:81:00.0', '10de:20b0', mdev_types=tuple(
        model.MdevType(name, 1) for name in ('nvidia-468', 'nvidia-471')))
    host = build.host([parent], *(
        {'vendor_id': '10de', 'mdev_type': name, 'live_migratable': 'yes'}
        for name in names))
    return host, _offered(host)


def _mdev(item):
    return hostdev.Hostdev(
        model.MdevAddress(naming.mdev_uuid(build.ROOT, item.uuid, 0)),
        naming.alias('ACCEL0', item.uuid, 0, variant=item.region.variant))


@pytest.mark.parametrize('before, after', [
    (['nvidia-471'], ['nvidia-471', 'nvidia-468']),
    (['nvidia-471', 'nvidia-468'], ['nvidia-471'])])
def test_mdev_can_move_after_its_provider_changed(before, after):
    """Another provider counts the same type now."""
    [item] = (item for item in _of_types(*before)[1].values()
              if item.region.variant == 'nvidia-471')
    host, offered = _of_types(*after)
    assert item.uuid not in offered
    device_state.check_source([_mdev(item)], offered)
    assert device_state.describe(_mdev(item), host, offered) == (
        'mdev nvidia-471 of 10de:20b0 revision 00')


def test_mdev_is_refused_after_its_provider_changed_its_type():
    [item] = _of_types('nvidia-471')[1].values()
    host, offered = _of_types('nvidia-468')
    assert item.uuid in offered
    with pytest.raises(errors.AssignmentError, match='no entry'):
        device_state.check_source([_mdev(item)], offered)
    assert device_state.describe(_mdev(item), host, offered) == (
        'an mdev that no entry offers')


@given(st.permutations(range(6)), st.lists(st.integers(0, 2), min_size=6,
                                           max_size=6),
       st.lists(st.integers(0, 1), min_size=6, max_size=6))
def test_devices_are_paired_in_any_order(order, groups, revisions):
    """Six devices of two revisions for three groups, in another order."""
    def host(numbers):
        return build.host([build.function(
            f'0000:{0x80 + index:x}:00.0', revision=revisions[number])
            for index, number in enumerate(numbers)], _SPEC)
    source, destination = host(range(6)), host(order)
    here = _offered(source)
    there = _offered(destination, '11111111-6c1f-4f4e-8f33-1f0ee4e6d7a1')
    described = _described(source, here, groups)
    pairs = device_state.pair(
        described, _held(there, [groups[number] for number in order]),
        destination, there)
    assert len(set(pairs.values())) == 6
    for alias, device in pairs.items():
        assert device_state.describe(device, destination, there) == (
            described[alias])
        assert naming.parse_alias(alias)[0] == (
            naming.parse_alias(device.alias)[0])

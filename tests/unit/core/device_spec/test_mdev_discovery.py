# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: which are offered and assigned."""

import json
import uuid

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import assign
from nova_accel.core.assignment import assigned_units
from nova_accel.core.placement import providers
from nova_accel.core.request import device_profile
from nova_accel.host import reader
from tests.unit import build

_ME = '00000000-0000-0000-0000-000000000001'
_OTHER = '00000000-0000-0000-0000-000000000002'
_SPEC = {'vendor_id': '10de', 'mdev_type': 'nvidia-471'}
_SMALL = {'vendor_id': '10de', 'mdev_type': 'nvidia-468',
          'resource_class': 'CUSTOM_VGPU_SMALL'}


def parent(*types, at='0000:81:00.0', **facts):
    return build.function(at, '10de:20b0', mdev_types=types, **facts)


def ours(count):
    return tuple(str(uuid.uuid5(uuid.NAMESPACE_OID, str(number)))
                 for number in range(count))


def regions(host):
    return {region.name: len(region.units) for device in host.devices
            for region in device.regions}


def test_existing_and_available_mdevs_are_offered():
    host = build.host([parent(model.MdevType('nvidia-471', 2, ours(1)))],
                      _SPEC)
    assert regions(host) == {'VGPU_nvidia-471': 3}


def test_mdevs_of_other_programs_are_not_offered():
    host = build.host([parent(model.MdevType(
        'nvidia-471', 2, (str(uuid.uuid4()),)))], _SPEC)
    assert regions(host) == {'VGPU_nvidia-471': 2}


@pytest.mark.parametrize('limits', [(2, 3), (None, 2), (2, None)])
def test_the_first_entry_for_a_type_is_used(limits):
    specs = [{**_SPEC, **({'max_instances': limit} if limit else {})}
             for limit in limits]
    host = build.host([parent(model.MdevType('nvidia-471', 4, ()))], *specs)
    assert [(region.name, region.limit) for device in host.devices
            for region in device.regions] == [('VGPU_nvidia-471', limits[0])]
    assert host.problems == (
        '0000:81:00.0 (10de:20b0): named by [nova_accel] device_spec #1 and '
        'by [nova_accel] device_spec #2; the first is used',)


def test_each_type_has_a_region_even_without_available_mdevs():
    host = build.host([parent(model.MdevType('nvidia-471', 0, ours(1)),
                              model.MdevType('nvidia-468', 0))],
                      _SPEC, _SMALL)
    assert regions(host) == {'VGPU_nvidia-471': 1,
                             'CUSTOM_VGPU_SMALL_nvidia-468': 0}
    inventories = [provider.inventory
                   for provider in providers.desired(build.inventory(host))]
    # Placement accepts no inventory with a total of 0.
    assert sorted(map(list, inventories)) == [
        [], [], ['CUSTOM_UNIT_OF_VGPU']]


def test_virtual_functions_are_pooled_on_their_card():
    functions = [build.function('0000:81:00.0', '10de:20b0', num_vfs=2),
                 *(parent(model.MdevType('nvidia-471', 1),
                          at=f'0000:81:00.{number}', physfn='0000:81:00.0')
                   for number in (4, 5))]
    host = build.host(functions, _SPEC)
    assert [(str(device.address), regions(host)) for device
            in host.devices] == [('0000:81:00.0', {'VGPU_nvidia-471': 2})]
    assert not host.refusals


_FUNCTIONS = {'vendor_id': '10de', 'address': {'function': '[45]'}}
_TYPES = (model.MdevType('nvidia-471', 1),)


@pytest.mark.parametrize('spec, types, held, parts', [
    (_SPEC, _TYPES, '0000:81:00.4', {'0000:81:00.4'}),
    (_SPEC, _TYPES, '0000:81:00.0', {'0000:81:00.4', '0000:81:00.5'}),
    (_FUNCTIONS, (), '0000:81:00.0', {'0000:81:00.4', '0000:81:00.5'}),
    # The VF is held as a whole, and is still offered as a whole.
    (_FUNCTIONS, (), '0000:81:00.4', set())])
def test_parts_of_a_held_function_are_not_offered(spec, types, held, parts):
    """The driver shows the parts while the server is stopped."""
    functions = [build.function('0000:81:00.0', '10de:20b0', num_vfs=2),
                 *(parent(*types, at=f'0000:81:00.{number}',
                          physfn='0000:81:00.0') for number in (4, 5))]
    host = build.offer(functions, build.entries(spec),
                       held=build.holding(held))
    assert build.refusals(host) == dict.fromkeys(
        parts, f'a server holds {held} as a whole')


@pytest.mark.parametrize('spec, vfs, is_offered', [
    ({'address': '0000:81:00.*', 'resource_class': 'PGPU'}, 0, False),
    ({'address': '0000:81:00.*', 'resource_class': 'CUSTOM_VF'}, 2, False),
    (_SMALL, 2, False), (_SPEC, 2, True), (_SPEC, 0, True)])
def test_card_has_no_other_use_while_a_held_mdev_is_missing(
        spec, vfs, is_offered):
    """A reboot of the host removed the mdev, and the entries changed."""
    types = [model.MdevType(name, 1) for name in ('nvidia-468', 'nvidia-471')]
    [item] = build.inventory(build.host([parent(*types)], _SPEC)).offered
    held = assigned_units.to_hostdevs([assigned_units.Grant(
        'ACCEL0', item, (model.MdevAddress(ours(1)[0]),))])
    functions = [parent(*(() if vfs else types), num_vfs=vfs),
                 *(parent(*types, at=f'0000:81:00.{4 + number}',
                          physfn='0000:81:00.0') for number in range(vfs))]
    host = build.offer(functions, build.entries(spec),
                       held=lambda: {_OTHER: held})
    assert bool(host.devices) is is_offered
    assert set(build.refusals(host).values()) == (
        set() if is_offered else
        {'a server holds an mdev of this card, which is not there'})


@pytest.mark.parametrize('at', ['0000:81:00.0', '0000:81:00.4'])
@pytest.mark.parametrize('spec', [_SPEC, {'address': '0000:81:00.4'}])
def test_withheld_function_is_not_offered_in_any_form(at, spec):
    """Neither as a function, nor as mdevs, nor as VFs of a card."""
    functions = [build.function('0000:81:00.0', '10de:20b0', num_vfs=1),
                 parent(*_TYPES, at='0000:81:00.4', physfn='0000:81:00.0')]
    host = build.offer(
        functions, build.entries(spec),
        withheld={build.address(at): [model.Withheld('x', 'do y')]})
    assert host.units.total() == 0
    assert build.refusals(host)['0000:81:00.4'].endswith('x')


def test_max_instances_limits_the_mdevs_of_a_card():
    """More VFs report that they can create one."""
    functions = [build.function('0000:81:00.0', '10de:20b0', num_vfs=4),
                 *(parent(model.MdevType('nvidia-471', 1),
                          at=f'0000:81:00.{number}', physfn='0000:81:00.0')
                   for number in range(4, 8))]
    host = build.host(functions, {**_SPEC, 'max_instances': '3'})
    [item] = build.inventory(host).offered
    assert item.region.total == 3
    assert len(_assign(item, 1, mdevs={item.uuid: 2})) == 1
    with pytest.raises(errors.AssignmentError, match='0 of 3 are free'):
        _assign(item, 1, mdevs={item.uuid: 3})


def test_mdevs_of_other_programs_count_for_max_instances():
    others = ('11111111-2222-4333-8444-555555555555',
              '11111111-2222-4333-8444-666666666666')
    functions = [build.function('0000:81:00.0', '10de:20b0', num_vfs=4),
                 *(parent(model.MdevType('nvidia-471', 0, (other,)),
                          at=f'0000:81:00.{number}', physfn='0000:81:00.0')
                   for number, other in enumerate(others, 4)),
                 *(parent(model.MdevType('nvidia-471', 1),
                          at=f'0000:81:00.{number}', physfn='0000:81:00.0')
                   for number in (6, 7)),
                 parent(model.MdevType('nvidia-471', 0, others),
                        at='0000:82:00.0')]
    for limit, total in ((5, 2), (3, 1), (2, 0), (1, 0)):
        host = build.host(functions, {**_SPEC, 'max_instances': limit})
        assert [item.region.total for item in build.inventory(host).offered
                if str(item.device.address) == '0000:81:00.0'] == [total]


def test_vf_without_its_card_does_not_affect_other_devices():
    lost, other = (parent(model.MdevType('nvidia-471', 1), at=at, **facts)
                   for at, facts in (
                       ('0000:81:00.4', {'physfn': '0000:81:00.0'}),
                       ('0000:82:00.0', {})))
    for foreign in ([], build.entries({'vendor_id': '8086'})):
        host = build.host([lost, other], _SPEC, foreign=foreign)
        assert [str(device.address)
                for device in host.devices] == ['0000:82:00.0']
        assert build.refusals(host) == {
            '0000:81:00.4':
            'its physical function 0000:81:00.0 is not there'}


@pytest.mark.parametrize('types, reason', [
    ((), 'it has no mdev type nvidia-471'),
    ((model.MdevType('nvidia-468', 1),), 'only nvidia-468')])
def test_a_parent_without_the_type_is_refused(types, reason):
    host = build.host([parent(*types)], _SPEC)
    assert reason in build.refusals(host)['0000:81:00.0']


def test_parent_without_available_instances_offers_existing_mdevs():
    host = build.host([parent(model.MdevType('nvidia-471', None, ours(1)))],
                      _SPEC)
    assert regions(host) == {'VGPU_nvidia-471': 1}
    assert 'has no readable available' in build.refusals(host)['0000:81:00.0']


@pytest.mark.parametrize('number, offered', [
    (65536, 65537), (65537, 1), (4294967274, 1)])
def test_implausible_number_of_mdevs_is_ignored(number, offered):
    host = build.host([parent(model.MdevType('nvidia-471', number, ours(1)))],
                      _SPEC)
    assert regions(host) == {'VGPU_nvidia-471': offered}
    assert offered > 1 or build.refusals(host) == {
        '0000:81:00.0': f'its mdev type nvidia-471 has {number} '
                        'available_instances, which is no valid number'}


@pytest.mark.parametrize('api, offered', [
    ('', True), ('vfio-pci', True), ('vfio-ap', False), ('x\n', False)])
def test_mdevs_that_are_no_pci_devices_in_the_guest_are_refused(api, offered):
    host = build.host([parent(model.MdevType('nvidia-471', 1, api=api))],
                      _SPEC)
    assert bool(host.devices) is offered
    assert offered or 'can only have vfio-pci' in build.refusals(host)[
        '0000:81:00.0']


def test_device_with_mdevs_is_not_offered_as_a_whole():
    host = build.host([parent(model.MdevType('nvidia-471', 2, ours(1)))],
                      {'vendor_id': '10de'})
    assert '1 mediated device' in build.refusals(host)['0000:81:00.0']


def test_mdevs_are_live_migratable_unless_the_entry_says_no():
    functions = [parent(model.MdevType('nvidia-471', 1))]
    for spec, expected in ((_SPEC, True),
                           ({**_SPEC, 'live_migratable': 'no'}, False)):
        [device] = build.host(functions, spec).devices
        assert device.regions[0].live_migratable is expected


def _item(count):
    host = build.host([parent(model.MdevType('nvidia-471', count))], _SPEC)
    [item] = build.inventory(host).offered
    return item


def _assign(item, count, server=_ME, mdevs=()):
    grants = assign.assign(
        {item.uuid: {'VGPU': count}},
        assign.Wanted({f'ACCEL{number}': device_profile.Group({'VGPU': 1}, {})
                       for number in range(count)}), [item], {},
        server, dict(mdevs))
    return assigned_units.to_hostdevs(grants)


@given(st.integers(0, 8), st.integers(1, 8), st.integers(0, 8))
def test_free_mdevs_are_assigned_with_the_same_uuids_on_a_retry(
        total, wanted, taken):
    item = _item(total)
    if wanted + taken > total:
        with pytest.raises(errors.AssignmentError, match=item.name):
            _assign(item, wanted, mdevs={item.uuid: taken})
        return
    got = _assign(item, wanted, mdevs={item.uuid: taken})
    assert len({device.address for device in got}) == wanted
    assert got == _assign(item, wanted, mdevs={item.uuid: taken})
    others = _assign(item, wanted, server=_OTHER)
    assert not {device.address for device in got} & {
        device.address for device in others}
    assert all(naming.is_mdev_uuid(str(device.address)) for device in got)


def test_held_mdevs_are_counted_by_their_alias():
    item = _item(4)
    held = {_ME: _assign(item, 2), _OTHER: (hostdev.Hostdev(
        model.MdevAddress(str(uuid.uuid4())), ''),)}
    assert held_devices.counts([item], held) == {item.uuid: 2}


def _virtual(name='mtty', *types):
    return model.Function(model.ParentName(name), '', '', 0, mdev_types=types)


def test_parent_that_is_not_on_a_pci_bus_is_matched_by_name():
    machine = [parent(model.MdevType('mtty-1', 1)),
               _virtual('mtty', model.MdevType('mtty-1', 24)),
               _virtual('other', model.MdevType('mtty-1', 24))]
    host = build.host(machine, {'parent': 'mtty', 'mdev_type': 'mtty-1'})
    assert [(str(device.address), regions(host)) for device
            in host.devices] == [('mtty', {'VGPU_mtty-1': 24})]
    assert not host.refusals
    # Entries for PCI functions do not match them.
    everything = build.host(machine, {'mdev_type': 'mtty-1'})
    assert [str(device.address) for device in everything.devices] == [
        '0000:81:00.0']


def test_parent_that_is_not_on_a_pci_bus_is_not_offered_itself():
    host = build.host([_virtual(), parent()], {'parent': 'mtty'})
    assert build.refusals(host) == {'mtty': 'it is on no PCI bus'}


@given(st.lists(st.builds(model.ParentName, st.text(max_size=3)) | st.builds(
    model.PciAddress, *[st.integers(0, 3)] * 4), max_size=6))
def test_parents_sort_together_with_functions(addresses):
    ordered = sorted(addresses)
    assert ordered == sorted(reversed(addresses))
    names = [isinstance(address, model.ParentName) for address in ordered]
    assert names == sorted(names)


@pytest.mark.parametrize('more, says', [
    ({'parent': '../x'}, 'is not the name of a device'),
    ({'parent': ''}, 'is not the name'), ({'parent': 3}, 'is not the name'),
    ({'parent': 'mtty', 'vendor_id': '10de'}, 'keys of PCI devices')])
def test_invalid_parent_is_refused(more, says):
    _entries, [error] = reader.parse([json.dumps(
        {'mdev_type': 'mtty-1', **more})])
    assert says in str(error)

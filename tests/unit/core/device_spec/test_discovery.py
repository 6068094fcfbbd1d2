# SPDX-License-Identifier: Apache-2.0
"""Which devices of a machine are offered, and why others are refused."""

import itertools

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.core.device_spec import spec_entry
from tests.unit import build

_GPU = build.function('0000:81:00.0', '10de:2330')
_GPUS = {'vendor_id': '10de'}
_QATS = {'vendor_id': '8086'}


def test_devices_without_an_entry_are_not_offered():
    host = build.host([_GPU], _QATS)
    assert (host.devices, host.refusals, host.problems) == ((), (), ())
    assert host.functions == (_GPU,)


def test_card_is_one_region_of_one_unit():
    location = model.Location(1, 'pci0000:80', ('0000:80:01.0',))
    gpu = build.function('0000:81:00.0', '10de:2330', location=location)
    host = build.host([gpu], _GPUS)
    assert host.devices == (model.Device(
        gpu.address, '10de:2330', location, (model.Region(
            'CUSTOM_PCI_10DE_2330', 'CUSTOM_PCI_10DE_2330',
            frozenset(), ((gpu.address,),), True, reset='required'),)),)


def test_region_has_the_properties_of_its_entry():
    gpu = build.function('0000:81:00.0', driver='vfio-pci', vfio=True)
    [device] = build.host([gpu], {**_GPUS, 'resource_class': 'PGPU',
                                  'traits': 'x', 'managed': 'no'}).devices
    [region] = device.regions
    assert (region.resource_class, region.traits, region.managed) == (
        'PGPU', {'CUSTOM_X'}, False)


def test_functions_of_one_iommu_group_are_one_unit():
    pair = [build.function(f'0000:82:00.{number}', iommu_group='15')
            for number in range(2)]
    host = build.host(pair, _GPUS)
    assert build.units(host) == {
        'CUSTOM_PCI_10DE_2330': ['0000:82:00.0 0000:82:00.1']}


@pytest.mark.parametrize('more, devices, refusals', [
    ([], 1, 0),
    (['ffff:00:00.0'], 0, 2000),
])
def test_large_iommu_group_is_checked_in_linear_time(more, devices, refusals):
    group = [build.function(f'{bus >> 8:04x}:{bus & 0xff:02x}:00.0',
                            iommu_group='15') for bus in range(2000)]
    group += [build.function(at, '1b36:0005', iommu_group='15')
              for at in more]
    # In quadratic time it would take half an hour.
    host = build.host(group, _GPUS)
    assert len(host.devices) == devices
    assert len(host.refusals) == refusals


def test_functions_of_two_iommu_groups_are_two_devices():
    pair = [build.function(f'0000:82:00.{number}') for number in range(2)]
    host = build.host(pair, _GPUS)
    assert [str(device.address) for device in host.devices] == [
        '0000:82:00.0', '0000:82:00.1']


def test_the_order_of_the_functions_does_not_matter():
    functions = [_GPU, *build.card('0000:85:00.0', 3)]
    hosts = {build.host(order, {}) for order in
             itertools.permutations(functions)}
    assert len(hosts) == 1


@pytest.mark.parametrize('facts, reason', [
    ({'iommu_group': None}, 'it is in no IOMMU group'),
    ({'class_code': build.HOST_BRIDGE}, 'it is a bridge'),
    ({'class_code': build.PCI_BRIDGE}, 'it is a bridge'),
    ({'use': 'disk sda is mounted'},
     'the host uses it: disk sda is mounted'),
    ({'use': 'network port eth0 has an address'},
     'the host uses it: network port eth0 has an address'),
    ({'num_vfs': 4}, 'it has 4 virtual functions enabled'),
    ({'physfn': '0000:81:00.7'},
     'its physical function 0000:81:00.7 is not there'),
    ({'denied': True}, 'vfio-pci has it on its denylist, for faults that a '
                       'guest could make use of'),
])
def test_unusable_function_is_refused_with_the_reason(facts, reason):
    bystander = build.function('0000:99:00.0', '1111:2222')
    function = build.function('0000:81:00.0', **facts)
    host = build.host([function, bystander], _GPUS)
    assert host.devices == ()
    assert build.refusals(host) == {'0000:81:00.0': reason}
    assert host.refusals[0].ids == '10de:2330'


def test_a_domain_that_libvirt_cannot_name_is_refused():
    host = build.host([build.function('10000:e1:00.0'),
                       build.function('ffff:01:00.0')], _GPUS)
    assert build.units(host) == {'CUSTOM_PCI_10DE_2330': ['ffff:01:00.0']}
    assert build.refusals(host) == {
        '10000:e1:00.0':
        'its PCI domain is above ffff, which libvirt cannot name'}


def test_refusal_without_iommu_groups_has_a_remedy():
    functions = [build.function(f'0000:8{number}:00.0', iommu_group=None)
                 for number in range(2)]
    host = build.host(functions, _GPUS)
    assert set(build.refusals(host).values()) == {
        'this host has no IOMMU groups'}
    assert all('intel_iommu=on' in refusal.remedy
               for refusal in host.refusals)


def test_a_group_with_a_function_that_is_not_named_is_refused():
    other = build.function('0000:82:00.0', '1b36:0005', iommu_group='24')
    gpu = build.function('0000:81:00.0', iommu_group='24')
    host = build.host([gpu, other], {'vendor_id': '10de'})
    [reason] = build.refusals(host).values()
    for part in ('IOMMU group 24', '0000:82:00.0 (1b36:0005, 3D controller)',
                 '[nova_accel] device_spec #1 does not name'):
        assert part in reason


def test_order_of_the_functions_of_a_group_does_not_matter():
    other = build.function('0000:01:00.0', '1b36:0005', iommu_group='24')
    gpu = build.function('0000:81:00.0', iommu_group='24')
    host = build.host([other, gpu], {'vendor_id': '10de'})
    assert list(build.refusals(host)) == ['0000:81:00.0']


def test_a_group_that_two_entries_share_is_refused():
    pair = [build.function(f'0000:82:00.{number}', iommu_group='15')
            for number in range(2)]
    host = build.host(pair, {'address': '0000:82:00.0'},
                      {'address': '0000:82:00.1'})
    assert host.devices == ()
    assert set(build.refusals(host)) == {'0000:82:00.0', '0000:82:00.1'}


@pytest.mark.parametrize('at', ['0000:40:01.0', '0000:99:01.0'])
def test_a_forwarding_bridge_may_be_in_the_group(at):
    bridge = build.function(at, '1b36:000e', iommu_group='24',
                            class_code=build.PCI_BRIDGE)
    gpu = build.function('0000:81:00.0', iommu_group='24')
    host = build.host([bridge, gpu], _GPUS)
    assert build.units(host) == {'CUSTOM_PCI_10DE_2330': ['0000:81:00.0']}
    assert host.refusals == ()


def test_another_bridge_may_not_be_in_the_group():
    bridge = build.function('0000:81:00.1', '1b36:000e', iommu_group='24',
                            class_code=build.ISA_BRIDGE)
    gpu = build.function('0000:81:00.0', iommu_group='24')
    host = build.host([bridge, gpu], _GPUS)
    assert set(build.refusals(host)) == {'0000:81:00.0'}


    # The remedy is not to remove it from device_spec.
    assert 'nothing helps' in host.refusals[0].remedy


def test_a_host_bridge_without_a_driver_may_be_in_the_group():
    bridge = build.function('0000:40:01.0', '1022:1482', iommu_group='24',
                            class_code=build.HOST_BRIDGE)
    gpu = build.function('0000:81:00.0', iommu_group='24')
    assert build.units(build.host([bridge, gpu], _GPUS)) == {
        'CUSTOM_PCI_10DE_2330': ['0000:81:00.0']}
    bridge = build.function('0000:40:01.0', '1022:1482', iommu_group='24',
                            class_code=build.HOST_BRIDGE, driver='some')
    assert build.units(build.host([bridge, gpu], _GPUS)) == {}


@pytest.mark.parametrize('keys, is_offered', [
    ({'vendor_id': '10de'}, False), ({'address': '*:*:*.0'}, False),
    ({'product_id': '22a3'}, True), ({'address': '41:00.*'}, True)])
@pytest.mark.parametrize('driver', [None, 'vfio-pci', 'nvidia-nvswitch'])
def test_nvswitch_is_offered_if_an_entry_means_it(keys, is_offered, driver):
    switch = build.function('0000:41:00.0', '10de:22a3', class_code=0x068000,
                            driver=driver)
    host = build.host([switch], keys)
    assert bool(host.devices) is is_offered
    assert bool(host.refusals) is not is_offered


def test_denied_function_is_offered_if_it_is_bound_to_vfio():
    function = build.function('0000:81:00.0', denied=True, vfio=True)
    assert build.units(build.host([function], _GPUS)) == {
        'CUSTOM_PCI_10DE_2330': ['0000:81:00.0']}


@pytest.mark.parametrize('at', ['0000:40:01.0', '0000:99:01.0'])
def test_naming_a_bridge_does_not_affect_its_group(at):
    bridge = build.function(at, '10de:1af1', iommu_group='24',
                            class_code=build.PCI_BRIDGE)
    gpu = build.function('0000:81:00.0', iommu_group='24')
    host = build.host([bridge, gpu], _GPUS)
    assert build.units(host) == {'CUSTOM_PCI_10DE_2330': ['0000:81:00.0']}
    assert build.refusals(host) == {at: 'it is a bridge'}


@pytest.mark.parametrize('facts', [
    {'class_code': build.ISA_BRIDGE}, {'use': 'disk sda is mounted'},
    {'num_vfs': 2}])
def test_refusal_names_the_function_that_is_the_cause(facts):
    gpu = build.function('0000:81:00.0', iommu_group='24')
    other = build.function('0000:81:00.1', '8086:0001', iommu_group='24',
                           **facts)
    host = build.host([gpu, other], _GPUS)
    assert '0000:81:00.1' in build.refusals(host)['0000:81:00.0']


def test_virtual_functions_are_pooled_on_their_card():
    host = build.host(build.card('0000:85:00.0', 3),
                      {'product_id': '37c9', 'resource_class': 'QAT'})
    [device] = host.devices
    assert str(device.address) == '0000:85:00.0'
    assert device.ids == '8086:37c8'
    assert build.units(host) == {
        'CUSTOM_QAT': ['0000:85:00.1', '0000:85:00.2', '0000:85:00.3']}


def test_naming_only_a_card_with_virtual_functions_is_refused():
    host = build.host(build.card('0000:85:00.0', 3), {'product_id': '37c8'})
    assert host.devices == ()
    assert build.refusals(host) == {
        '0000:85:00.0': 'it has 3 virtual functions enabled'}
    assert 'sriov_numvfs' in host.refusals[0].remedy


@pytest.mark.parametrize('keys', [_QATS, {'address': '0000:85:00.0'}])
def test_entry_that_names_card_and_vfs_offers_the_vfs(keys):
    host = build.host(build.card('0000:85:00.0', 2), keys)
    assert build.units(host) == {
        'CUSTOM_PCI_8086_37C9': ['0000:85:00.1', '0000:85:00.2']}
    assert host.refusals == ()


def test_vfs_of_two_classes_are_two_regions_of_one_card():
    host = build.host(
        build.card('0000:85:00.0', 3),
        {'address': '0000:85:00.2', 'resource_class': 'B'},
        {'product_id': '37c9', 'resource_class': 'A'})
    [device] = host.devices
    assert build.units(host) == {
        'CUSTOM_A': ['0000:85:00.1', '0000:85:00.3'],
        'CUSTOM_B': ['0000:85:00.2']}
    assert len(device.regions) == 2


def test_vfs_that_differ_in_traits_have_regions_with_different_names():
    host = build.host(
        build.card('0000:85:00.0', 2),
        {'address': '0000:85:00.1', 'resource_class': 'A', 'traits': 'x'},
        {'address': '0000:85:00.2', 'resource_class': 'A', 'traits': 'y'})
    regions = host.devices[0].regions
    assert {region.resource_class for region in regions} == {'CUSTOM_A'}
    assert len({region.name for region in regions}) == 2


def test_the_names_of_a_cards_regions_are_unique():
    host = build.host(
        build.card('0000:85:00.0', 3),
        {'address': '0000:85:00.1', 'resource_class': 'A'},
        {'address': '0000:85:00.2', 'resource_class': 'A', 'traits': 'x'},
        {'address': '0000:85:00.3', 'resource_class': 'A_2'})
    names = [region.name for region in host.devices[0].regions]
    assert len(set(names)) == 3


def test_region_keeps_its_name_when_another_region_loses_a_unit():
    specs = ({'address': '0000:85:00.2', 'resource_class': 'A',
              'traits': 'x'},
             {'product_id': '37c9', 'resource_class': 'A'})
    card = build.card('0000:85:00.0', 3)

    def name(functions):
        [device] = build.host(functions, *specs).devices
        return {region.name: region.traits for region in device.regions}

    assert name(card) == name([f for f in card
                               if str(f.address) != '0000:85:00.1'])


def test_card_with_vfs_is_not_offered_even_if_it_reports_none():
    card = build.function('0000:85:00.0', '8086:37c8', num_vfs=0)
    virtual = build.function('0000:85:00.1', '8086:37c9',
                             physfn='0000:85:00.0')
    offered = sum(build.units(build.host([card, virtual], _QATS)).values(),
                  [])
    assert '0000:85:00.0' not in offered


def test_a_group_of_a_card_and_its_vfs_is_refused():
    functions = [build.function('0000:85:00.0', '8086:37c8', iommu_group='9',
                                num_vfs=1),
                 build.function('0000:85:00.1', '8086:37c9', iommu_group='9',
                                physfn='0000:85:00.0')]
    host = build.host(functions, _QATS)
    assert host.devices == ()
    assert set(build.refusals(host)) == {'0000:85:00.0', '0000:85:00.1'}


def test_a_group_of_vfs_of_two_cards_is_refused():
    functions = [function for at in ('0000:85:00.0', '0000:86:00.0')
                 for function in build.card(at, 1)]
    functions = [build.function(
        str(f.address), f.ids, physfn=f.physfn, num_vfs=f.num_vfs,
        iommu_group='9' if f.physfn else str(f.address))
        for f in functions]
    host = build.host(functions, {'product_id': '37c9'})
    assert host.devices == ()
    assert set(build.refusals(host).values()) == {
        'IOMMU group 9 mixes virtual functions of a card with other '
        'functions'}


def test_refusal_names_both_entries_that_claim_a_device():
    foreign = build.entries(_GPUS, option='[pci] device_spec')
    host = build.host([_GPU], {}, foreign=foreign)
    assert build.refusals(host) == {
        '0000:81:00.0': '[pci] device_spec #1 claims it as well as '
        '[nova_accel] device_spec #1'}


def test_devices_that_only_another_program_claims_are_not_reported():
    foreign = build.entries(_QATS, option='[pci] device_spec')
    host = build.host([_GPU, *build.card('0000:85:00.0', 1)], _GPUS,
                      foreign=foreign)
    assert build.units(host) == {'CUSTOM_PCI_10DE_2330': ['0000:81:00.0']}
    assert host.refusals == ()


def test_claim_on_one_function_refuses_the_whole_group():
    pair = [build.function('0000:81:00.0', iommu_group='1'),
            build.function('0000:81:00.1', '8086:1', iommu_group='1')]
    foreign = build.entries(_QATS, option='[pci] device_spec')
    host = build.host(pair, {}, foreign=foreign)
    assert host.devices == ()
    assert set(build.refusals(host)) == {'0000:81:00.0', '0000:81:00.1'}


def test_first_of_two_entries_is_used_and_the_second_reported():
    host = build.host([_GPU], {**_GPUS, 'resource_class': 'A'},
                      {'product_id': '2330', 'resource_class': 'B'})
    assert build.units(host) == {'CUSTOM_A': ['0000:81:00.0']}
    assert host.problems == (
        '0000:81:00.0 (10de:2330): named by [nova_accel] device_spec #1 and '
        'by [nova_accel] device_spec #2; the first is used',)


def test_equivalent_entries_are_not_reported():
    assert build.host([_GPU], _GPUS, {'product_id': '2330'}).problems == ()


def test_problems_of_the_reader_are_kept_without_duplicates():
    host = build.offer([], [], problems=['a', 'b', 'a'])
    assert host.problems == ('a', 'b')


# Machines of a few cards, with and without VFs, in random IOMMU groups, so
# that they are less regular than any real machine.
@st.composite
def _machines(draw):
    groups = st.sampled_from(['1', '2', '3', '4', '5', '6', '7', None])
    uses = st.sampled_from(['', '', '', 'disk sda is mounted'])
    kinds = st.sampled_from([build.GPU, build.GPU, build.GPU, build.NIC,
                             build.ISA_BRIDGE, build.PCI_BRIDGE])
    functions = []
    for bus in range(draw(st.integers(1, 5))):
        at = f'{draw(st.sampled_from(["0000", "10000"]))}:{bus:02x}:00.0'
        vfs = build.card(at, draw(st.integers(0, 3)))
        kind = draw(kinds)
        functions += [build.function(
            str(f.address), draw(st.sampled_from(['10de:1', '8086:2'])),
            physfn=f.physfn, num_vfs=f.num_vfs, class_code=kind,
            iommu_group=draw(groups), use=draw(uses)) for f in vfs]
    return functions


_specs = st.lists(st.sampled_from([
    {}, {'vendor_id': '10de'}, {'vendor_id': '8086'},
    {'address': '0000:00:00.0'}, {'address': '*:01:*.*'},
    {'address': '*:*:*.1', 'resource_class': 'A'},
    {'address': '*:*:*.2', 'resource_class': 'A', 'traits': 'x'}]),
    max_size=3)


@settings(max_examples=500)
@given(_machines(), _specs, st.none() | st.just({'address': '*:02:*.*'}))
def test_no_function_is_offered_twice_or_wrongly(functions, specs, claim):
    entries = build.entries(*specs)
    foreign = build.entries(claim, option='[pci] device_spec'
                            ) if claim else []
    host = build.offer(functions, entries, foreign)
    by_address = {f.address: f for f in functions}
    named = {f.address for f in functions
             if any(e.matches(f) for e in entries)}
    units = [unit for device in host.devices for region in device.regions
             for unit in region.units]
    given_away = [address for unit in units for address in unit]
    refused = {refusal.address for refusal in host.refusals}

    assert len(set(given_away)) == len(given_away)
    assert set(given_away) <= named
    assert refused <= named
    for address in given_away:
        function = by_address[address]
        assert not function.use
        assert not function.is_bridge
        assert not function.num_vfs
        assert function.address.domain <= 0xffff
        assert not any(e.matches(function) for e in foreign)
    for unit in units:
        group = by_address[unit[0]].iommu_group
        assert group is not None
        assert set(unit) == {f.address for f in functions
                             if f.iommu_group == group
                             and not f.is_forwarding_bridge}
    # Each named function is offered, refused, or a card with offered VFs.
    parents = {by_address[address].physfn for address in named}
    assert named <= {*given_away, *refused, *parents}
    # A card is offered as a whole or by its VFs, never both.
    assert not {by_address[a].physfn for a in given_away} & set(given_away)


@given(_machines(), _specs)
def test_offer_is_deterministic(functions, specs):
    entries = build.entries(*specs)
    assert build.offer(functions, entries) == build.offer(
        reversed(functions), entries)


def test_entries_that_match_nothing_offer_nothing():
    assert build.offer([_GPU], [spec_entry.Entry(
        'x', vendor_id='ffff')]).devices == ()

# SPDX-License-Identifier: Apache-2.0
"""The devices that are assigned for allocations."""

import collections

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import allocations
from nova_accel.core.assignment import assign
from nova_accel.core.assignment import assigned_units
from nova_accel.core.assignment import present
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from tests.unit import build

_ME, _OTHER = 'server-1', 'server-2'


def _group(name='CUSTOM_GPU', amount=1, **traits):
    return device_profile.Group({name: amount}, {
        naming.MARKER_TRAIT: 'required', **traits})


def _assign(allocated, groups, offered, holders=None):
    return assign.assign(allocated, assign.Wanted(groups), offered,
                         holders or {}, _ME)


def _amounts(*offered, amount=1):
    return {item.uuid: {item.region.resource_class: amount}
            for item in offered}


def _units(grants):
    return [' '.join(map(str, grant.unit)) for grant in grants]


def test_group_gets_unit_of_allocated_provider():
    gpus = [build.offered(build.region(bus=bus)) for bus in (0x81, 0x82)]
    [grant] = _assign(_amounts(gpus[1]), {'ACCEL0': _group()}, gpus)
    assert grant == assigned_units.Grant('ACCEL0', gpus[1],
                                 gpus[1].region.units[0])


def test_unit_of_several_functions_is_assigned_whole():
    pair = build.offered(build.region(size=2))
    grants = _assign(_amounts(pair), {'ACCEL0': _group()}, [pair])
    assert _units(grants) == ['0000:81:00.0 0000:81:00.1']


def test_units_of_other_servers_are_not_assigned():
    pool = build.offered(build.region(count=3))
    holders = {build.address('0000:81:00.0'): _OTHER}
    grants = _assign(_amounts(pool, amount=2),
                     {'ACCEL0': _group(amount=2)}, [pool], holders)
    assert _units(grants) == ['0000:81:01.0', '0000:81:02.0']


def test_unit_with_a_function_of_another_server_is_not_assigned():
    pair = build.offered(build.region(size=2))
    with pytest.raises(errors.AssignmentError) as caught:
        _assign(_amounts(pair), {'ACCEL0': _group()}, [pair],
                {build.address('0000:81:00.1'): _OTHER})
    assert str(caught.value) == (
        'resource provider host1_accel_0000:81:00.0: Placement has '
        'allocations for 1 of its units, 0 of 1 are free: 0000:81:00.1 is '
        'held by server-2')


def test_more_allocated_than_offered_is_an_error():
    gpu = build.offered(build.region())
    with pytest.raises(errors.AssignmentError) as caught:
        _assign(_amounts(gpu, amount=2), {'ACCEL0': _group(amount=2)}, [gpu])
    assert str(caught.value).endswith(
        'Placement has allocations for 2 of its units, 1 of 1 is free')


def test_units_of_the_server_itself_are_free_for_it():
    gpu = build.offered(build.region())
    holders = {build.address('0000:81:00.0'): _ME}
    assert len(_assign(_amounts(gpu), {'ACCEL0': _group()}, [gpu],
                       holders)) == 1


def test_unheld_units_are_preferred_to_those_of_the_server():
    pool = build.offered(build.region(count=2))
    holders = {build.address('0000:81:00.0'): _ME}
    assert _units(_assign(_amounts(pool), {'ACCEL0': _group()}, [pool],
                          holders)) == ['0000:81:01.0']


def test_groups_with_different_classes_and_traits_get_matching_devices():
    plain = build.offered(build.region(bus=1))
    linked = build.offered(build.region(bus=2, traits=['CUSTOM_LINK']))
    fpga = build.offered(build.region('FPGA', bus=3))
    groups = {'ACCEL0': _group(CUSTOM_LINK='forbidden'),
              'ACCEL1': _group('FPGA'),
              'ACCEL2': _group(CUSTOM_LINK='required')}
    grants = _assign(_amounts(linked, fpga, plain), groups,
                     [plain, linked, fpga])
    assert [(grant.group, grant.offered) for grant in grants] == [
        ('ACCEL0', plain), ('ACCEL1', fpga), ('ACCEL2', linked)]


def test_groups_with_different_amounts_get_matching_devices():
    two = build.offered(build.region(count=2, bus=1))
    one = build.offered(build.region(bus=2))
    groups = {'ACCEL0': _group(amount=1), 'ACCEL1': _group(amount=2)}
    grants = _assign({**_amounts(two, amount=2), **_amounts(one)}, groups,
                     [two, one])
    assert [(grant.group, grant.offered) for grant in grants] == [
        ('ACCEL0', one), ('ACCEL1', two), ('ACCEL1', two)]


def test_two_groups_can_share_one_provider():
    pool = build.offered(build.region(count=3))
    groups = {'ACCEL0': _group(), 'ACCEL1': _group(amount=2)}
    grants = _assign(_amounts(pool, amount=3), groups, [pool])
    assert [grant.group for grant in grants] == [
        'ACCEL0', 'ACCEL1', 'ACCEL1']
    assert len(set(_units(grants))) == 3


def test_allocated_device_is_assigned_after_its_entry_lost_a_trait():
    gpu = build.offered(build.region())
    groups = {'ACCEL0': _group(CUSTOM_LINK='required')}
    assert len(_assign(_amounts(gpu), groups, [gpu])) == 1


def test_unit_that_no_group_asked_for_has_no_group():
    pool = build.offered(build.region(count=2))
    grants = _assign(_amounts(pool, amount=2), {'ACCEL0': _group()}, [pool])
    assert [grant.group for grant in grants] == ['ACCEL0', '']
    assert [grant.group for grant in _assign(
        _amounts(pool), {}, [pool])] == ['']


def test_allocations_of_other_providers_are_ignored():
    gpu = build.offered(build.region())
    allocated = {build.ROOT: {'VCPU': 4, 'MEMORY_MB': 512}, **_amounts(gpu)}
    assert len(_assign(allocated, {'ACCEL0': _group()}, [gpu])) == 1
    assert _assign({build.ROOT: {'VCPU': 4}}, {}, [gpu]) == ()


@pytest.mark.parametrize('allocated', [{}, {build.ROOT: {'VCPU': 1}}])
def test_group_without_allocation_on_this_host_is_an_error(allocated):
    gpu = build.offered(build.region())
    with pytest.raises(errors.AssignmentError) as caught:
        _assign(allocated, {'ACCEL0': _group(amount=2)}, [gpu])
    assert str(caught.value) == ('device request: wants 2 units of '
                                 'CUSTOM_GPU, 0 are free')


def test_grants_are_in_the_order_of_the_groups():
    gpus = [build.offered(build.region(bus=bus)) for bus in range(12)]
    groups = {f'ACCEL{number}': _group() for number in range(11)}
    grants = _assign(_amounts(*gpus), groups, gpus)
    assert [grant.group for grant in grants] == [*groups, '']


def _choose(count, groups, offered, holders=None, rules=()):
    """Grants for a server that has only a class allocated."""
    return assign.assign(
        {'the class': {'CUSTOM_GPU': count}}, assign.Wanted(
            groups, rules, counts={'CUSTOM_GPU': count}), offered,
        holders or {}, _ME)


def test_free_devices_are_chosen_if_only_the_class_is_allocated():
    gpus = [build.offered(build.region(bus=bus)) for bus in (1, 2, 3)]
    holders = {build.address('0000:02:00.0'): _OTHER}
    grants = _choose(2, {'ACCEL0': _group(), 'ACCEL1': _group()}, gpus,
                     holders)
    assert _units(grants) == ['0000:01:00.0', '0000:03:00.0']
    # Both have to be allocated.
    assert assigned_units.unallocated(grants, {}) == {
        gpus[index].uuid: {'CUSTOM_UNIT_OF_CUSTOM_GPU': 1} for index in (0, 2)}
    assert assigned_units.unallocated(grants, _amounts(*gpus)) == {}


def test_granular_group_of_the_flavor_gets_device_with_its_traits():
    """The provider of the class shows only that some device has them."""
    gpus = [build.offered(build.region(bus=bus, traits=traits)) for
            bus, traits in ((1, ()), (2, ['CUSTOM_A100']), (3, ()))]
    groups = flavor_specs.read({
        'resources1:CUSTOM_GPU': '1', 'trait1:CUSTOM_A100': 'required',
        'resources:CUSTOM_GPU': '1', 'resources_ACCEL0:CUSTOM_GPU': '1',
        'resources2:CUSTOM_LICENCE': '1000000000'})
    grants = _choose(3, groups, gpus)
    assert [grant.group for grant in grants] == ['ACCEL0', '', '']
    assert set(_units(grants)) == {f'0000:0{bus}:00.0' for bus in (1, 2, 3)}
    holders = {build.address('0000:02:00.0'): _OTHER}
    with pytest.raises(errors.AssignmentError, match='CUSTOM_A100'):
        _choose(2, groups, gpus, holders)
    assert _units(_choose(1, flavor_specs.read({
        'resources1:CUSTOM_GPU': '1', 'trait1:CUSTOM_A100': 'required'}),
        gpus)) == ['0000:02:00.0']


def test_granular_group_for_another_provider_does_not_constrain_ours():
    """Nova's own vGPUs and ours, of one class on one host."""
    ours = build.offered(build.region(bus=1, traits=['CUSTOM_OURS']))
    for strength in 'required', 'forbidden':
        theirs = {'required': 'CUSTOM_THEIRS', 'forbidden': 'CUSTOM_OURS'}
        for first, second in ('1', '2'), ('2', '1'):
            grants = _choose(1, flavor_specs.read({
                f'resources{first}:CUSTOM_GPU': '1',
                f'trait{first}:{theirs[strength]}': strength,
                f'resources{second}:CUSTOM_GPU': '1',
                f'trait{second}:CUSTOM_OURS': 'required'}), [ours])
            assert _units(grants) == ['0000:01:00.0']


def _unsuffixed(strength, amount=1, **specs):
    """Return the request of a flavor with unsuffixed class and trait."""
    return flavor_specs.read({'resources:CUSTOM_GPU': str(amount),
                              'trait:CUSTOM_BIG': strength, **specs})


def test_unsuffixed_class_and_trait_are_one_request():
    big, plain = (build.offered(build.region(bus=bus, traits=traits))
                  for bus, traits in ((2, ['CUSTOM_BIG']), (1, ())))
    assert _units(_choose(1, _unsuffixed('required'), [plain, big])) == [
        '0000:02:00.0']
    assert _units(_choose(1, _unsuffixed('forbidden'), [big, plain])) == [
        '0000:01:00.0']
    # If two units are requested, both need the trait.
    with pytest.raises(errors.AssignmentError, match='CUSTOM_BIG'):
        _choose(2, _unsuffixed('required', 2), [plain, big])
    # The trait also applies while another server holds the device with it.
    with pytest.raises(errors.AssignmentError, match='CUSTOM_BIG'):
        _choose(1, _unsuffixed('required'), [plain, big],
                {build.address('0000:02:00.0'): _OTHER})


def test_unsuffixed_trait_can_be_of_the_compute_node():
    gpus = [build.offered(build.region(bus=bus)) for bus in (1, 2)]
    other = build.offered(build.region('FPGA', bus=3, traits=['CUSTOM_BIG']))
    assert _choose(2, _unsuffixed('required', 2), [*gpus, other])


def test_unsuffixed_trait_does_not_apply_to_groups():
    big, plain = (build.offered(build.region(bus=bus, traits=traits))
                  for bus, traits in ((2, ['CUSTOM_BIG']), (1, ())))
    groups = flavor_specs.read({'resources_ACCEL0:CUSTOM_GPU': '1',
                                'resources1:CUSTOM_GPU': '1',
                                'trait:CUSTOM_BIG': 'required'})
    assert len(_choose(2, groups, [big, plain])) == 2


def test_allocated_device_without_the_unsuffixed_trait_is_kept():
    """The device lost the trait later, or an older version chose it."""
    big, plain = (build.offered(build.region(bus=bus, traits=traits))
                  for bus, traits in ((2, ['CUSTOM_BIG']), (1, ())))
    assert _units(_assign(_amounts(plain), _unsuffixed('required'),
                          [big, plain])) == ['0000:01:00.0']


def test_allocations_to_change_if_another_server_holds_the_device():
    """Units to allocate in addition, and units to release."""
    gpus = [build.offered(build.region(bus=bus)) for bus in (1, 2, 3)]
    unit = 'CUSTOM_UNIT_OF_CUSTOM_GPU'
    allocated = {'the class': {'CUSTOM_GPU': 2}, **{
        gpu.uuid: {unit: 1} for gpu in gpus[:2]}}
    holders = {build.address('0000:02:00.0'): _OTHER}
    wanted = assign.Wanted({'ACCEL0': _group(), 'ACCEL1': _group()},
                           counts={'CUSTOM_GPU': 2})
    with pytest.raises(errors.TakenError):
        assign.assign(allocated, wanted, gpus, holders, _ME)
    of_classes = allocations.without_devices(allocated)
    assert of_classes == {'the class': {'CUSTOM_GPU': 2}}
    grants = assign.assign(of_classes, wanted, gpus, holders, _ME)
    assert _units(grants) == ['0000:01:00.0', '0000:03:00.0']
    assert assigned_units.unallocated(grants, allocated) == {
        gpus[2].uuid: {unit: 1}}
    here = {gpu.uuid for gpu in gpus}
    surplus = assigned_units.surplus(grants, allocated, here)
    assert surplus == {gpus[1].uuid: {unit: 1}}
    assert allocations.changed(
        allocated, assigned_units.unallocated(grants, allocated), surplus) == {
            'the class': {'CUSTOM_GPU': 2}, gpus[0].uuid: {unit: 1},
            gpus[2].uuid: {unit: 1}}
    # During a move, a server has allocations of devices on two hosts.
    assert assigned_units.surplus(grants, allocated,
                                  here - {gpus[1].uuid}) == {}


def test_other_inventory_of_a_provider_is_not_counted_as_units():
    gpus = [build.offered(build.region(bus=bus)) for bus in (1, 2)]
    unit, licence = 'CUSTOM_UNIT_OF_CUSTOM_GPU', 'CUSTOM_LICENCE'
    allocated = {'the class': {'CUSTOM_GPU': 1},
                 gpus[0].uuid: {unit: 1, licence: 1},
                 gpus[1].uuid: {licence: 1}}
    grants = assign.assign(allocated, assign.Wanted(
        {}, counts={'CUSTOM_GPU': 1}), gpus, {}, _ME)
    assert _units(grants) == ['0000:01:00.0']
    assert assigned_units.unallocated(grants, allocated) == {}
    assert assigned_units.surplus(grants, allocated, allocated) == {}


def test_units_without_a_group_are_chosen():
    gpus = [build.offered(build.region(bus=bus)) for bus in (1, 2)]
    assert [grant.group for grant in _choose(2, {}, gpus)] == ['', '']


def test_chosen_device_has_the_required_traits():
    linked = build.offered(build.region(bus=2, traits=['CUSTOM_LINK']))
    plain = build.offered(build.region(bus=1))
    grants = _choose(1, {'ACCEL0': _group(CUSTOM_LINK='required')},
                     [plain, linked])
    assert [grant.offered for grant in grants] == [linked]
    with pytest.raises(errors.AssignmentError) as caught:
        _choose(1, {'ACCEL0': _group(CUSTOM_LINK='required')}, [plain])
    assert 'CUSTOM_LINK' in str(caught.value)


def test_chosen_devices_obey_the_affinity_rules():
    pool = build.offered(build.region(count=2, bus=1))
    other = build.offered(build.region(bus=2))
    rule = affinity.Rule('device', False, ('ACCEL0', 'ACCEL1'))
    groups = {'ACCEL0': _group(), 'ACCEL1': _group()}
    grants = _choose(2, groups, [pool, other], rules=[rule])
    assert {grant.offered for grant in grants} == {pool, other}
    with pytest.raises(errors.AssignmentError) as caught:
        _choose(2, groups, [pool], rules=[rule])
    assert 'distinct device of ACCEL0-1' in str(caught.value)


def test_error_names_the_server_that_holds_the_device():
    gpu = build.offered(build.region())
    with pytest.raises(errors.AssignmentError) as caught:
        _choose(1, {'ACCEL0': _group()}, [gpu],
                {build.address('0000:81:00.0'): _OTHER})
    assert str(caught.value).endswith('0000:81:00.0 is held by server-2')


_CLASSES = st.sampled_from(['CUSTOM_GPU', 'FPGA'])
_TRAITS = st.sampled_from(['CUSTOM_X', 'CUSTOM_Y'])


@st.composite
def _feasible(draw):
    """Allocations that can be assigned, with groups and providers."""
    offered = [build.offered(build.region(
        draw(_CLASSES), draw(st.integers(1, 4)), bus,
        draw(st.sets(_TRAITS)), draw(st.integers(1, 2))))
        for bus in range(draw(st.integers(1, 4)))]
    left = {item.uuid: len(item.region.units) for item in offered}
    groups, allocated = {}, collections.defaultdict(collections.Counter)
    for number in range(draw(st.integers(0, 6))):
        possible = [item for item in offered if left[item.uuid]]
        if not possible:
            break
        item = draw(st.sampled_from(possible))
        amount = draw(st.integers(1, left[item.uuid]))
        left[item.uuid] -= amount
        name = item.region.resource_class
        allocated[item.uuid][name] += amount
        groups[f'ACCEL{number}'] = _group(name, amount, **{
            trait: 'required' if trait in item.region.traits else 'forbidden'
            for trait in draw(st.sets(_TRAITS))})
    holders = {}
    for item in offered:
        units = draw(st.permutations(item.region.units))
        for unit in units[:draw(st.integers(0, left[item.uuid]))]:
            holders[draw(st.sampled_from(unit))] = _OTHER
    free = [a for item in offered for unit in item.region.units
            for a in unit if a not in holders]
    holders.update(dict.fromkeys(draw(st.sets(
        st.sampled_from(free)) if free else st.just(())), _ME))
    return allocated, groups, offered, holders


@given(_feasible())
def test_feasible_allocations_are_assigned(case):
    allocated, groups, offered, holders = case
    grants = _assign(*case)
    assigned = [address for grant in grants for address in grant.unit]
    assert len(set(assigned)) == len(assigned)
    assert all(holders.get(address, _ME) == _ME for address in assigned)
    by_group = collections.Counter(
        (grant.group, grant.offered.region.resource_class)
        for grant in grants)
    assert by_group == {(name, resource_class): amount
                        for name, group in groups.items()
                        for resource_class, amount in group.resources.items()}
    by_provider = collections.Counter(grant.offered.uuid for grant in grants)
    assert by_provider == {uuid: amounts.total()
                           for uuid, amounts in allocated.items()}
    for grant in grants:
        traits = groups[grant.group].traits
        assert all((trait in grant.offered.region.traits) == (
            strength == 'required') for trait, strength in traits.items()
            if trait != naming.MARKER_TRAIT)
        assert grant.unit in grant.offered.region.units
    # Each group gets its units from one provider.
    assert len({(grant.group, grant.offered.uuid)
                for grant in grants}) == len(groups)


@given(_feasible(), st.data())
def test_one_unit_too_many_is_an_error_that_names_the_provider(case, data):
    allocated, groups, offered, holders = case
    item = data.draw(st.sampled_from(offered))
    units = item.region.units
    free = sum(all(holders.get(a, _ME) == _ME for a in unit)
               for unit in units)
    name = item.region.resource_class
    more = free + 1 - allocated[item.uuid].total()
    allocated[item.uuid][name] += more
    groups['ACCEL99'] = _group(name, more)
    with pytest.raises(errors.AssignmentError) as caught:
        _assign(*case)
    assert item.name in str(caught.value)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('providers', [63, 64])
def test_many_equal_groups_and_providers_terminate(providers):
    gpus = [build.offered(build.region(bus=bus)) for bus in range(providers)]
    groups = {f'ACCEL{number}': _group() for number in range(64)}
    try:
        assert len(_assign(_amounts(*gpus), groups, gpus)) == 64
    except errors.AssignmentError:
        assert providers == 63


def _packing(pools):
    """Pools of five units, with groups of 1, 1 and 3 for each."""
    offered = [build.offered(build.region(count=5, bus=bus))
               for bus in range(pools)]
    groups = {f'ACCEL{number}': _group(amount=1 if number < 2 * pools else 3)
              for number in range(3 * pools)}
    return _amounts(*offered, amount=5), groups, offered


def test_groups_with_different_amounts_are_packed():
    assert len(_assign(*_packing(4))) == 20


def test_many_groups_with_different_amounts_are_packed():
    assert len(_assign(*_packing(8))) == 40


def test_guest_starts_with_unchanged_device():
    at = build.address('0000:81:00.0')
    # No entry has to name the device. An mdev need not exist before the guest
    # starts.
    for ids in '', '10de:2330':
        present.check({at: ids, model.MdevAddress(_ME): ''},
                      build.host([build.function(str(at))]))


@pytest.mark.parametrize('functions, reason', [
    ([], 'is not there any more'),
    ([build.function('0000:81:00.0', use='disk sda is mounted')],
     'the host uses it: disk sda is mounted'),
    ([build.function('0000:81:00.0', '1bcf:001c')],
     'is 1bcf:001c now, the server had 10de:2330'),
    ([build.function('0000:81:00.0', iommu_group=7),
      build.function('0000:82:00.0', iommu_group=7)],
     'IOMMU group 7 has 0000:82:00.0 by now, which the server does not have')])
def test_guest_does_not_start_with_missing_used_or_replaced_device(
        functions, reason):
    with pytest.raises(errors.AssignmentError) as caught:
        present.check({build.address('0000:81:00.0'): '10de:2330'},
                      build.host(functions))
    assert caught.value.thing == 'device 0000:81:00.0'
    assert caught.value.reason == reason
    assert caught.value.remedy

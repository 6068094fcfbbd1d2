# SPDX-License-Identifier: Apache-2.0
"""Tests for nova_accel.core.request.alternatives."""

import pytest

from nova_accel.core import errors
from nova_accel.core.request import alternatives
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs

_H100, _A100, _L40S = ['CUSTOM_H100'], ['CUSTOM_A100'], ['CUSTOM_L40S']


def _group(*any_of, **keys):
    return {'resources': {'CUSTOM_GPU': 1}, 'any_of': list(any_of), **keys}


def _parse(*groups, **keys):
    return device_profile.parse({'name': 'p', 'groups': list(groups), **keys},
                                'f')


def _request(*groups, **keys):
    return flavor_request.parse(flavor_specs.expand(
        _parse(*groups, **keys), {}))


def test_flavor_keeps_alternatives_and_placement_does_not_see_them():
    profile = _parse(_group(['CUSTOM_H100', 'CUSTOM_80GB'], _A100, []),
                     per='host')
    specs = flavor_specs.expand(profile, {})
    assert specs == {
        'resources_ACCEL0:CUSTOM_GPU': '1',
        'trait_ACCEL0:CUSTOM_NOVA_ACCEL': 'required',
        'nova_accel:numa_ACCEL0': 'preferred',
        'nova_accel:any_ACCEL0-0': 'CUSTOM_80GB,CUSTOM_H100',
        'nova_accel:any_ACCEL0-1': 'CUSTOM_A100',
        'nova_accel:any_ACCEL0-2': '',
        'nova_accel:any_per': 'host',
        'nova_accel:profile': 'p'}
    wanted = flavor_request.parse(specs)
    [group] = wanted.groups.values()
    assert group.any_of == profile.groups[0].any_of
    assert wanted.alternatives == ['CUSTOM_80GB+CUSTOM_H100', 'CUSTOM_A100',
                                   'any']
    assert wanted.all_traits > {'CUSTOM_80GB', 'CUSTOM_H100', 'CUSTOM_A100'}


@pytest.mark.parametrize('per, rank', [('cloud', 1), ('host', 0)])
def test_hosts_are_compared_by_the_alternative_unless_per_host(per, rank):
    assert _request(_group(_H100, _A100), per=per).rank(1) == rank


@pytest.mark.parametrize('groups, found', [
    # Equal groups get the same alternative.
    ([_group(_H100, _A100, count=2)],
     ['CUSTOM_H100 CUSTOM_H100', 'CUSTOM_A100 CUSTOM_A100']),
    ([_group(_H100, _A100), _group(_L40S, []), _group(_H100, _A100)],
     ['CUSTOM_H100 CUSTOM_L40S CUSTOM_H100', 'CUSTOM_H100  CUSTOM_H100',
      'CUSTOM_A100 CUSTOM_L40S CUSTOM_A100', 'CUSTOM_A100  CUSTOM_A100'])])
def test_combinations(groups, found):
    assert [' '.join(
        '+'.join(trait for trait in group.traits
                 if trait != 'CUSTOM_NOVA_ACCEL')
        for group in plain.values()) for plain in alternatives.combinations(
            _request(*groups).groups)] == found


def test_groups_without_alternatives_stay_as_they_are():
    groups = _request({'resources': {'PGPU': 1}}).groups
    assert list(alternatives.combinations(groups)) == [groups]


@pytest.mark.parametrize('groups, keys, error', [
    ([_group(_H100, _A100, traits={'CUSTOM_A100': 'forbidden'})], {},
     'group 0: alternative 1 requires trait CUSTOM_A100, which the group '
     'forbids'),
    ([_group(_H100, [], _A100)], {}, 'alternative 2 is never chosen: each '
     'device with its traits has those of alternative 1'),
    ([_group(_A100, _H100, _A100)], {}, 'alternative 2 is never chosen'),
    ([_group(_H100, _A100, traits={'CUSTOM_H100': 'required'})], {},
     'alternative 1 is never chosen'),
    ([_group(_H100, ['A100'])], {}, "'A100' is neither a standard trait"),
    ([_group(_H100, [f'CUSTOM_FPGA_FUNCTION_ID_{"A" * 32}'])], {},
     'alternative 1 requires a function of an FPGA'),
    ([_group(_H100, _A100), {'resources': {'FPGA': 1}, 'bitstream':
                             '8f3a1d9b-b1d9-4f0f-9d4b-5b2f4f2e6a10'}], {},
     'has any_of and a bitstream'),
    ([_group(*([f'CUSTOM_{number}'] for number in range(number)))
      for number in (4, 5)], {}, 'its alternatives make 20 combinations; at '
     'most 16 are tried'),
    ([{'resources': {'PGPU': 1}}], {'per': 'host'},
     'has per, but no group has any_of')])
def test_what_can_never_be_chosen_is_refused(groups, keys, error):
    with pytest.raises(errors.ProfileError) as raised:
        _parse(*groups, **keys)
    assert error in str(raised.value)


def test_pinned_flavor_requires_one_alternative_of_placement():
    specs = flavor_specs.expand(_parse(
        _group(_H100, _A100, count=2, traits={'CUSTOM_X': 'forbidden'}),
        _group(_L40S, []), per='host'), {})
    pinned = flavor_specs.pinned(specs, 2)
    assert not flavor_specs.has_alternatives(pinned)
    assert {key: pinned.get(key) for key in {*specs, *pinned}
            if pinned.get(key) != specs.get(key)} == {
        'trait_ACCEL0:CUSTOM_A100': 'required',
        'trait_ACCEL2:CUSTOM_L40S': 'required',
        **{key: None for key in specs if key.startswith('nova_accel:any_')}}

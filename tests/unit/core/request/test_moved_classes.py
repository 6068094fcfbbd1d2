# SPDX-License-Identifier: Apache-2.0
"""Flavors and profiles that ask for old classes."""

import collections

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.core.request import moved_classes

MOVES = {'CUSTOM_H100': 'CUSTOM_GPU', 'CUSTOM_A100': 'CUSTOM_GPU',
         'PGPU': 'CUSTOM_GPU'}


@pytest.mark.parametrize('before, after', [
    ({'resources:CUSTOM_H100': '2', 'hw:cpu_policy': 'dedicated'},
     {'resources:CUSTOM_GPU': '2', 'trait:CUSTOM_H100': 'required',
      'hw:cpu_policy': 'dedicated'}),
    ({'resources_1:PGPU': '1', 'resources_2:CUSTOM_A100': '1'},
     {'resources_1:CUSTOM_GPU': '1', 'trait_1:CUSTOM_PGPU': 'required',
      'resources_2:CUSTOM_GPU': '1', 'trait_2:CUSTOM_A100': 'required'}),
    # A change that was interrupted.
    ({'resources:CUSTOM_H100': '2', 'resources:CUSTOM_GPU': '2',
      'trait:CUSTOM_H100': 'required'},
     {'resources:CUSTOM_GPU': '2', 'trait:CUSTOM_H100': 'required'}),
    ({'resources:CUSTOM_NIC': '1', 'trait:CUSTOM_H100': 'required'},) * 2])
def test_extra_specs(before, after):
    assert moved_classes.rewrite(before, MOVES) == after
    assert moved_classes.is_moved(before, MOVES) == (before != after)


@pytest.mark.parametrize('specs, reason', [
    ({'resources:CUSTOM_H100': '1', 'resources:CUSTOM_A100': '1'},
     'one request'),
    ({'resources:CUSTOM_H100': '1', 'resources:CUSTOM_GPU': '2'},
     'would become'),
    ({'resources_1:CUSTOM_H100': '1', 'trait_1:CUSTOM_H100': 'forbidden'},
     'would become'),
    ({'resources_ACCEL0:CUSTOM_H100': '1',
      'nova_accel:forbidden_ACCEL0:CUSTOM_H100': 'true'}, 'would become'),
    ({'resources1:CUSTOM_H100': '1', 'resources2:CUSTOM_A100': '1',
      'group_policy': 'isolate'}, 'may be one provider')])
def test_extra_specs_that_cannot_ask_for_the_same(specs, reason):
    with pytest.raises(errors.ProfileError, match=reason):
        moved_classes.rewrite(specs, MOVES)


_GROUPS = st.lists(st.builds(
    lambda name, count, traits: {
        'resources': {name: 1}, 'count': count, 'traits': traits},
    st.sampled_from([*MOVES, 'CUSTOM_NIC']), st.integers(1, 4),
    st.dictionaries(st.sampled_from(['CUSTOM_X', 'CUSTOM_Y']),
                    st.sampled_from(['required', 'forbidden']))),
    min_size=1, max_size=5)


@given(_GROUPS, st.sampled_from([{}, {'group_policy': 'isolate'}]))
def test_servers_and_profiles_change_alike(groups, own):
    """An old server asks for what a new one asks for."""
    def expand(document):
        return flavor_specs.expand(device_profile.parse(document, 'test'), own)

    before = {'name': 'p', 'groups': groups}
    after = moved_classes.document(before, MOVES)
    specs = moved_classes.rewrite(expand(before), MOVES)
    assert flavor_specs.read(specs) == flavor_specs.read(expand(after))
    assert specs.get('group_policy') == expand(after).get('group_policy')
    amounts = collections.Counter()
    for name, amount in flavor_specs.amounts(expand(before)).items():
        amounts[MOVES.get(name, name)] += amount
    assert flavor_specs.amounts(specs) == amounts
    assert moved_classes.document(after, MOVES) == after
    assert moved_classes.rewrite(specs, MOVES) == specs


@pytest.mark.parametrize('loaded', [
    {'device_profile': {'name': 'p', 'groups': [
        {'resources:CUSTOM_H100': '1'}]}},
    [{'resources': {'CUSTOM_H100': 1}}], {'groups': None}, None, 7])
def test_document_of_any_form(loaded):
    assert 'resources:CUSTOM_H100' not in str(
        moved_classes.document(loaded, MOVES))


@pytest.mark.parametrize('option, problem', [
    ({'gpu_h100': 'custom_gpu'}, None),
    ({'CUSTOM_A': 'CUSTOM_B', 'CUSTOM_B': 'CUSTOM_C'}, 'is moved itself'),
    ({'CUSTOM_A': 'CUSTOM_A'}, 'is moved itself'),
    ({'custom_a': 'CUSTOM_B', 'CUSTOM_A': 'CUSTOM_C'},
     'has several new classes'),
    ({'gpu_h100': 'custom_gpu', 'CUSTOM_GPU_H100': 'GPU'}, None),
    ({'PGPU': 'CUSTOM_GPU', 'CUSTOM_PGPU': 'CUSTOM_GPU'},
     'has the same trait, CUSTOM_PGPU'),
    ({'VCPU': 'CUSTOM_B'}, 'is not a class that devices can have'),
    ({'CUSTOM_NOVA_ACCEL_X': 'CUSTOM_B'}, 'no entry can have the trait')])
def test_option(option, problem):
    moves, problems = moved_classes.parse(option)
    assert {problem} - {None} == {
        problem for error in problems if problem in str(error)}
    if not problem:
        assert moves == {'CUSTOM_GPU_H100': 'CUSTOM_GPU'}

# SPDX-License-Identifier: Apache-2.0
"""A profile is written into extra specs, and read back."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs

_GPU = device_profile.Group({'PGPU': 1}, {})
_FPGA = device_profile.Group({'FPGA': 1}, {})
_SAME_DOMAIN = 'nova_accel:same_domain'
_KEY = {flavor_specs.PROFILE_KEY: 'p'}


def _profile(*groups, **fields):
    return device_profile.Profile('p', groups, **fields)


def _problem(wanted, extra_specs=_KEY):
    with pytest.raises(errors.ProfileError) as caught:
        flavor_specs.expand(wanted, extra_specs)
    message = str(caught.value)
    assert message.startswith("device profile 'p': ")
    assert '\n' not in message
    return message


def test_profile_is_expanded_to_novas_syntax():
    group = device_profile.Group({'PGPU': 2}, {
        'CUSTOM_X': 'required', 'CUSTOM_Y': 'forbidden'}, 'required')
    assert flavor_specs.expand(_profile(group),
                               {**_KEY, 'hw:cpu_policy': 'shared'}
                               ) == {
        'nova_accel:profile': 'p',
        'resources_ACCEL0:PGPU': '2',
        'trait_ACCEL0:CUSTOM_NOVA_ACCEL': 'required',
        'trait_ACCEL0:CUSTOM_X': 'required',
        'nova_accel:forbidden_ACCEL0:CUSTOM_Y': 'true',
        'nova_accel:numa_ACCEL0': 'required',
        'hw:cpu_policy': 'shared'}


@pytest.mark.parametrize('wanted', [True, False])
def test_request_for_cliques_is_read_back(wanted):
    specs = flavor_specs.expand(_profile(_GPU, gpu_cliques=wanted), _KEY)
    assert flavor_request.parse(specs).gpu_cliques is wanted


@pytest.mark.parametrize('wanted', ['required', 'preferred', ''])
def test_domain_of_profile_or_flavor_is_read_back(wanted):
    specs = flavor_specs.expand(_profile(_GPU, same_domain=wanted), _KEY)
    assert flavor_request.parse(specs).checked().same_domain == wanted
    own = {_SAME_DOMAIN: wanted} if wanted else {}
    assert flavor_specs.expand(_profile(_GPU), {**_KEY, **own}) == specs


@pytest.mark.parametrize('value', ['Required', 'true', 'required ', 'off'])
def test_unknown_value_for_the_domain_is_refused(value):
    with pytest.raises(errors.ProfileError) as raised:
        flavor_request.parse({_SAME_DOMAIN: value}).checked()
    assert str(raised.value) == (
        f"extra spec {_SAME_DOMAIN}: is '{value}'; set it to required or "
        'preferred')


def test_domain_that_profile_and_flavor_ask_for_is_refused():
    assert f'the flavor itself has {_SAME_DOMAIN}' in _problem(
        _profile(_GPU, same_domain='required'),
        {**_KEY, _SAME_DOMAIN: 'preferred'})


def test_the_flavors_own_specs_are_not_changed():
    own = dict(_KEY)
    flavor_specs.expand(_profile(_GPU), own)
    assert own == _KEY


def test_kept_name_is_that_of_the_profile():
    specs = flavor_specs.expand(_profile(_GPU),
                                {**_KEY, flavor_specs.EXPANDED_KEY: 'another'})
    assert specs[flavor_specs.EXPANDED_KEY] == 'p'


@pytest.mark.parametrize('groups, own, policy', [
    (1, {}, None),
    (2, {}, None),
    (1, {'resources1:CUSTOM_X': '1'}, None),
    (2, {'group_policy': 'none'}, 'none'),
    (2, {'group_policy': 'isolate'}, 'isolate'),
    (1, {'group_policy': 'isolate'}, 'isolate'),
    (1, {'group_policy': 'isolate', 'resources1:CUSTOM_X': '1'}, 'isolate'),
    (2, {'group_policy': 'isolate', 'resources1:CUSTOM_X': '1'}, 'isolate'),
])
def test_group_policy_stays_if_the_flavor_had_it_and_placement_can_keep_it(
        groups, own, policy):
    specs = flavor_specs.expand(_profile(*[_GPU, _FPGA][:groups]),
                                {**_KEY, **own})
    assert specs.get('group_policy') == policy


@pytest.mark.parametrize('own, isolated', [
    ({}, True), ({'group_policy': 'none'}, False)])
def test_group_policy_of_the_flavor_overrides_the_profiles(own, isolated):
    specs = flavor_specs.expand(_profile(_GPU, _GPU, group_policy='isolate'),
                                {**_KEY, **own})
    # Both groups may be one provider in Placement, which gets no isolate.
    assert (affinity.Rule('device', False, ('ACCEL0', 'ACCEL1'))
            in flavor_specs.rules(specs)) is isolated
    assert specs.get('group_policy', 'none') == 'none'


def test_no_key_without_colon_is_added():
    """AggregateInstanceExtraSpecsFilter would look for it in aggregates."""
    specs = flavor_specs.expand(_profile(_GPU, _FPGA), {**_KEY, 'own': 'x'})
    assert [key for key in specs if ':' not in key] == ['own']


def test_group_policy_that_contradicts_the_profile_is_refused():
    together = affinity.Rule('device', True, ('ACCEL0', 'ACCEL1'))
    wanted = _profile(_GPU, _FPGA, rules=(together,))
    assert 'by group_policy, which contradict each other' in _problem(
        wanted, {**_KEY, 'group_policy': 'isolate'})
    assert flavor_specs.rules(flavor_specs.expand(wanted, _KEY))[0] == together


def test_huge_count_is_limited():
    specs = {'resources_ACCEL0:PGPU': '1', 'nova_accel:count_ACCEL0':
             '9' * 255}
    assert 512 < len(flavor_specs.read(specs)) < 5000


def test_group_policy_that_no_provider_can_meet_is_refused():
    other = device_profile.Group({'PGPU': 1}, {'CUSTOM_X': 'required'})
    assert "set the flavor's group_policy to none" in _problem(
        _profile(_GPU, other), {**_KEY, 'group_policy': 'isolate',
                                'resources1:CUSTOM_X': '1'})


def test_equal_groups_are_one_request_to_placement():
    specs = flavor_specs.expand(_profile(_FPGA, *[_GPU] * 8), _KEY)
    assert {key: value for key, value in specs.items()
            if key.startswith('resources')} == {
        'resources_ACCEL0:FPGA': '1', 'resources_ACCEL1:PGPU': '8'}
    assert specs['nova_accel:count_ACCEL1'] == '8'
    groups = flavor_specs.read(specs)
    assert list(groups) == [f'ACCEL{index}' for index in range(9)]
    assert {groups[name].resources['PGPU'] for name in list(groups)[1:]} == {1}


def test_bitstream_of_equal_groups_is_kept_for_each():
    image = 'd5ca2f11-3108-4426-a11c-a959987565df'
    group = device_profile.Group({'FPGA': 1}, {}, bitstream=image)
    specs = flavor_specs.expand(_profile(group, group), _KEY)
    for name in ('ACCEL0', 'ACCEL1'):
        assert flavor_specs.read(specs)[name].bitstream == image


def test_units_of_each_equal_group_are_kept():
    group = device_profile.Group({'CUSTOM_QAT': 2}, {})
    specs = flavor_specs.expand(_profile(group, group), _KEY)
    assert specs['resources_ACCEL0:CUSTOM_QAT'] == '4'
    assert [group.resources for group in flavor_specs.read(
        specs).values()] == [{'CUSTOM_QAT': 2}] * 2


@pytest.mark.parametrize('key, says', [
    ('resources:PGPU', 'the flavor itself also asks for PGPU '
     '(resources:PGPU); remove it from the flavor or '
     'from the profile'),
    ('resources1:PGPU', '(resources1:PGPU)'),
    ('resources_GPUS:PGPU', '(resources_GPUS:PGPU)'),
    ('resources_ACCEL0:CUSTOM_X', 'the flavor itself has '
     'resources_ACCEL0:CUSTOM_X, which the profile would write'),
    ('trait_ACCEL7:CUSTOM_X', 'trait_ACCEL7:CUSTOM_X'),
    ('nova_accel:numa_ACCEL0', 'remove it from the flavor'),
    ('nova_accel:gpu_cliques', 'remove it from the flavor'),
])
def test_flavor_key_that_contradicts_the_profile_is_refused(key, says):
    assert says in _problem(_profile(_GPU), {**_KEY, key: '1'})


@pytest.mark.parametrize('key', [
    'resources:VGPU', 'resources1:VGPU', 'trait:CUSTOM_X', 'hw:PGPU',
    'quota:PGPU', 'resources_ACCEL:VGPU', 'traits_ACCEL0:X',
    'trait1:PGPU'])
def test_flavor_key_that_does_not_contradict_the_profile_stays(key):
    assert flavor_specs.expand(_profile(_GPU), {**_KEY, key: '1'})[key] == '1'


def test_bitstream_is_kept_for_its_group():
    image = 'd5ca2f11-3108-4426-a11c-a959987565df'
    group = device_profile.Group({'FPGA': 1}, {}, bitstream=image)
    specs = flavor_specs.expand(_profile(_GPU, group), _KEY)
    assert specs['nova_accel:bitstream_ACCEL1'] == image
    assert [group.bitstream for group in flavor_specs.read(specs).values(
        )] == ['', image]


def test_flavor_with_a_bitstream_key_of_its_own_is_refused():
    assert 'nova_accel:bitstream_ACCEL0' in _problem(
        _profile(_GPU), {**_KEY, 'nova_accel:bitstream_ACCEL0': 'x'})


def test_key_at_novas_limit_is_accepted_and_a_longer_one_refused():
    def wanted(length):
        name = 'CUSTOM_'.ljust(length - len('trait_ACCEL0:'), 'X')
        return _profile(device_profile.Group({'PGPU': 1}, {name: 'required'}))

    flavor_specs.expand(wanted(255), _KEY)
    assert 'longer than the 255 characters' in _problem(wanted(256))


def test_value_that_is_too_long_is_refused():
    assert "'hw:x' is longer" in _problem(
        _profile(_GPU), {**_KEY, 'hw:x': 'y' * 256})


def test_more_bytes_than_a_flavor_holds_are_refused():
    assert 'a flavor holds 15360; ask for fewer' in _problem(
        _profile(*[_GPU, _FPGA] * 128))


def test_as_many_bytes_as_a_flavor_holds_are_accepted():
    own = {f'k{number:03}': 'v' * 200 for number in range(70)}
    size = sum(len(key) + len(value) for key, value in flavor_specs.expand(
        _profile(_GPU), {**_KEY, **own}).items())
    left = flavor_specs.MAX_BYTES - size
    rest = {f'r{number:03}': 'v' * 96 for number in range(left // 100)}
    rest['r'] = 'v' * (left % 100 - 1)
    fits = {**_KEY, **own, **rest}
    flavor_specs.expand(_profile(_GPU), fits)
    assert 'comes to 15361 bytes' in _problem(
        _profile(_GPU), {**fits, 'k000': 'v' * 201})


def test_the_size_is_counted_in_bytes():
    _problem(_profile(_GPU), {
        **_KEY, **{f'k{number}': '€' * 250 for number in range(40)}})


def test_marker_trait_stays_required_if_a_profile_forbids_it():
    group = device_profile.Group({'PGPU': 1}, {
        naming.MARKER_TRAIT: device_profile.FORBIDDEN})
    specs = flavor_specs.expand(_profile(group), _KEY)
    assert specs['trait_ACCEL0:CUSTOM_NOVA_ACCEL'] == 'required'


_classes = st.sampled_from(['PGPU', 'VGPU', 'FPGA', 'CUSTOM_A', 'CUSTOM_B2'])
_traits = st.sampled_from(['CUSTOM_X', 'CUSTOM_Y_Z', 'HW_GPU_API_VULKAN'])
_groups = st.lists(st.builds(
    device_profile.Group,
    st.dictionaries(_classes, st.integers(1, 1024), min_size=1),
    st.dictionaries(_traits, st.sampled_from(['required', 'forbidden'])),
    st.sampled_from(['required', 'preferred', 'off']),
    st.just('') | st.uuids().map(str)),
    min_size=1, max_size=12)


@given(_groups, st.sampled_from([None, 'none', 'isolate']))
def test_expanded_profile_is_read_back(groups, policy):
    specs = flavor_specs.expand(_profile(*groups, group_policy=policy),
                                {**_KEY, 'hw:x': 'y',
                                 'trait:CUSTOM_Q': 'required'})
    read = flavor_specs.read(specs)
    assert list(read) == [f'ACCEL{index}' for index in range(len(groups))]
    for group, wanted in zip(read.values(), groups, strict=True):
        assert group.resources == wanted.resources
        assert group.traits == {naming.MARKER_TRAIT: 'required',
                                **wanted.traits}
        assert group.numa == wanted.numa
        assert group.bitstream == wanted.bitstream
    assert flavor_specs.classes(specs) == {
        name for group in groups for name in group.resources}
    assert flavor_specs.PROFILE_KEY not in specs
    assert all(isinstance(value, str) for value in specs.values())


def test_groups_are_read_in_the_order_of_their_numbers():
    specs = {f'resources_ACCEL{number}:PGPU': '1' for number in (10, 2, 0)}
    assert list(flavor_specs.read(specs)) == ['ACCEL0', 'ACCEL2', 'ACCEL10']


@pytest.mark.parametrize('specs', [
    {}, {'resources:PGPU': '1'}, {'resources1:PGPU': '1'},
    {'resources_GPU:PGPU': '1'}, {'resources_ACCEL:PGPU': '1'},
    {'resources_ACCELX:PGPU': '1'}, {'resourcesACCEL0:PGPU': '1'},
    {'nova_accel:numa_ACCEL0': 'required'}, _KEY])
def test_flavor_without_our_groups_is_read_as_empty(specs):
    assert flavor_specs.read(specs) == {}


def test_flavors_own_groups_and_traits_are_read_apart():
    read = flavor_specs.read({
        'resources1:CUSTOM_GPU': '2', 'trait1:CUSTOM_A100': 'required',
        'trait1:CUSTOM_OLD': 'forbidden', 'trait1:CUSTOM_ODD': 'preferred',
        'resources_B:VGPU': '1', 'resources:PGPU': '1',
        'trait:CUSTOM_X': 'required', 'trait:CUSTOM_OLD': 'forbidden',
        'trait:CUSTOM_ODD': 'preferred', 'resources_ACCEL0:FPGA': '1',
        'trait_ACCEL0:CUSTOM_Y': 'required'}, ['CUSTOM_IMAGE'])
    assert list(read) == ['ACCEL0']
    assert read.own == (
        device_profile.Group({'CUSTOM_GPU': 2}, {
            'CUSTOM_A100': 'required', 'CUSTOM_OLD': 'forbidden'}, 'off'),
        device_profile.Group({'VGPU': 1}, {}, 'off'))
    assert read.traits == {'CUSTOM_X': 'required', 'CUSTOM_OLD': 'forbidden',
                           'CUSTOM_IMAGE': 'required'}
    assert flavor_specs.read({}).traits == {}


def test_numbers_with_too_many_digits_are_ignored():
    specs = {'resources_ACCEL0:PGPU': '1',
             'nova_accel:count_ACCEL0': '9' * 5000,
             f'nova_accel:name_ACCEL0-{"9" * 5000}': 'a'}
    assert [*flavor_specs.read(specs)] == ['ACCEL0']
    assert flavor_specs.names(specs) == {}


@pytest.mark.parametrize('value', ['', 'x', '-1', '1.5', '²', '9' * 5000])
def test_amount_that_is_no_number_is_not_read(value):
    assert flavor_specs.read({'resources_ACCEL0:PGPU': value,
                              'trait_ACCEL0:CUSTOM_X': 'required'}) == {
        'ACCEL0': device_profile.Group({}, {'CUSTOM_X': 'required'}, 'off')}


@given(st.dictionaries(
    st.text() | st.from_regex(r'(resources|trait)_ACCEL\d+:\w*',
                              fullmatch=True), st.text()))
def test_any_extra_specs_can_be_read(specs):
    for group in flavor_specs.read(specs).values():
        assert all(isinstance(amount, int)
                   for amount in group.resources.values())


@pytest.mark.parametrize('specs, classes', [
    ({'resources:A': '1', 'resources1:B': '0', 'resources_X:C': '2'},
     {'A', 'B', 'C'}),
    ({'trait:A': 'required', 'hw:resources': '1', 'resource:B': '1'}, set()),
])
def test_classes_are_those_of_every_group(specs, classes):
    assert flavor_specs.classes(specs) == classes

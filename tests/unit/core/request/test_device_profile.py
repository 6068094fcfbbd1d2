# SPDX-License-Identifier: Apache-2.0
"""A checked document is read, in our format and in Cyborg's."""

import pytest

from nova_accel.core import errors
from nova_accel.core.request import device_profile


def _parse(*groups, **document):
    return device_profile.parse({'name': 'p', 'groups': list(groups),
                                 **document},
                                'p.yaml')


def _group(group):
    return _parse(group).groups[0]


def _problem(*groups):
    with pytest.raises(errors.ProfileError) as caught:
        _parse(*groups)
    message = str(caught.value)
    assert "profile 'p' in p.yaml" in message
    assert '\n' not in message
    return message


def test_our_group_is_read():
    assert _group({'resources': {'PGPU': 2},
                   'traits': {'CUSTOM_X': 'required',
                              'CUSTOM_W': 'forbidden'},
                   'numa': 'required'}) == device_profile.Group(
        {'PGPU': 2},
        {'CUSTOM_W': 'forbidden', 'CUSTOM_X': 'required'}, 'required')


def test_cyborgs_group_is_read():
    assert _group({'resources:FPGA': '1', 'trait:CUSTOM_X': 'required',
                   'accel:whatever': None}) == device_profile.Group(
        {'FPGA': 1}, {'CUSTOM_X': 'required'}, 'preferred')


@pytest.mark.parametrize('group', [
    {'resources:FPGA': 1}, {'resources:FPGA': ' 1 '},
    {'resources: FPGA ': '01'}, {'resources': {'FPGA': 1}}])
def test_spaces_and_text_are_read_as_cyborg_reads_them(group):
    assert _group(group) == device_profile.Group({'FPGA': 1}, {})


def test_missing_keys_have_defaults():
    parsed = _parse({'resources': {'PGPU': 1}})
    assert parsed == device_profile.Profile(
        'p', (device_profile.Group({'PGPU': 1}, {}, 'preferred', ''),), '',
        None)


def test_description_and_policy_are_kept():
    parsed = _parse({'resources': {'PGPU': 1}}, description='d',
                    group_policy='isolate')
    assert (parsed.description, parsed.group_policy) == ('d', 'isolate')


def test_null_description_is_empty():
    assert _parse({'resources:PGPU': 1}, description=None).description == ''


def test_count_makes_that_many_groups_in_order():
    parsed = _parse({'resources': {'PGPU': 1}, 'count': 3},
                    {'resources': {'FPGA': 1}})
    assert [list(group.resources) for group in parsed.groups] == [
        ['PGPU'], ['PGPU'], ['PGPU'], ['FPGA']]


def test_counts_together_may_reach_the_limit():
    half = {'resources': {'PGPU': 1}, 'count': 128}
    assert len(_parse(half, half).groups) == device_profile.MAX_GROUPS
    assert _problem(half, half, {'resources': {'PGPU': 1}}) == (
        "profile 'p' in p.yaml, group 2: the profile asks for more than 256 "
        'groups')


def test_amount_at_the_limit_is_accepted():
    assert _group(
        {'resources': {'PGPU': device_profile.MAX_AMOUNT}}).resources == {
        'PGPU': 1024}


def test_a_billion_groups_are_refused_at_once():
    assert 'more than 256 groups' in _problem(
        {'resources': {'PGPU': 1}, 'count': 10 ** 9})


_IMAGE = 'd5ca2f11-3108-4426-a11c-a959987565df'
_FUNCTION = 'CUSTOM_FPGA_FUNCTION_ID_D5CA2F1131084426A11CA959987565DF'


@pytest.mark.parametrize('group', [
    {'resources:FPGA': 1, 'accel:bitstream_id': _IMAGE},
    {'resources:FPGA': 1, 'accel: bitstream_id ': _IMAGE.upper()},
    {'resources:FPGA': 1, 'accel:bitstream_id': _IMAGE.replace('-', ''),
     'accel:function_id': None, 'accel:video_ram': '2GB'},
    {'resources': {'FPGA': 1}, 'bitstream': _IMAGE}])
def test_bitstream_is_the_uuid_of_its_image(group):
    parsed = _group(group)
    assert parsed.bitstream == _IMAGE
    assert parsed.traits == {}


@pytest.mark.parametrize('group', [
    {'resources:FPGA': 1, 'accel:function_id': _IMAGE},
    {'resources:FPGA': 1, 'accel:function_id': _IMAGE.replace('-', ''),
     f'trait:{_FUNCTION}': 'required'},
    {'resources': {'FPGA': 1}, 'function': _IMAGE.upper()}])
def test_function_becomes_a_trait(group):
    parsed = _group(group)
    assert parsed.traits == {_FUNCTION: 'required'}
    assert parsed.bitstream == ''


@pytest.mark.parametrize('group, says', [
    ({'accel:bitstream_id': 'abc'}, "bitstream 'abc' is not a uuid"),
    ({'accel:function_id': '3AFB'}, "function '3AFB' is not a uuid"),
    ({'accel:bitstream_id': _IMAGE, 'accel:function_id': _IMAGE},
     'leave one of them out'),
    ({'accel:function_id': _IMAGE, f'trait:{_FUNCTION}': 'forbidden'},
     'forbids its trait')])
def test_invalid_bitstream_or_function_is_refused_in_one_line(group, says):
    assert says in _problem({'resources:FPGA': 1, **group})


@pytest.mark.parametrize('group, says', [
    ({'trait:CUSTOM_X': 'required'}, 'group 0: asks for no resource'),
    ({'resources': {}}, 'group 0: asks for no resource'),
    ({'resources:GPU': 1}, "resources 'GPU' is neither a standard resource "
     'class nor CUSTOM_ and A-Z, 0-9, _; PGPU, VGPU and FPGA are standard'),
    ({'resources:CUSTOM_lower-case': 1}, "'CUSTOM_lower-case' is neither"),
    ({'resources:': 1}, "resources '' is neither"),
    ({'resources': {'VCPU': 1}},
     'resources VCPU is a class that Nova itself counts; set it on the '
     'flavor'),
    ({'resources': {'MEMORY_MB': 1}}, 'MEMORY_MB is a class that Nova'),
    ({'resources': {'PGPU': 1, 'CUSTOM_A': 1}},
     'asks for PGPU and CUSTOM_A at once, and each class has a resource '
     'provider of its own; write a group for each class, joined by affinity '
     '"same: device"'),
    ({'resources:FPGA': 1, 'resources:PGPU': 1}, 'FPGA and PGPU at once'),
    ({'resources:FPGA': '1025'}, 'FPGA: 1025 is more than 1024'),
    ({'resources': {'PGPU': 1}, 'traits': {'NVLINK': 'required'}},
     "trait 'NVLINK' is neither a standard trait nor CUSTOM_"),
    ({'resources:PGPU': 1, 'trait:CUSTOM_low': 'required'},
     "trait 'CUSTOM_low' is neither"),
    ({'resources': {'PGPU': 1}, 'traits': {'CUSTOM_NOVA_ACCEL': 'forbidden'}},
     'group 0: forbids trait CUSTOM_NOVA_ACCEL, which every device '
     'has; leave it out'),
    ({'resources:PGPU': 1, 'trait:OWNER_NOVA': 'forbidden'},
     'forbids trait OWNER_NOVA'),
    ({'resources': {'PG\nPU': 1}}, "'PG\\nPU' is neither"),
    ({'resources': {'PGPU': 1}, 'traits': {'A\nB': 'required'}},
     "'A\\nB' is neither"),
    ({'resources': {'X' * 5000: 1}}, 'XX… is neither'),
    ({'resources': {'CUSTOM_' + 'X' * 174: 1}},
     '180 characters are the most'),
])
def test_invalid_group_is_refused_in_one_line(group, says):
    message = _problem(group)
    assert says in message
    assert 'group 0: ' in message
    assert len(message) < 400


def test_class_with_newline_and_large_amount_is_refused_in_one_line():
    _problem({'resources:A\nB': '9999'})


def test_bitstream_with_newline_is_refused_in_one_line():
    _problem({'resources:FPGA': 1, 'accel:bitstream_id\n': 'x\ny'})


def test_class_given_twice_with_spaces_is_refused():
    _problem({'resources:FPGA': 1, 'resources: FPGA': 2})


@pytest.mark.parametrize('group, cyborgs', [
    ({'resources:FPGA': 1}, True), ({'trait:X': 'required'}, True),
    ({'resources': {'FPGA': 1}}, False), ({}, False), ({1: 2}, False)])
def test_cyborgs_groups_are_recognised_by_colons(group, cyborgs):
    assert device_profile.is_cyborgs(group) is cyborgs

# SPDX-License-Identifier: Apache-2.0
"""Parsing of profile files, in our format and in Cyborg's."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest
import yaml

from nova_accel.core import errors
from nova_accel.core.request import device_profile
from nova_accel.profiles import document
from tests.unit import build

_SAMPLES = build.DATA / 'profiles'
_OURS = 'name: p\ngroups: [{resources: {PGPU: 1}}]\n'


def _fpga(amount=1, name='FPGA', bitstream='', **traits):
    return device_profile.Group({name: amount}, traits, bitstream=bitstream)


_AF = _fpga(1, 'CUSTOM_ACCELERATOR_FPGA', CUSTOM_FPGA_1='required',
            CUSTOM_FUNCTION_ID_3AFB='required')
_INSPUR = _fpga(CUSTOM_FPGA_INSPUR='required',
                bitstream='d5ca2f11-3108-4426-a11c-a959987565df')

#: The expected groups of Cyborg's examples, by profile.
_EXAMPLES = {
    'device_profiles-post-req.json': {'afexample_3': [_AF]},
    'device_profiles-post-req-with-bitstream.json': {'afexample_3': [
        dataclasses.replace(_AF, bitstream=(
            'a6a12670-7014-4cff-a563-cea949b57fb3'))]},
    'device_profiles-create-resp.json': {'afexample_3': [_AF]},
    'device_profiles-getone-resp.json': {'fpga-dp1': [_INSPUR]},
    'device_profiles-list-resp.json': {
        'bym-1': [_fpga(CUSTOM_FPGA_C260='required')],
        'fpga-dp1': [_INSPUR]},
    'dp_example_1.json': {'dp_example_1': [
        _fpga(CUSTOM_FPGA_INTEL_PAC_ARRIA10='required',
              CUSTOM_FUNCTION_ID_3AFB='required'),
        _fpga(2, 'CUSTOM_ACCELERATOR_FOO', CUSTOM_TRAIT_ALWAYS='required')]},
    'nvme-profile.json': {'nvme-profile': [
        _fpga(1, 'CUSTOM_PCI', CUSTOM_PCI_PRODUCT_ID_0010='required')]},
    'pci-sim.json': {'pci-sim': [
        _fpga(1, 'CUSTOM_PCI', CUSTOM_PCI_PRODUCT_ID_1001='required')]},
    'fake_xilinx_fpga_dp.json': {'fake_xilinx_fpga_dp': [
        _fpga(CUSTOM_FPGA_XILINX='required',
              CUSTOM_FPGA_PRODUCT_ID_5000='required')]},
    'fakedev-dp.json': {'fakedev-dp': [
        _fpga(CUSTOM_FAKE_DEVICE='required')]},
}


def _groups(text, source, name=''):
    found, problems = document.read(text, source, name)
    assert problems == []
    return {item.name: list(item.groups) for item in found}


def _problem(text, source='a.yaml'):
    """Return the only message about a file without valid profiles."""
    try:
        found, problems = document.read(text, source, 'n')
    except errors.ProfileError as error:
        found, problems = [], [error]
    assert found == []
    assert len(problems) == 1
    message = str(problems[0])
    assert source in message
    assert '\n' not in message
    assert len(message) < 600
    return message


def _parsed(loaded):
    """Return the only profile of a document."""
    [found], problems = document.read(json.dumps(loaded), 'a.json')
    assert problems == []
    return found


def _one(group, **fields):
    """Return a file of one profile with one group, as JSON (and so YAML)."""
    return json.dumps({'name': 'p', 'groups': [group], **fields})


def test_every_example_has_an_expectation():
    assert {path.name for path in _SAMPLES.glob('*.json')} == set(_EXAMPLES)


@pytest.mark.parametrize('file', _EXAMPLES)
def test_cyborgs_examples_are_accepted_as_they_are(file):
    path = _SAMPLES / file
    assert _groups(path.read_text(), file, path.stem) == _EXAMPLES[file]


def _unwrapped(file):
    """Return an example's profiles as {"name": ..., "groups": ...}."""
    path = _SAMPLES / file
    loaded = json.loads(path.read_text())
    if isinstance(loaded, dict):
        loaded = loaded.get('device_profile') or loaded.get(
            'device_profiles') or loaded
    listed = loaded if isinstance(loaded, list) else [loaded]
    return [item if 'groups' in item else
            {'name': path.stem, 'groups': listed} for item in listed]


_WRAPPINGS = {
    'plain': lambda item: item,
    'a list': lambda item: [item],
    'device_profile': lambda item: {'device_profile': item},
    'device_profiles': lambda item: {'device_profiles': [item]},
    'bare groups': lambda item: item['groups'],
}


@pytest.mark.parametrize('dump, suffix', [
    (json.dumps, '.json'), (json.dumps, '.yaml'), (yaml.safe_dump, '.yaml')])
@pytest.mark.parametrize('wrapping', _WRAPPINGS)
@pytest.mark.parametrize('file', _EXAMPLES)
def test_cyborgs_examples_are_accepted_in_every_wrapping(
        file, wrapping, dump, suffix):
    for item in _unwrapped(file):
        text = dump(_WRAPPINGS[wrapping](item))
        name = item['name']
        assert _groups(text, name + suffix, name) == {
            name: _EXAMPLES[file][name]}


@pytest.mark.parametrize('items, says', [
    ([{'groups': [], 'a:b': 1}], 'n.json: has no name'),
    ([{'foo': 1}], 'n.json: has no name'),
    ([{}], 'n.json: has no name'),
    ([{'resources': {'PGPU': 0}}], "profile 'n' in n.json, group 0"),
    ([{'resources:PGPU': 0}], "profile 'n' in n.json, group 0"),
])
def test_list_is_groups_only_if_all_items_look_like_groups(items, says):
    assert says in _problem(json.dumps(items), 'n.json')


def test_a_bitstream_and_a_function_in_our_format():
    text = (f'name: p\ngroups:\n- resources: {{FPGA: 1}}\n'
            f'  bitstream: {_INSPUR.bitstream}\n'
            f'- resources: {{FPGA: 1}}\n  function: "{"3" * 32}"\n')
    assert _groups(text, 'a.yaml')['p'] == [
        device_profile.Group({'FPGA': 1}, {}, bitstream=_INSPUR.bitstream),
        _fpga(**{f'CUSTOM_FPGA_FUNCTION_ID_{"3" * 32}': 'required'})]


def test_bitstream_must_be_a_string():
    assert 'bitstream: 7 is not of type string' in _problem(
        'name: p\ngroups: [{resources: {FPGA: 1}, bitstream: 7}]')


@pytest.mark.parametrize('text, names', [
    (_OURS, ['p']),
    (f'{_OURS}---\n{_OURS.replace("p", "q", 1)}', ['p', 'q']),
    (f'---\n{_OURS}...\n', ['p']),
    (f'# only a comment\n{_OURS}', ['p']),
    (f'[{json.dumps(yaml.safe_load(_OURS))}]', ['p']),
    ('[]', []),
    ('{"device_profiles": []}', []),
])
def test_a_yaml_file_holds_any_number_of_profiles(text, names):
    assert list(_groups(text, 'a.yaml')) == names


@pytest.mark.parametrize('text', ['', '# nothing\n---\n---\n', 'null'])
@pytest.mark.parametrize('source', ['a.yaml', 'a.json'])
def test_empty_file_is_an_error(text, source):
    # The file may be read while it is still being written.
    with pytest.raises(errors.ProfileError):
        document.read(text, source)


def test_all_keys_of_our_format_are_read():
    [found], problems = document.read('''
        name: a100-pair
        description: two near each other
        group_policy: isolate
        groups:
        - resources: {CUSTOM_GPU_A100: 1}
          traits: {CUSTOM_NVLINK: required, CUSTOM_OLD: forbidden}
          count: 2
          numa: required
        ''', 'a.yaml')
    assert problems == []
    group = device_profile.Group({'CUSTOM_GPU_A100': 1}, {
        'CUSTOM_NVLINK': 'required', 'CUSTOM_OLD': 'forbidden'}, 'required')
    assert found == device_profile.Profile('a100-pair', (group, group),
                                           'two near each other', 'isolate')


def test_other_profiles_of_a_file_with_an_invalid_one_are_used():
    found, problems = document.read(f'{_OURS}---\nname: q\n---\n3\n', 'a.yaml')
    assert [item.name for item in found] == ['p']
    assert [str(problem) for problem in problems] == [
        "profile 'q' in a.yaml: has no groups",
        'a.yaml: 3 is not of type object']


@pytest.mark.parametrize('text, says', [
    ('', 'Expecting value'),
    ('{', 'cannot be read ('),
    ('not json', 'cannot be read ('),
    ('{"a": 1, "a": 2}', 'a key appears twice'),
    ('\0\x01\x02', 'cannot be read ('),
    ('1' * 5000, 'cannot be read ('),
    ('[' * 100_000, 'is nested too deep'),
    ('{"a":' * 100_000, 'is nested too deep'),
    ('[' + '[],' * 100_000 + '[]]', 'has more than 100000 values'),
    ('[' + '[],' * 4096 + '[]]', 'has more than 4096 profiles'),
])
def test_invalid_json_gives_one_line(text, says):
    assert says in _problem(text, 'a.json')


@pytest.mark.parametrize('text, says', [
    ('{', 'cannot be read ('),
    ('a: b: c', 'cannot be read ('),
    ('a: [', 'cannot be read ('),
    ('\t- x', 'cannot be read ('),
    ('\0\x01\x02', 'cannot be read ('),
    ('name: a\nname: b', 'a key appears twice'),
    ('name: p\ngroups:\n- {resources: {PGPU: 1, PGPU: 2}}',
     'line 3: a key appears twice'),
    ('!!python/object/apply:os.system ["true"]', 'cannot be read ('),
    ('!!binary "a"', 'cannot be read ('),
    ('2020-13-45', 'cannot be read ('),
    ('1' * 5000, 'cannot be read ('),
    ('name: p\ndescription: !!bool maybe', 'line 2: a value does not match'),
    ("!!int ''", 'a value does not match its tag'),
    ("!!int '_'", 'a value does not match its tag'),
    ("!!float ''", 'a value does not match its tag'),
    ('!!timestamp soon', 'a value does not match its tag'),
    ('? [a]\n: b', 'cannot be read ('),
    ('a: &x 1\nb: *x', 'line 2: aliases (*name) are not accepted'),
    ('x: *y', 'aliases (*name) are not accepted'),
    ('[' * 100_000, 'is nested too deep'),
    ('- ' * 100_000, 'is nested too deep'),
    ('{a: ' * 100_000, 'is nested too deep'),
    ('[' + 'a,' * 100_000 + ']', 'has more than 100000 values'),
    ('---\n1\n' * 4097, 'has more than 4096 profiles'),
])
def test_invalid_yaml_gives_one_line(text, says):
    assert says in _problem(text)


@pytest.mark.parametrize('number', ['1:30', '1:30.5', '!!int 1:30',
                                    '1' + ':1' * 250_000])
def test_base_60_number_is_a_string(number):
    problem = _problem(f'name: p\ngroups: [{{resources: {{X: {number}}}}}]')
    assert "group 0, resources, X: '1:" in problem
    assert problem.endswith('is not of type integer')


def test_billion_laughs_document_is_refused():
    lines = ['a0: &a0 [lol]']
    for number in range(1, 40):
        lines.append(f'a{number}: &a{number} ['
                     + ', '.join([f'*a{number - 1}'] * 10) + ']')
    # Before any alias is expanded, which would not end.
    assert 'aliases' in _problem('\n'.join(lines))


def test_long_tag_gives_a_short_message():
    _problem('!' + 'a' * 100_000 + ' x')


@pytest.mark.parametrize('text, says', [
    ('3', 'a.yaml: 3 is not of type object'),
    ('"text"', "'text' is not of type object"),
    ('[1]', '1 is not of type object'),
    ('device_profile: null', 'None is not of type object'),
    ('device_profiles: {a: 1}', 'has no name'),
    ('{}', 'a.yaml: has no name'),
    ('name: p', "profile 'p' in a.yaml: has no groups"),
    ('name: p\ngroups: {}', 'groups: {} is not of type array'),
    ('name: p\ngroups: []', 'has 0 groups, but must have 1 to 256'),
    ('name: p\ngroups: [3]', 'group 0: 3 is not of type object'),
    ('name: p\ngroup: []\ngroups: [{resources: {A: 1}}]',
     "has the unknown key 'group'; known keys: name, description,"),
    ('{name: p, groups: [{resources: {A: 1}, resource: 1}]}',
     "group 0: has the unknown key 'resource'; known keys: name, "
     'resources, traits, count, numa'),
    ('{name: p, groups: [{traits: {}}]}', 'group 0: has no resources'),
    ('{name: p, groups: [{"resources1:A": 1}]}',
     "group 0: has the unknown key 'resources1:A'; known keys: "
     'resources:NAME, trait:NAME, accel:NAME'),
    ('{name: p, groups: [{"resources:FPGA": 1, group_policy: none}]}',
     "group 0: has the unknown key 'group_policy'"),
    ('{name: p, groups: [{"resources:FPGA": 1, "member_of": x}]}',
     "'member_of'"),
    ('{name: p, group_policy: some, groups: [{resources: {PGPU: 1}}]}',
     "group_policy: 'some' is not one of none, isolate"),
    ('{name: 0123, groups: [{resources: {PGPU: 1}}]}',
     'profile 83 in a.yaml, name: 83 is not of type string; write it in '
     'quotes'),
    ('{name: p, groups: [{name: 1st, resources: {PGPU: 1}}]}',
     "group 0, name: '1st' is not a valid group name: use a letter, then "
     'up to 63 letters, digits, hyphens and underscores'),
    ('{name: p, groups: [{name: 7, resources: {PGPU: 1}}]}',
     'group 0, name: 7 is not of type string; write it in quotes'),
    (f'{{name: p, groups: [{{name: {"x" * 65}, resources: {{PGPU: 1}}}}]}}',
     "x' is not a valid group name"),
    ('{name: p, description: [], groups: [{resources: {PGPU: 1}}]}',
     'description: [] is not of type string'),
])
def test_wrong_schema_gives_one_line(text, says):
    assert says in _problem(text)


@pytest.mark.parametrize('name', [
    '', 'a/b', '../etc/passwd', 'a b', 'a\nb', 'a\n', 'é', 'x' * 256,
    'x' * 300, 3, None, True, ['p'], {'a': 1}, 1.5])
@pytest.mark.parametrize('group', [
    {'resources': {'PGPU': 1}}, {'resources:PGPU': 1}])
def test_invalid_name_gives_one_line(name, group):
    assert "profile " in _problem(_one(group, name=name), 'a.json')


@pytest.mark.parametrize('name', ['x' * 255, 'a-B_9', '0', '-'])
def test_valid_name_is_accepted(name):
    assert list(_groups(_one({'resources': {'PGPU': 1}}, name=name), 'a.json')
                ) == [name]


_AMOUNTS = [0, -1, 1025, 10 ** 9, 1e9, True, None, [], {}, 0.5, 'x', '',
            float('inf'), float('nan')]


@pytest.mark.parametrize('amount', [*_AMOUNTS, '1'])
def test_invalid_amount_gives_one_line(amount):
    message = _problem(_one({'resources': {'PGPU': amount}}), 'a.json')
    assert "profile 'p' in a.json, group 0, resources, PGPU: " in message


@pytest.mark.parametrize('amount', [*_AMOUNTS, '0', '-1', '1.0', '1025',
                                    '9' * 5000, '0' * 5000 + '1', '1_0',
                                    '0x1', '1 1'])
def test_invalid_amount_of_cyborg_gives_one_line(amount):
    message = _problem(_one({'resources:PGPU': amount}), 'a.json')
    assert "profile 'p' in a.json, group 0" in message
    assert 'PGPU: ' in message


_LONG = '0x' + 'f' * 5000


@pytest.mark.parametrize('text', [
    f'{{name: q, groups: [{{resources: {{PGPU: {_LONG}}}}}]}}',
    f'{{name: q, groups: [{{"resources:PGPU": {_LONG}}}]}}',
    f'{{name: q, groups: [{{resources: {{PGPU: 1}}, count: {_LONG}}}]}}',
    f'{{name: q, groups: [{{resources: {{PGPU: 1}}}}], affinity: '
    f'[{{same: device, groups: [{_LONG}]}}]}}',
    f'{{name: q, groups: !!set {{{_LONG}}}}}',
    f'{{name: q, uuid: {_LONG}}}',
    f'{{name: {_LONG}, groups: []}}',
    _LONG,
])
def test_number_with_too_many_digits_affects_its_own_profile_only(text):
    found, [problem] = document.read(f'{_OURS}---\n{text}\n', 'a.yaml')
    assert [item.name for item in found] == ['p']
    assert str(problem).endswith('a.yaml: has a number with too many digits')
    assert len(str(problem)) < 120
    assert ("profile 'q'" in str(problem)) == ('name: q' in text)


@pytest.mark.parametrize('count', [
    0, -1, 257, 10 ** 9, 1e9, True, '2', None, [], 1.5])
def test_invalid_count_gives_one_line(count):
    message = _problem(_one({'resources': {'PGPU': 1}, 'count': count}),
                       'a.json')
    assert 'group 0, count: ' in message


@pytest.mark.parametrize('group', [
    {'resources': {'PGPU': 1.0}},
    {'resources': {'PGPU': 1}, 'count': 2.0}])
def test_integral_float_is_an_integer_or_a_problem(group):
    found, problems = document.read(_one(group), 'a.json')
    assert len(found) + len(problems) == 1
    for amount in (amount for item in found for group in item.groups
                   for amount in group.resources.values()):
        assert type(amount) is int


@pytest.mark.parametrize('value', [
    'Required', 'preferred', '', None, True, 1, [], {}])
@pytest.mark.parametrize('group', [
    {'resources': {'PGPU': 1}, 'traits': {'CUSTOM_X': None}},
    {'resources:PGPU': 1, 'trait:CUSTOM_X': None}])
def test_invalid_trait_value_gives_one_line(group, value):
    group = {key: value if old is None else
             dict.fromkeys(old, value) if key == 'traits' else old
             for key, old in group.items()}
    message = _problem(_one(group), 'a.json')
    assert 'is not one of required, forbidden' in message
    assert 'CUSTOM_X' in message


@pytest.mark.parametrize('numa', ['yes', True, 0, None, []])
def test_invalid_numa_value_gives_one_line(numa):
    assert 'is not one of required, preferred, off' in _problem(_one(
        {'resources': {'PGPU': 1}, 'numa': numa}), 'a.json')


@pytest.mark.parametrize('off', ['off', '"off"', 'Off', 'false'])
def test_unquoted_off_is_off(off):
    # YAML 1.1 reads an unquoted off as false.
    [group] = _groups('name: p\ngroups:\n- resources: {PGPU: 1}\n'
                      f'  numa: {off}\n', 'a.yaml')['p']
    assert group.numa == device_profile.OFF


@pytest.mark.parametrize('text, says', [
    ('{name: p, groups: [{resources: {PGPU: 1}, traits: {CUSTOM_X: off}}]}',
     'False is not one of required, forbidden'),
    ('{name: p, group_policy: off, groups: [{resources: {PGPU: 1}}]}',
     'False is not one of none, isolate'),
    ('{name: p, affinity: [{same: device, policy: off}], '
     'groups: [{resources: {PGPU: 1}, count: 2}]}',
     'False is not one of required, preferred'),
])
def test_unquoted_off_is_valid_for_numa_only(text, says):
    assert _problem(text).endswith(says)


@pytest.mark.parametrize('group, says', [
    ({'resources:GPU': '1'}, 'PGPU, VGPU and FPGA are standard'),
    ({'resources:VCPU': '1'}, 'a class that Nova itself counts'),
    ({'resources:CUSTOM_lower-case': '1'}, "'CUSTOM_lower-case'"),
    ({'resources:PGPU': 1, 'trait:NO_SUCH': 'required'}, "trait 'NO_SUCH'"),
    ({'resources': {'PGPU': 1}, 'traits': {'NO_SUCH': 'required'}},
     "trait 'NO_SUCH'"),
    ({'trait:CUSTOM_X': 'required'}, 'asks for no resource'),
    ({'resources': {}}, 'asks for no resource'),
    ({'resources:PGPU': 1, 'accel:x': ['list']}, "accel:x: ['list'] is not"),
])
def test_invalid_request_names_profile_and_group(group, says):
    message = _problem(_one(group), 'a.json')
    assert "profile 'p' in a.json, group 0" in message
    assert says in message


def test_empty_group_has_the_format_of_the_others():
    text = _one({'resources:PGPU': 1})[:-2] + ', {}]}'
    assert 'group 1: asks for no resource' in _problem(text, 'a.json')


@pytest.mark.parametrize('text', [
    '{1: 2}', '{1: 2, null: 3, x: 4}', '{2001-01-01: 1}', '!!set {a, b}',
    '!!omap [a: 1]', '{name: p, groups: [{1: 2}]}',
    '{name: p, groups: [{"resources:FPGA": 1, 2: 3}]}',
    '{name: p, 1: 2, groups: [{resources: {PGPU: 1}}]}',
    '{name: 2001-01-01, groups: [{resources: {PGPU: 1}}]}',
    '{name: p, groups: [{resources: {PGPU: 2001-01-01}}]}',
])
def test_yaml_only_types_give_one_line(text):
    _problem(text)


@pytest.mark.parametrize('text', [
    '{name: p, groups: [{resources: {1: 1}}]}',
    '{name: p, groups: [{resources: {PGPU: 1}, traits: {null: required}}]}',
])
def test_key_that_is_not_a_string_gives_one_line(text):
    _problem(text)


@pytest.mark.parametrize('group', [
    {'resources:A\nB': 0}, {'resources': {'A\nB': 0}},
    {'resources:PGPU': 1, 'trait:A\nB': 'maybe'}])
def test_key_with_newline_gives_one_line(group):
    _problem(_one(group), 'a.json')


_ALL_GROUPS = {'group_policy': 'none', 'gpu_cliques': True,
               'same_domain': 'required', 'affinity': [
    {'same': 'pcie_switch', 'groups': [0, 1]},
    {'distinct': 'device', 'policy': 'preferred', 'weight': 5}]}


def test_rules_are_equal_in_both_formats():
    ours, cyborgs = (_parsed({'name': 'p', 'groups': [group] * 2,
                              **_ALL_GROUPS})
                     for group in ({'resources': {'PGPU': 1}},
                                   {'resources:PGPU': 1}))
    assert (len(cyborgs.rules), cyborgs.gpu_cliques, cyborgs.same_domain) == (
        2, True, 'required')
    assert cyborgs == ours


def test_group_policy_is_read_in_answers_of_cyborgs_api():
    sample = json.loads(
        (_SAMPLES / 'device_profiles-getone-resp.json').read_text())
    sample['device_profile'].update(group_policy='isolate')
    assert _parsed(sample).group_policy == 'isolate'


@pytest.mark.parametrize('any_of, says', [
    ([['CUSTOM_A']], 'any_of: has 1 alternative, but must have 2 to 8'),
    ([[f'CUSTOM_{number}'] for number in range(9)],
     'any_of: has 9 alternatives'),
    ([['CUSTOM_A'], {'resources': {'CUSTOM_L40S': 2}}],
     'is not of type array; an alternative is a list of required traits, '
     'such as [CUSTOM_A100]; for another resource class or amount, write '
     'another profile'),
    ([['CUSTOM_A'], {'CUSTOM_B': 'forbidden'}], 'is a list of required traits')
])
def test_alternatives_are_some_lists_of_traits(any_of, says):
    assert says in _problem(json.dumps({'name': 'p', 'groups': [{
        'resources': {'CUSTOM_GPU': 1}, 'any_of': any_of}]}), 'a.json')


@pytest.mark.parametrize('fields, says', [
    *(({'group_policy': policy}, 'group_policy: ')
      for policy in (5, [], 'some', None)),
    ({'affinity': 'near'}, 'affinity: '),
    ({'gpu_cliques': 'some'}, "gpu_cliques: 'some' is not of type boolean"),
    ({'same_domain': 'off'}, "same_domain: 'off'"),
    ({'affinity': [{'near': 'numa_node'}]}, "the unknown key 'near'"),
    ({'affinity': [{'same': 'numa_node', 'groups': [0, 7]}]},
     "there is no group '7'"),
    ({'group_policy': 'isolate', 'affinity': [{'same': 'device'}]},
     'by group_policy, which contradict each other'),
])
@pytest.mark.parametrize('group', [
    {'resources': {'PGPU': 1}}, {'resources:PGPU': 1}])
def test_rules_are_checked_in_both_formats(
        group, fields, says):
    message = _problem(json.dumps(
        {'name': 'p', 'groups': [group] * 2, **fields}), 'a.json')
    assert "profile 'p' in a.json" in message
    assert says in message


def test_nesting_near_the_recursion_limit_gives_one_line():
    for depth in range(900, 1000):
        _problem('{"name": "p", "groups": ' + '[' * depth + ']' * depth + '}',
                 'a.json')


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
    | st.text(max_size=8) | st.sampled_from(['p', 'required', '1']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(['name', 'groups', 'resources', 'traits', 'count',
                         'numa', 'resources:FPGA', 'trait:CUSTOM_X',
                         'accel:x', 'description', 'device_profile',
                         'device_profiles', 'PGPU', 'CUSTOM_X']),
        inner, max_size=4), max_leaves=20)


@given(_anything)
def test_any_document_gives_profiles_or_single_lines(loaded):
    text = json.dumps(loaded)
    if '.0' in text or loaded is None:
        return  # Each has a test of its own.
    found, problems = document.read(text, 'a.json', 'n')
    assert all('\n' not in str(problem) for problem in problems)
    for item in found:
        assert 1 <= len(item.groups) <= device_profile.MAX_GROUPS
        assert all(1 <= amount <= device_profile.MAX_AMOUNT
                   for group in item.groups
                   for amount in group.resources.values())


@given(st.text(), st.sampled_from(['a.yaml', 'a.json']))
def test_any_text_gives_profiles_or_single_lines(text, source):
    try:
        _found, problems = document.read(text, source, 'n')
    except errors.ProfileError as error:
        problems = [error]
    assert all('\n' not in str(problem) for problem in problems)

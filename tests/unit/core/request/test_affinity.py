# SPDX-License-Identifier: Apache-2.0
"""Rules as text, and in the extra specs of a flavor."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile


def _names(*numbers):
    return tuple(f'ACCEL{number}' for number in numbers)


def _rule(key='pcie_switch', same=True, numbers=(0, 1), weight=0, also=()):
    return affinity.Rule(key, same, _names(*numbers) + tuple(also), weight)


@st.composite
def _rules(draw):
    key = draw(st.sampled_from(affinity.KEYS))
    same = draw(st.booleans())
    others = st.sets(st.sampled_from(['guest', 'network']))
    return _rule(key, same, draw(st.sets(st.integers(0, 255), min_size=1)),
                 draw(st.integers(0, 100)),
                 draw(others) if same and key == 'numa_node' else ())


@pytest.mark.parametrize('rule, words', [
    (_rule(numbers=(3, 2, 0, 1, 8)),
     'same pcie_switch of ACCEL0-3, ACCEL8 (required)'),
    (_rule('device', False, weight=5),
     'distinct device of ACCEL0-1 (preferred, weight 5)'),
    (_rule('numa_node', numbers=(4,), also=['network', 'guest']),
     'same numa_node of ACCEL4, guest, network (required)'),
])
def test_text_of_a_rule(rule, words):
    assert str(rule) == words


@pytest.mark.parametrize('fields, reason', [
    (('socket', True, _names(0)), 'there is no such key'),
    (('device', True, ('GPU',)), "'GPU' is no group"),
    (('device', True, ('ACCEL01',)), "'ACCEL01' is no group"),
    (('device', True, _names(1, 1)), 'names a group twice'),
    (('numa_node', True, ('guest',)), 'names no group'),
    (('device', True, ('ACCEL0', 'guest')), 'guest is allowed in'),
    (('numa_node', False, ('ACCEL0', 'network')), 'network is allowed in'),
    (('device', True, _names(0), 101), 'weight 101 is not from 1 to 100'),
    (('device', True, _names(0), -1), 'weight -1 is not from 1 to 100'),
])
def test_invalid_rule_is_refused(fields, reason):
    with pytest.raises(errors.ProfileError, match=reason):
        affinity.Rule(*fields)


def test_similar_rules_share_an_extra_spec():
    pairs = [_rule(numbers=(index, index + 8)) for index in range(8)]
    assert affinity.dumps([*pairs, _rule('numa_node', numbers=range(16),
                                         weight=5, also=['guest'])]) == {
        'nova_accel:affinity0': 'required same pcie_switch '
                                '0,8;1,9;2,10;3,11;4,12;5,13;6,14;7,15',
        'nova_accel:affinity1': 'preferred:5 same numa_node 0-15,guest'}


@given(st.lists(_rules(), max_size=8))
def test_rules_survive_extra_specs(rules):
    specs = affinity.dumps(rules)
    assert all(len(value) <= 255 for value in specs.values())
    assert affinity.loads({**specs, 'hw:cpu_policy': 'shared'}) == tuple(rules)


def test_long_rule_takes_several_extra_specs():
    rule = _rule(numbers=range(0, 256, 2))
    specs = affinity.dumps([rule, rule])
    assert len(specs) > 2
    assert affinity.loads(dict(reversed(specs.items()))) == (rule, rule)


@pytest.mark.parametrize('value', [
    '', 'required', 'wanted same device 0', 'required near device 0',
    'required same socket 0', 'required same device', 'required same device x',
    'required same device 0,', 'required same device 0;;1',
    'required same device 3-0', 'required same device 0-999999999',
    'required same device 0,0', 'preferred same device 0',
    'preferred:0 same device 0', 'preferred:101 same device 0',
    'required same device guest', 'required same device 0,guest',
    'required same device 0 if free'])
def test_invalid_extra_spec_is_an_error_that_names_the_key(value):
    with pytest.raises(errors.ProfileError,
                       match='extra spec nova_accel:affinity0: .*cannot be '
                             'understood'):
        affinity.loads({'nova_accel:affinity0': value})


@given(st.text(max_size=60))
def test_any_text_gives_rules_or_an_error(text):
    try:
        affinity.loads({'nova_accel:affinity0': text})
    except errors.ProfileError:
        pass


@pytest.mark.parametrize('key', [
    'nova_accel:affinity', 'nova_accel:affinity_2', 'nova_accel:affinity00'])
def test_key_of_another_version_is_an_error(key):
    with pytest.raises(errors.ProfileError, match='not end with a number'):
        affinity.loads({key: 'required same device 0'})


def test_missing_extra_spec_of_a_series_is_an_error():
    with pytest.raises(errors.ProfileError,
                       match='nova_accel:affinity1: is missing'):
        affinity.loads({'nova_accel:affinity0': 'required same device 0,',
                        'nova_accel:affinity2': '1'})


def test_no_extra_specs_give_no_rules():
    assert affinity.loads({'resources_ACCEL0:PGPU': '1'}) == ()
    assert affinity.dumps([]) == {}


@pytest.mark.parametrize('numa, rules', [
    ([], []),
    (['off', 'off'], []),
    (['required', 'required'],
     ['same numa_node of ACCEL0-1, guest (required)']),
    (['preferred', 'off'],
     ['same numa_node of ACCEL0, guest (preferred, weight 1)']),
    (['required', 'preferred', 'off'],
     ['same numa_node of ACCEL0, guest (required)',
      'same numa_node of ACCEL0-1, guest (preferred, weight 1)']),
])
def test_rules_for_the_numa_key_of_groups(numa, rules):
    groups = {f'ACCEL{index}': device_profile.Group({'PGPU': 1}, {}, value)
              for index, value in enumerate(numa)}
    assert [str(rule) for rule in affinity.numa_rules(groups)] == rules


@pytest.mark.parametrize('key, weight, near', [
    ('numa_node', 1, 'ACCEL0, 2'), ('pcie_root', 100, 'ACCEL0, 2'),
    ('numa_node', 0, 'ACCEL0-2'), ('device', 1, 'ACCEL0-2')])
def test_default_numa_does_not_weaken_a_preferred_distinct_rule(key, weight,
                                                                near):
    groups = {f'ACCEL{index}': device_profile.Group({'PGPU': 1}, {})
              for index in range(3)}
    apart = affinity.Rule(key, False, ('ACCEL0', 'ACCEL1'), weight)
    [rule] = affinity.numa_rules(groups, [apart])
    assert str(rule).replace('ACCEL2', '2') == (
        f'same numa_node of {near}, guest (preferred, weight 1)')


def test_group_that_requires_its_node_stays_near_when_separated():
    groups = {'ACCEL0': device_profile.Group({'PGPU': 1}, {}),
              'ACCEL1': device_profile.Group({'PGPU': 1}, {}, 'required')}
    apart = affinity.Rule('numa_node', False, tuple(groups), 1)
    assert [str(rule) for rule in affinity.numa_rules(groups, [apart])] == [
        'same numa_node of ACCEL1, guest (required)']

# SPDX-License-Identifier: Apache-2.0
"""A profile's affinity section."""

from hypothesis import given
from hypothesis import strategies as st
import pytest
import yaml

from nova_accel.core import affinity
from nova_accel.core import flavor
from nova_accel.profiles import document

_GROUPS = [{'name': 'gpu', 'resources': {'PGPU': 1}, 'count': 4},
           {'name': 'nic', 'resources': {'CUSTOM_NIC': 1}, 'count': 4},
           {'resources': {'FPGA': 1}}]


def _read(*items, groups=_GROUPS):
    found, problems = document.read(yaml.safe_dump(
        {'name': 'p', 'groups': groups, 'affinity': list(items)}), 'a.yaml')
    return (found[0] if found else None), [str(error) for error in problems]


def _rules(*items):
    profile, problems = _read(*items)
    assert not problems
    return [str(rule) for rule in profile.rules]


@pytest.mark.parametrize('item, rules', [
    ({'same': 'numa_node'}, ['same numa_node of ACCEL0-8 (required)']),
    ({'same': 'pcie_switch', 'groups': ['gpu', 2]},
     ['same pcie_switch of ACCEL0-3, ACCEL8 (required)']),
    ({'distinct': 'device', 'groups': ['nic'], 'policy': 'preferred'},
     ['distinct device of ACCEL4-7 (preferred, weight 1)']),
    ({'distinct': 'device', 'groups': ['nic', 'nic'], 'policy': 'preferred',
      'weight': 7}, ['distinct device of ACCEL4-7 (preferred, weight 7)']),
    ({'same': 'pcie_root', 'groups': ['gpu', 'nic'], 'each': True},
     [f'same pcie_root of ACCEL{number}, ACCEL{number + 4} (required)'
      for number in range(4)]),
    ({'same': 'numa_node', 'groups': [2, 'network', 'guest']},
     ['same numa_node of ACCEL8, guest, network (required)']),
    ({'same': 'link_domain', 'groups': ['gpu'], 'policy': 'required'},
     ['same link_domain of ACCEL0-3 (required)']),
])
def test_a_rule_is_about_the_groups_that_it_names(item, rules):
    assert _rules(item) == rules


@pytest.mark.parametrize('item, says', [
    ({}, 'affinity 0: says neither or both of same and distinct'),
    ({'same': 'device', 'distinct': 'device'}, 'neither or both'),
    ({'same': 'rack'}, "'rack' is none of numa_node, pcie_root"),
    ({'same': 'device', 'groups': ['gpus']},
     "affinity 0: there is no group 'gpus'; groups have a name or a number: "
     '0, gpu, 1, nic, 2'),
    ({'same': 'device', 'groups': [3]}, "there is no group '3'"),
    ({'same': 'device', 'groups': []}, 'groups'),
    ({'same': 'device', 'groups': [2]}, 'is about one group only'),
    ({'same': 'device', 'groups': [2, 2]}, 'is about one group only'),
    ({'same': 'device', 'weight': 2}, 'has a weight, and is required anyhow'),
    ({'same': 'device', 'policy': 'preferred', 'weight': 101},
     '101 is not between 1 and 100'),
    ({'same': 'device', 'groups': ['gpu', 'guest']},
     'guest has nothing but a NUMA node'),
    ({'distinct': 'numa_node', 'groups': ['gpu', 'network']},
     'network has nothing but a NUMA node'),
    ({'same': 'device', 'groups': ['gpu', 2], 'each': True},
     'which have counts of 1 and 4'),
    ({'same': 'device', 'groups': ['gpu'], 'each': True},
     'name two groups or more, of the same count'),
    ({'same': 'device', 'colour': 'red'}, "does not know the key 'colour'"),
])
def test_what_makes_no_rule_says_why(item, says):
    profile, [problem] = _read(item)
    assert profile is None
    assert says in problem
    assert problem.startswith("profile 'p' in a.yaml")


@pytest.mark.parametrize('one, other', [
    ('device', 'device'), ('device', 'numa_node'), ('device', 'link_domain'),
    ('pcie_switch', 'pcie_root'), ('pcie_root', 'numa_node')])
def test_rules_that_cannot_both_be_are_refused(one, other):
    same, apart = {'same': one}, {'distinct': other, 'groups': ['gpu']}
    _profile, [problem] = _read(same, apart)
    assert 'which cannot both be' in problem
    assert not _read(same, {**apart, 'policy': 'preferred'})[1]


@pytest.mark.parametrize('one, other', [
    ('numa_node', 'device'), ('numa_node', 'pcie_switch'),
    ('link_domain', 'device'), ('pcie_root', 'pcie_switch')])
def test_rules_that_can_both_be_are_rules(one, other):
    assert len(_rules({'same': one}, {'distinct': other})) == 2


def test_two_groups_of_one_name_are_refused():
    groups = [{'name': 'a', 'resources': {name: 1}}
              for name in ('PGPU', 'VGPU')]
    assert "another group is called 'a' too" in _read(groups=groups)[1][0]


@pytest.mark.parametrize('name', ['guest', 'network'])
def test_a_group_is_not_called_what_means_something_else(name):
    groups = [{'name': name, 'resources': {'PGPU': 1}}]
    assert 'means something else' in _read(groups=groups)[1][0]


_ITEMS = st.fixed_dictionaries({}, optional={
    'same': st.sampled_from([*affinity.KEYS, 'rack']),
    'distinct': st.sampled_from(affinity.KEYS),
    'groups': st.lists(st.sampled_from(
        ['gpu', 'nic', 0, 1, 2, 3, 'guest', 'network', 'x']), max_size=4),
    'each': st.booleans(),
    'policy': st.sampled_from(['required', 'preferred', 'maybe']),
    'weight': st.integers(-1, 102),
})


@given(st.lists(_ITEMS, max_size=4))
def test_any_section_is_rules_that_a_flavor_keeps_or_says_why(items):
    profile, problems = _read(*items)
    assert (profile is None) == bool(problems)
    if profile:
        specs = flavor.expand(profile, {})
        assert flavor.rules(specs)[:len(profile.rules)] == profile.rules

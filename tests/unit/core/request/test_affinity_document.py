# SPDX-License-Identifier: Apache-2.0
"""A profile's affinity section."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.request import affinity
from nova_accel.core.request import affinity_document
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import arrange
from nova_accel.profiles import document

_GROUPS = [{'name': 'gpu', 'resources': {'PGPU': 1}, 'count': 4},
           {'name': 'nic', 'resources': {'CUSTOM_NIC': 1}, 'count': 4},
           {'resources': {'FPGA': 1}}]


def _read(*items, groups=_GROUPS, **more):
    # As JSON, since YAML would write repeated objects as aliases.
    found, problems = document.read(json.dumps(
        {'name': 'p', 'groups': groups, 'affinity': list(items), **more}),
        'a.yaml')
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
def test_item_becomes_rules_of_the_groups_that_it_names(item, rules):
    assert _rules(item) == rules


@pytest.mark.parametrize('item, says', [
    ({}, 'affinity 0: has neither or both of same and distinct'),
    ({'same': 'device', 'distinct': 'device'}, 'neither or both'),
    ({'same': 'rack'}, "'rack' is not one of numa_node, pcie_root"),
    ({'same': 'device', 'groups': ['gpus']},
     "affinity 0: there is no group 'gpus'; groups have a name or a number: "
     '0, gpu, 1, nic, 2'),
    ({'same': 'device', 'groups': [3]}, "there is no group '3'"),
    ({'same': 'device', 'groups': []}, 'has 0 groups, but must have 1 to 258'),
    ({'same': 'device', 'groups': ['gpu'] * 259}, 'has 259 groups, but must '),
    ({'same': 'device', 'groups': [2]}, 'is about one group only'),
    ({'same': 'device', 'groups': [2, 2]}, 'is about one group only'),
    ({'same': 'device', 'weight': 2}, 'has a weight, but is required'),
    ({'same': 'device', 'policy': 'preferred', 'weight': 101},
     '101 is not between 1 and 100'),
    ({'same': 'device', 'groups': ['gpu', 'guest']},
     'guest has only a NUMA node'),
    ({'distinct': 'numa_node', 'groups': ['gpu', 'network']},
     'network has only a NUMA node'),
    ({'same': 'device', 'groups': ['gpu', 2], 'each': True},
     'combines groups of one count, these have 1 and 4'),
    ({'same': 'device', 'groups': ['gpu'], 'each': True},
     'name two groups or more, of the same count'),
    ({'same': 'device', 'groups': ['gpu', 'gpu'], 'each': True},
     'affinity 0: names a group twice; name it once'),
    ({'same': 'numa_node', 'groups': ['guest', 'network']},
     'affinity 0: names no group; name at least one'),
    ({'same': 'device', 'colour': 'red'}, "has the unknown key 'colour'"),
])
def test_invalid_item_is_refused_with_a_reason(item, says):
    profile, [problem] = _read(item)
    assert profile is None
    assert says in problem
    assert problem.startswith("profile 'p' in a.yaml")


@pytest.mark.parametrize('one, other', [
    ('device', 'device'), ('device', 'numa_node'), ('device', 'link_domain'),
    ('pcie_switch', 'pcie_root'), ('pcie_root', 'numa_node')])
def test_contradicting_rules_are_refused(one, other):
    same, apart = {'same': one}, {'distinct': other, 'groups': ['gpu']}
    _profile, [problem] = _read(same, apart)
    assert 'which contradict each other' in problem
    assert not _read(same, {**apart, 'policy': 'preferred'})[1]


@pytest.mark.parametrize('one, other', [
    ('numa_node', 'device'), ('numa_node', 'pcie_switch'),
    ('link_domain', 'device'), ('pcie_root', 'pcie_switch')])
def test_compatible_rules_are_accepted(one, other):
    assert len(_rules({'same': one}, {'distinct': other})) == 2


_MANY = [{'name': name, 'resources': {'PGPU': 1}, 'count': 128}
         for name in ('gpu', 'nic')]
_PAIRS = {'same': 'pcie_switch', 'groups': ['gpu', 'nic'], 'each': True}


@pytest.mark.parametrize('items, says', [
    ([{'same': 'numa_node'}] * 256, ''),
    ([_PAIRS] * 2, ''),
    ([{'same': 'numa_node'}] * 4_000, "profile 'p' in a.yaml, affinity 256"),
    ([_PAIRS] * 3, "profile 'p' in a.yaml, affinity 2"),
])
def test_more_rules_than_the_limit_are_refused(items, says):
    profile, problems = _read(*items, groups=_MANY)
    assert (len(profile.rules) if profile else 0) == (0 if says else 256)
    assert problems == ([] if not says else [
        f'{says}: the profile comes to more than 256 rules; write fewer; one '
        'rule can name any number of groups'])


def test_chain_of_same_rules_can_contradict_a_distinct_rule():
    one, two, apart = (
        {relation: 'pcie_switch', 'groups': groups} for relation, groups in
        (('same', [0, 1]), ('same', [1, 2]), ('distinct', [0, 2])))
    groups = [{'resources': {name: 1}} for name in ('FPGA', 'PGPU', 'VGPU')]
    _profile, [problem] = _read(one, two, apart, groups=groups)
    assert problem == (
        "profile 'p' in a.yaml: wants the same pcie_switch of ACCEL0-2 "
        '(required) that follows from 2 rules and the distinct pcie_switch of '
        'ACCEL0, ACCEL2 (required), which contradict each other; leave one of '
        'them out, or write "policy: preferred"')
    for item in (one, two, apart):
        item['policy'] = 'preferred'
        assert not _read(one, two, apart, groups=groups)[1]
        del item['policy']


def test_rules_implied_by_other_keys_can_contradict_a_rule():
    groups = [{'resources': {'PGPU': 1}, 'count': 2, 'numa': 'required'}]
    _profile, [problem] = _read({'distinct': 'numa_node'}, groups=groups)
    assert ('wants the same numa_node of ACCEL0-1, guest (required) by numa '
            'and the distinct numa_node of ACCEL0-1') in problem
    together = {'same': 'device', 'groups': ['gpu']}
    _profile, [problem] = _read(together, group_policy='isolate')
    assert ('the same device of ACCEL0-3 (required) and the distinct device '
            'of ACCEL0-8 (required) by group_policy, which') in problem
    assert not _read(together, group_policy='none')[1]


# This host can keep all rules, unless they contradict each other. It has a
# node, a root and a switch for each of three groups, with linked devices and
# others.
_ROOMY = [arrange.AvailableUnits(
              '-'.join(map(str, path)), 'PGPU', frozenset(), 3,
              model.Place(node, f'r{node}-{root}',
                          f's{node}-{root}-{switch}',
                          '-'.join(map(str, path))), 3)
          for path in itertools.product(range(3), range(3), range(3),
                                        range(6))
          for node, root, switch, _device in [path]]
_JOINED = model.Links(islands=(frozenset(
    units.provider for units in _ROOMY if units.provider[-1] in '012'),))


def _can_be_kept(rules):
    group = device_profile.Group({'PGPU': 1}, {})
    return not arrange.arrange(
        dict.fromkeys(('ACCEL0', 'ACCEL1', 'ACCEL2'), group), _ROOMY, rules,
        arrange.HostContext(links=_JOINED)).objection


@given(st.lists(st.builds(
    affinity.Rule, st.sampled_from(affinity.KEYS), st.booleans(),
    st.sampled_from([('ACCEL0', 'ACCEL1'), ('ACCEL1', 'ACCEL2'),
                     ('ACCEL0', 'ACCEL2'), ('ACCEL0', 'ACCEL1', 'ACCEL2')]),
    st.sampled_from([0, 0, 0, 1])), max_size=4))
def test_only_rules_that_no_host_can_keep_are_refused(rules):
    try:
        affinity_document.check(rules[1:], dict.fromkeys(rules[:1], 'numa'),
                                'p')
        refused = False
    except errors.ProfileError:
        refused = True
    assert refused is not _can_be_kept(rules)


def test_two_groups_with_one_name_are_refused():
    groups = [{'name': 'a', 'resources': {name: 1}}
              for name in ('PGPU', 'VGPU')]
    assert "another group has the name 'a'" in _read(groups=groups)[1][0]


@pytest.mark.parametrize('name', ['guest', 'network', 'ACCEL1'])
def test_reserved_group_name_is_refused(name):
    groups = [{'name': name, 'resources': {'PGPU': 1}}]
    assert 'is reserved' in _read(groups=groups)[1][0]


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
def test_any_section_gives_rules_that_a_flavor_keeps_or_an_error(items):
    profile, problems = _read(*items)
    assert (profile is None) == bool(problems)
    if profile:
        specs = flavor_specs.expand(profile, {})
        assert flavor_specs.rules(specs)[:len(profile.rules)] == profile.rules

# SPDX-License-Identifier: Apache-2.0
"""Every request that a host can serve gets a good answer by its rules."""

import collections
import dataclasses
import itertools
import random

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.solver import arrange
from nova_accel.core.solver import explain
from nova_accel.core.solver import search
from nova_accel.core.solver import search_budget
from tests.unit import brute_force

_PLAIN = arrange.HostContext()


def _group(amount=1, name='CUSTOM_GPU', **traits):
    return device_profile.Group({name: amount}, {
        naming.MARKER_TRAIT: 'required', **traits})


def _groups(count, first=0, **how):
    return {f'ACCEL{index}': _group(**how)
            for index in range(first, first + count)}


def _rule(key, same, numbers, weight=0, also=()):
    names = tuple(f'ACCEL{number}' for number in numbers)
    return affinity.Rule(key, same, (*names, *also), weight)


def _units(device, node=0, root='r', switch=None, name='CUSTOM_GPU', free=1,
           total=1, traits=()):
    return arrange.AvailableUnits(
        f'{name}-{device}', name, frozenset(traits), free,
        model.Place(node, root, switch, device), total)


def _gpus(nodes, **how):
    """Return a GPU for every NUMA node given."""
    return [_units(f'd{index:03d}', node, f'r{node}', f's{index // 2}', **how)
            for index, node in enumerate(nodes)]


def _chosen(*args, **more):
    found = arrange.arrange(*args, **more)
    assert not found.objection
    return [provider.rpartition('-')[2] for provider in found.chosen.values()]


@given(st.permutations(range(6)))
def test_lowest_rank_of_equal_units_is_taken(ranks):
    """The rank matters less than packing."""
    available = [dataclasses.replace(units, rank=rank) for units, rank
                 in zip(_gpus([0, 1, 1, 1, 1, 0]), ranks, strict=True)]
    assert _chosen(_groups(1), available) == [min(
        (units for units in available if not units.place.numa_node),
        key=lambda units: units.rank).place.device]


@pytest.mark.parametrize(('nodes', 'taken'), [
    ([1, 1, 1, 1, 0, 0, 0], {1: 4, 0: 1}), ([1, 1, 1, 1, 0, 0], {1: 4, 0: 1}),
    ([2, 2, 2, 2, 1, 1, 0, 0, 0], {2: 4, 0: 1})])
def test_server_that_needs_two_nodes_fills_one(nodes, taken):
    """Then what others free on the next node is together."""
    chosen = _chosen(_groups(5), _gpus(nodes))
    assert collections.Counter(
        nodes[int(device[1:])] for device in chosen) == taken


@given(brute_force.hosts() | brute_force.hosts(tree=False),
       brute_force.requests(), st.booleans())
def test_answer_is_as_good_as_that_of_brute_force(available, request, pack):
    groups, rules, around = request
    best = brute_force.best(groups, available, rules, around)
    found = arrange.arrange(groups, available, rules, around, pack)
    assert bool(found.objection) == (best is None) == bool(found.kind)
    if best is None:
        assert not found.chosen
        return
    by_provider = {units.provider: units for units in available}
    chosen = [by_provider[found.chosen[name]] for name in groups]
    assert brute_force.is_right(groups, chosen, rules, around)
    assert found.cost[0] == best == brute_force.missed(
        groups, chosen, rules, around)


@given(brute_force.hosts(), brute_force.requests(),
       st.randoms(use_true_random=False))
def test_names_and_order_do_not_change_the_answer(available, request, chance):
    groups, rules, around = request
    other = [arrange.AvailableUnits(
        f'x{units.provider}', units.resource_class,
        units.traits | {naming.MARKER_TRAIT, 'CUSTOM_X'}, units.free,
        model.Place(
            units.place.numa_node, units.place.pcie_root and
            f'x{units.place.pcie_root}', units.place.pcie_switch and
            f'x{units.place.pcie_switch}', units.place.device), units.total)
        for units in available]
    chance.shuffle(other)
    here = arrange.arrange(groups, available, rules, around)
    there = arrange.arrange(groups, other, rules, around)
    assert there.cost == here.cost
    assert there.objection == here.objection


@given(brute_force.hosts(), brute_force.requests())
def test_rule_named_in_objection_cannot_be_kept_alone(available, request):
    groups, rules, around = request
    found = arrange.arrange(groups, available, rules, around)
    assert (found.rule is not None) == found.kind.startswith(
        ('same ', 'distinct '))
    if found.rule:
        assert found.rule in rules and not found.rule.weight
        assert brute_force.best(groups, available, [found.rule],
                                around) is None
        assert brute_force.best(groups, available, [], around) is not None
    elif found.kind in ('units', 'traits'):
        assert brute_force.best(groups, available, [], around) is None
    elif found.kind == 'together':
        assert all(
            brute_force.best(groups, available, [rule], around) is not None
            for rule in rules if not rule.weight)


# Objections.


@pytest.mark.parametrize('groups, available, rules, around, kind, words', [
    (_groups(8), _gpus([0] * 5), [], _PLAIN, 'units',
     'wants 8 units of CUSTOM_GPU, 5 are free'),
    (_groups(1, name='PGPU'), _gpus([0]), [], _PLAIN, 'units',
     'wants 1 unit of PGPU, 0 are free'),
    (_groups(2, amount=4), _gpus([0] * 8, free=2), [], _PLAIN, 'units',
     'wants 2 times 4 units of CUSTOM_GPU, each from one Region, 0 are free'),
    (_groups(1, amount=4), _gpus([0] * 2, free=2), [], _PLAIN, 'units',
     'wants 4 units of CUSTOM_GPU from one Region, 0 are free'),
    (_groups(2, CUSTOM_A100='required'),
     [*_gpus([0] * 3), _units('x', traits=['CUSTOM_A100'])], [], _PLAIN,
     'traits', 'wants 2 units of CUSTOM_GPU with CUSTOM_A100, 1 is free'),
    (_groups(4), _gpus([0, 0, 0, 1, 1, 1, 2, 2]),
     [_rule('numa_node', True, range(4))], _PLAIN, 'same numa_node',
     'same numa_node of ACCEL0-3 (required): at most 3 fit on one NUMA node'),
    (_groups(3), _gpus([0, 0, 1, 1, 1]),
     [_rule('numa_node', False, range(3))], _PLAIN, 'distinct numa_node',
     'distinct numa_node of ACCEL0-2 (required): free units are on only 2 '
     'NUMA nodes'),
    (_groups(2), _gpus([0, 1, 1]),
     [_rule('numa_node', True, range(2), also=['guest'])],
     arrange.HostContext(guest=frozenset({0})), 'same numa_node',
     'same numa_node of ACCEL0-1, guest (required): at most 1 fits on one '
     'NUMA node; the guest is on NUMA node 0'),
    (_groups(2), _gpus([1, 1]),
     [_rule('numa_node', True, [0], also=['network']),
      _rule('numa_node', True, [0, 1], weight=1, also=['guest'])],
     arrange.HostContext(network=frozenset({0, 2})), 'same numa_node',
     'same numa_node of ACCEL0, network (required): no unit is free there; '
     'the network is on NUMA node 0 and 2'),
    (_groups(2), _gpus([None, None]),
     [_rule('numa_node', True, range(2))], _PLAIN, 'same numa_node',
     'same numa_node of ACCEL0-1 (required): at most 1 fits on one NUMA '
     'node; the NUMA node of some devices of the host is unknown'),
    (_groups(2), _gpus([0, 0, 0]), [_rule('link_domain', True, range(2))],
     arrange.HostContext(links=model.Links(
         (frozenset({'d000', 'd004'}), frozenset({'d000', 'd001', 'd002'})))),
     'same link_domain',
     'same link_domain of ACCEL0-1 (required): no legal set of linked '
     'devices is free for 2 groups'),
    (_groups(2), _gpus([0, 0, 1]),
     [_rule('pcie_switch', True, range(2)), _rule('numa_node', False, (0, 1))],
     _PLAIN, 'together',
     'each of its rules can be kept alone, but not all together'),
    (_groups(1), _gpus([0]), [_rule('device', True, (0, 1))], _PLAIN, 'group',
     'same device of ACCEL0-1 (required): there is no group ACCEL1'),
    ({'ACCEL0': device_profile.Group({'FPGA': 1, 'PGPU': 1}, {})}, _gpus([0]),
     [],
     _PLAIN, 'classes',
     'ACCEL0 wants units of FPGA and PGPU at once; a Region has one '
     'resource class'),
    (_groups(513), _gpus([0], free=1000), [], _PLAIN, 'limit',
     'wants 513 groups or single units; at most 512 can be arranged; several '
     'units of one Region can be one group'),
])
def test_objection_names_the_reason(groups, available, rules, around, kind,
                                    words):
    found = arrange.arrange(groups, available, rules, around)
    assert (found.kind, found.objection) == (kind, words)
    assert found.rule == (rules[0] if ': ' in words else None)


def test_most_groups_are_arranged_from_a_deep_call_stack():
    def chosen(frames):
        return chosen(frames - 1) if frames else _chosen(
            _groups(512), _gpus([0, 1] * 64, free=4))
    assert len(set(chosen(200))) == 128


def test_request_without_groups_has_no_objection():
    found = arrange.arrange({}, _gpus([0]))
    assert (found.chosen, found.objection) == ({}, '')


# The best of several answers.


def test_closest_devices_are_taken():
    places = [(0, 'a', 's'), (0, 'a', 't'), (1, 'b', 'u'), (1, 'b', 'u')]
    available = [_units(f'd{index}', *place)
                 for index, place in enumerate(places)]
    assert _chosen(_groups(2), available) == ['d2', 'd3']
    assert _chosen(_groups(2), available[:3]) == ['d0', 'd1']


def test_smallest_node_or_island_is_broken_first():
    available = _gpus([0, 0, 0, 1, 1])
    assert _chosen(_groups(1), available) == ['d004']
    islands = arrange.HostContext(links=model.Links(islands=(
        frozenset({'d000', 'd001', 'd002', 'd003'}),
        frozenset({'d004', 'd005', 'd006'}))))
    assert _chosen(_groups(1), _gpus([0] * 8), around=islands) == ['d007']
    assert _chosen(_groups(3), _gpus([0] * 8), around=islands) == [
        'd004', 'd005', 'd006']


# Sets that overlap and nest, like the partitions of Fabric Manager.


def _nested(count, *more):
    """Return nested sets: all devices, halves, quarters, down to one."""
    sets, size = [], count
    while size:
        sets += [frozenset(f'd{index:03d}' for index in range(first, first
                                                              + size))
                 for first in range(0, count, size)]
        size //= 2
    return [*sets, *more]


def _joined(sets, islands=()):
    return arrange.HostContext(links=model.Links(tuple(sets),
                                                 tuple(islands)))


def _one_switch(free):
    """Return units that differ in their linked sets only."""
    return [_units(f'd{index:03d}') for index in free]


@pytest.mark.parametrize('free, count, taken', [
    # The rest of a broken pair, and of a broken quad.
    ([0, 1, 2, 3, 4, 5, 7], 1, {'d007'}),
    ([0, 2, 3, 4, 5, 6, 7], 1, {'d000'}),
    ([0, 1, 2, 3, 6, 7], 2, {'d006', 'd007'}),
    ([0, 1, 2, 3, 5, 7], 2, {'d005', 'd007'}),
    ([0, 1, 2, 3, 5, 6, 7], 1, {'d005'}),
    ([0, 1, 2, 3, 5, 6, 7], 3, {'d005', 'd006', 'd007'}),
    # One whole quad, not parts of two.
    (range(8), 4, {'d000', 'd001', 'd002', 'd003'}),
])
@pytest.mark.parametrize('seed', range(3))
def test_largest_linked_sets_stay_whole(free, count, taken, seed):
    sets = _nested(8)
    random.Random(seed).shuffle(sets)
    for around in _joined(sets), _joined((), sets):
        assert set(_chosen(_groups(count), _one_switch(free),
                           around=around)) == taken


@pytest.mark.parametrize('free, count, taken', [
    ([0, 1, 2, 3, 4, 5, 7], 2, {'d004', 'd005'}),
    ([0, 1, 2, 3, 4, 5, 7], 1, {'d007'}),
    ([*range(8), *range(12, 16)], 2, {'d012', 'd013'}),
    ([*range(8), *range(12, 16)], 4, {'d012', 'd013', 'd014', 'd015'}),
])
def test_legal_set_that_breaks_no_larger_one_is_taken(
        free, count, taken):
    rules = [_rule('link_domain', True, range(count))]
    for sets in _nested(16), _nested(16)[::-1]:
        assert set(_chosen(_groups(count), _one_switch(free), rules,
                           _joined(sets))) == taken


def test_linked_set_that_is_partly_held_is_not_kept_whole():
    available = [_units(f'd{index:03d}', free=free, total=2)
                 for index, free in enumerate((2, 2, 2, 1))]
    around = _joined(_nested(4))
    assert _chosen(_groups(1, amount=2), available, around=around) == ['d002']
    assert _chosen(_groups(1), available, around=around) == ['d003']


def test_closeness_comes_before_whole_sets():
    available = [_units(f'd{index:03d}', switch=switch)
                 for index, switch in enumerate(('a', 'a', 'b', 'c'))]
    around = _joined([frozenset({'d000', 'd001', 'd004'}),
                      frozenset({'d000', 'd001'})])
    assert _chosen(_groups(2), available, around=around) == ['d000', 'd001']
    assert _chosen(_groups(1), available, around=around) == ['d002']


def _whole(sets, free):
    """Return how many sets of each size are wholly free, largest first."""
    sizes = collections.Counter(len(one) for one in set(sets) if one <= free)
    return [sizes[size] for size in range(8, 1, -1)]


@st.composite
def _joined_hosts(draw):
    """A host with linked sets of devices, and a request."""
    names = [f'd{index:03d}' for index in range(8)]
    available = [arrange.AvailableUnits(
        name, 'CUSTOM_GPU', frozenset(), 1, model.Place(
            index // 4, f'r{index // 4}', switch, name), 1)
        for index, name in enumerate(names)
        for switch in [draw(st.sampled_from([None, f's{index // 2}']))]]
    available = [units for units in available if draw(st.integers(0, 3))]
    if draw(st.booleans()):
        available = [dataclasses.replace(units, place=dataclasses.replace(
            units.place, numa_node=0, pcie_root='r', pcie_switch=None))
            for units in available]
    sets = draw(st.sampled_from([[], _nested(8)])) + draw(st.lists(
        brute_force.subsets(names, min_size=1), max_size=6))
    split = draw(st.integers(0, len(sets)))
    groups = _groups(draw(st.integers(1, 5)))
    rules = [_rule(key, same, range(len(groups)), weight)
             for key, same, weight in draw(st.lists(st.tuples(
                 st.sampled_from(affinity.KEYS), st.booleans(),
                 st.sampled_from([0, 5])), max_size=1))]
    return groups, available, rules, _joined(
        draw(st.permutations(sets[:split])), sets[split:])


@given(_joined_hosts())
def test_equally_close_answers_leave_no_more_sets_whole(host):
    groups, available, rules, around = host
    sets = around.links.partitions + around.links.islands
    free = {units.place.device for units in available}

    def rank(chosen):
        places = [units.place for units in chosen]
        return (brute_force.missed(groups, chosen, rules, around),
                len({place.numa_node for place in places}),
                len({place.pcie_root for place in places}),
                len({place.pcie_switch or place.pcie_root
                     for place in places}),
                [-number for number in _whole(sets, free - {
                    place.device for place in places})])

    best = min((rank(chosen) for chosen
                in itertools.permutations(available, len(groups))
                if brute_force.is_right(groups, chosen, rules, around)),
               default=None)
    found = arrange.arrange(groups, available, rules, around)
    assert bool(found.objection) == (best is None)
    if best:
        by_provider = {units.provider: units for units in available}
        assert rank([by_provider[found.chosen[name]]
                     for name in groups]) == best


def test_device_in_use_is_filled_first_or_left_alone():
    available = [_units('d0', free=4, total=4), _units('d1', free=6, total=16),
                 _units('d2', free=16, total=16)]
    assert _chosen(_groups(1), available) == ['d1']
    assert _chosen(_groups(1), available, pack=False) == ['d2']
    assert set(_chosen(_groups(2), available)) == {'d1'}
    assert set(_chosen(_groups(2), available, pack=False)) == {'d0', 'd2'}


def test_partition_is_taken_whole_and_island_in_part():
    available = _gpus([0] * 3, free=2, total=2)
    every = frozenset(units.place.device for units in available)
    rules = [_rule('link_domain', True, range(3))]
    whole, part = (arrange.HostContext(links=links) for links in (
        model.Links(partitions=(every,)),
        model.Links(islands=(every,))))
    assert set(_chosen(_groups(3), available, rules, whole)) == every
    assert len(set(_chosen(_groups(3), available, rules, part))) == 2
    assert arrange.arrange(_groups(3), available[1:], rules,
                           whole).kind == 'same link_domain'


def test_preferred_rule_comes_before_closeness():
    available = _gpus([0, 0, 1, 1])
    rule = _rule('numa_node', False, range(2), weight=1)
    assert sorted(_chosen(_groups(2), available, [rule])) == ['d000', 'd002']
    guest = arrange.HostContext(guest=frozenset({1}))
    near = _rule('numa_node', True, range(2), 1, ['guest'])
    assert _chosen(_groups(2), available, [near], guest) == ['d002', 'd003']


def test_preferred_rule_with_larger_weight_wins():
    available = _gpus([0, 0, 1, 1])
    apart, together = (_rule('numa_node', same, range(2), weight)
                       for same, weight in ((False, 3), (True, 2)))
    found = arrange.arrange(_groups(2), available, [together, apart])
    assert found.cost[:2] == (2, 2)


# The number of steps.


def _counted(groups, available, rules=(), around=_PLAIN):
    """Return the answer and the number of steps."""
    search.cached.memory.clear()
    explain._explain.memory.clear()
    budget = search_budget.Budget(search_budget.REQUEST_STEPS)
    found = arrange.arrange(groups, available, rules, around, budget=budget)
    return found, search_budget.REQUEST_STEPS - budget._left


def _pairs(count):
    groups = {**_groups(count), **_groups(count, count, name='CUSTOM_NIC')}
    return groups, [_rule('pcie_switch', True, (index, index + count))
                    for index in range(count)]


def _switches(gpus, nics):
    available = []
    for switch, (count, others) in enumerate(zip(gpus, nics, strict=True)):
        place = switch % 2, f'r{switch % 2}', f's{switch}'
        available += [_units(f'g{switch}.{index}', *place)
                      for index in range(count)]
        available += [_units(f'n{switch}.{index}', *place, name='CUSTOM_NIC')
                      for index in range(others)]
    return available


@pytest.mark.parametrize('gpus, nics, kind', [
    ([1] * 8, [1] * 8, ''),
    ([2] * 4, [2] * 4, ''),
    ([3, 1] * 3 + [2], [1, 3] * 3 + [2], ''),
    ([3, 1] * 3 + [1], [1, 3] * 3 + [2], 'together'),
    ([1] * 16, [1] * 6 + [0] * 9 + [9], 'together'),
])
def test_eight_pairs_under_switches_take_few_steps(gpus, nics, kind):
    groups, rules = _pairs(8)
    found, steps = _counted(groups, _switches(gpus, nics), rules)
    assert found.kind == kind
    assert steps < 2_000, steps


@pytest.mark.parametrize('others, kind', [
    ((14, 15), ''), ((2, 14, 15), 'together')])
def test_same_rules_that_share_a_group_hold_together(others, kind):
    available = [_units(f'd{index:02d}', index // 8, f'r{index // 4}')
                 for index in range(16)]
    rules = [_rule('device', False, (0, 5, 8, 10)),
             _rule('pcie_root', True, (6, 10, 14)),
             _rule('pcie_root', True, others)]
    found = arrange.arrange(_groups(16), available, rules)
    assert found.kind == kind


@pytest.mark.parametrize('count, kind', [(16, ''), (17, 'same numa_node')])
def test_large_host_takes_few_steps(count, kind):
    available = _gpus([index // 16 for index in range(1024)])
    rules = [_rule('numa_node', True, range(count))]
    found, steps = _counted(_groups(count), available, rules)
    assert found.kind == kind
    assert steps < 2_000, steps


@pytest.mark.parametrize('count', [1, 3, 6, 8])
@pytest.mark.parametrize('missing', range(16))
def test_nested_linked_sets_take_few_steps(count, missing):
    available = [_units(f'd{index:03d}', index % 2, f'r{index % 4}',
                        f's{index % 8}') for index in range(16)
                 if index not in (missing, 5, 12)]
    found, steps = _counted(_groups(count), available,
                            around=_joined(_nested(16)))
    assert found.chosen
    assert steps < 1_000, steps


@pytest.mark.parametrize('joined', ['pairs', 'across'])
def test_links_that_no_rule_names_do_not_hide_an_answer(joined):
    """Eight nodes with two roots each, of two GPUs and a NIC; all free."""
    nodes = range(8)
    roots = [(node, f'r{node}.{root}') for node in nodes for root in (0, 1)]
    gpus = [[f'{root}.{index}' for _node, root in roots] for index in (0, 1)]
    available = [_units(f'{root}.{index}', node, root, name=name)
                 for node, root in roots for index, name in enumerate(
                     ['CUSTOM_GPU', 'CUSTOM_GPU', 'CUSTOM_NIC'])]
    links = {'pairs': zip(*gpus, strict=True),
             'across': zip(gpus[0], gpus[1][1:], strict=False)}[joined]
    groups = {**_groups(9), **_groups(2, 9, name='CUSTOM_NIC')}
    rules = [_rule('pcie_root', False, range(11)),
             _rule('numa_node', False, range(1, 9))]
    found, steps = _counted(groups, available, rules, _joined(
        (), tuple(map(frozenset, links))))
    assert found.chosen
    assert steps < search_budget.MAX_STEPS // 10, steps


def test_hosts_that_look_alike_cost_one_search():
    search.cached.memory.clear()
    for host in range(50):
        available = [arrange.AvailableUnits(
            f'{host}/{units.provider}', units.resource_class,
            units.traits, units.free, units.place, units.total)
            for units in _gpus([0, 0, 1, 1])]
        found = arrange.arrange(_groups(2), available)
        assert set(found.chosen.values()) == {
            f'{host}/CUSTOM_GPU-d000', f'{host}/CUSTOM_GPU-d001'}
    assert len(search.cached.memory) == 1


@pytest.mark.parametrize('seed', range(8))
def test_any_request_ends_within_the_step_limit(seed):
    chance = random.Random(seed)
    available = _gpus([chance.choice([None, 0, 1]) for _index in range(20)])
    rules = [_rule(chance.choice(affinity.KEYS), chance.random() < 0.5,
                   chance.sample(range(20), chance.randint(2, 4)),
                   chance.choice([0, 0, 5])) for _index in range(10)]
    _found, steps = _counted(_groups(20), available, rules)
    assert steps <= 2 * search_budget.MAX_STEPS

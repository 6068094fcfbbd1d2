# SPDX-License-Identifier: Apache-2.0
"""Random hosts and requests, and their brute-force solution.

It shares no code with the product, only the types of its arguments.
"""

import itertools

from hypothesis import strategies as st

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.solver import arrange


def _same_value(key, one, other, around):
    """Return whether two places have the same value; None if unknown."""
    if one.device == other.device:
        return True
    if key == 'device':
        return False
    if key == 'link_domain':
        return other.device in _reach(one.device, around)
    if key == 'pcie_switch':
        return one.pcie_switch is not None and (
            one.pcie_switch == other.pcie_switch)
    values = [(place.numa_node if place.numa_node is not None else
               around.only_node) if key == 'numa_node' else
              place.pcie_root or None for place in (one, other)]
    return None if None in values else values[0] == values[1]


def _reach(device, around):
    reached = {device}
    for _round in range(8):
        for one in around.links.partitions + around.links.islands:
            if one & reached:
                reached |= one
    return reached


def _is_legal(places, around):
    devices = {place.device for place in places}
    return (len(devices) == 1 or devices in around.links.partitions
            or any(devices <= one for one in around.links.islands))


def _off(rule, place, around):
    node = around.only_node if place.numa_node is None else place.numa_node
    return sum(name in rule.groups and nodes is not None and node not in nodes
               for name, nodes in (('guest', around.guest),
                                   ('network', around.network)))


def _keeps(rule, places, around):
    if any(_off(rule, place, around) for place in places):
        return False
    if rule.same and rule.key == 'link_domain':
        return _is_legal(places, around)
    return all(_same_value(rule.key, one, other, around) is rule.same
               for one, other in itertools.combinations(places, 2))


def _penalty(rule, places, around):
    """Count distinct values greedily: being the same is transitive here."""
    values = []
    for place in places:
        if not any(_same_value(rule.key, place, other, around) is not False
                   and (_same_value(rule.key, place, other, around)
                        or not rule.same and _unknown(rule, place, around)
                        and _unknown(rule, other, around))
                   for other in values):
            values.append(place)
    off = sum(_off(rule, place, around) for place in places)
    if not rule.same:
        return rule.weight * (len(places) - len(values) + off)
    if rule.key == 'link_domain':
        return rule.weight * (0 if _is_legal(places, around) else
                              max(1, len(values) - 1))
    return rule.weight * (len(values) - 1 + off)


def _unknown(rule, place, around):
    return rule.key in ('numa_node', 'pcie_root') and _same_value(
        rule.key, place, model.Place(0, 'r', 's', ''), around) is None


def _fits(group, units):
    return group.resources.get(units.resource_class, 0) and all(
        (trait in units.traits) == (strength == 'required')
        for trait, strength in group.traits.items()
        if trait != naming.MARKER_TRAIT)


def _is_enough(groups, chosen):
    left = {units.provider: units.free for units in chosen}
    for group, units in zip(groups, chosen, strict=True):
        left[units.provider] -= sum(group.resources.values())
    return min(left.values()) >= 0


def _places(rule, names, chosen):
    by_name = dict(zip(names, chosen, strict=True))
    return [by_name[name].place for name in rule.members]


def is_right(groups, chosen, rules, around):
    return (_is_enough(groups.values(), chosen)
            and all(map(_fits, groups.values(), chosen))
            and all(rule.weight or _keeps(
                rule, _places(rule, groups, chosen), around)
                for rule in rules))


def missed(groups, chosen, rules, around):
    """Return the penalty of all preferred rules."""
    return sum(_penalty(rule, _places(rule, groups, chosen), around)
               for rule in rules if rule.weight)


def best(groups, available, rules, around):
    """Return the least penalty of all valid assignments, or None."""
    possible = [[units for units in available if _fits(group, units)]
                for group in groups.values()]
    return min((missed(groups, chosen, rules, around)
                for chosen in itertools.product(*possible)
                if is_right(groups, chosen, rules, around)), default=None)


def with_alternatives(groups):
    """Return the groups of each combination of alternatives, best first."""
    choices = {str(group): group.any_of for group in groups.values()
               if group.any_of}
    for chosen in itertools.product(*choices.values()):
        one = dict(zip(choices, chosen, strict=True))
        yield {name: _group(
            *group.resources.values(), *group.resources, **{
                **group.traits, **dict.fromkeys(
                    one.get(str(group), ()), 'required')})
            for name, group in groups.items()}


DEVICES = [f'd{index}' for index in range(6)]


@st.composite
def hosts(draw, tree=True, traits=('CUSTOM_T',)):
    places = {}
    for device in draw(st.lists(st.sampled_from(DEVICES), min_size=1,
                                max_size=6, unique=True)):
        # In a tree, a root is on one node and a switch below one root.
        switch = draw(st.sampled_from([None, 0, 1, 2, 3]))
        root = draw(st.sampled_from([None, 0, 1, 2]))
        node = draw(st.sampled_from([None, 0, 1]))
        if tree and switch is not None:
            root = switch // 2
        if tree and root is not None:
            node = root // 2
        places[device] = model.Place(
            node, None if root is None else f'r{root}',
            None if switch is None else f's{switch}', device)
    available = []
    for _device, place in sorted(places.items()):
        for name in draw(st.sampled_from(['G', 'G', 'GN', 'N', 'GG'])):
            available.append(arrange.AvailableUnits(
                f'p{len(available)}', f'CUSTOM_{name}',
                draw(st.sampled_from([frozenset(), *(
                    frozenset({trait}) for trait in traits)])),
                draw(st.integers(0, 3)), place, draw(st.sampled_from([0, 3]))))
    return available


def subsets(of, **how):
    return st.sets(st.sampled_from(of), **how).map(frozenset)


def links():
    sets = st.lists(subsets(DEVICES, min_size=1), max_size=3).map(tuple)
    return st.builds(model.Links, sets, sets)


def _group(amount, name, **traits):
    return device_profile.Group({name: amount}, {
        naming.MARKER_TRAIT: 'required', **traits})


@st.composite
def requests(draw):
    groups = {f'ACCEL{index}': _group(
        draw(st.sampled_from([1, 1, 1, 2])),
        draw(st.sampled_from(['CUSTOM_G', 'CUSTOM_G', 'CUSTOM_N'])),
        **draw(st.sampled_from([{}, {}, {'CUSTOM_T': 'required'},
                                {'CUSTOM_T': 'forbidden'}])))
        for index in range(draw(st.integers(1, 4)))}
    rules = []
    for _index in range(draw(st.integers(0, 3))):
        key, same = draw(st.sampled_from(affinity.KEYS)), draw(st.booleans())
        others = draw(subsets(['guest', 'network'])) if (
            same and key == 'numa_node') else ()
        rules.append(affinity.Rule(
            key, same, (*draw(subsets(list(groups), min_size=1)), *others),
            draw(st.sampled_from([0, 0, 1, 5]))))
    nodes = st.sampled_from([None, None, frozenset({0}), frozenset({0, 1})])
    around = arrange.HostContext(
        draw(nodes), draw(nodes), draw(st.sampled_from([None, None, 0])),
        draw(links()))
    return groups, rules, around

# SPDX-License-Identifier: Apache-2.0
"""The sentence names what no host has, and what would fit is true."""

import re

from hypothesis import given
import pytest

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.solver import arrange
from nova_accel.core.solver import why_not
from tests.unit import brute_force


def _groups(count, name='CUSTOM_GPU', amount=1, first=0, **traits):
    return {f'ACCEL{index}': device_profile.Group({name: amount}, {
        naming.MARKER_TRAIT: 'required', **traits})
        for index in range(first, first + count)}


def _rule(key, same, count, weight=0, also=()):
    return affinity.Rule(key, same, (
        *(f'ACCEL{index}' for index in range(count)), *also), weight)


def _host(*nodes, guest=None, name='CUSTOM_GPU', free=1, traits=(), links=()):
    """Return a host with a device on each of these NUMA nodes.

    Two devices in a row are behind one switch.
    """
    return why_not.Host([arrange.AvailableUnits(
        f'{name}-{index}', name, frozenset(traits), free,
        model.Place(node, f'pci000{node}:00', f's{index // 2}',
                    f'{name}-{index}'), free)
        for index, node in enumerate(nodes)], arrange.HostContext(
            guest, links=model.Links(islands=tuple(map(frozenset, links)))))


SAME_NODE = _rule('numa_node', True, 4)


@pytest.mark.parametrize('groups, rules, hosts, sentence', [
    (_groups(4), [SAME_NODE], [_host(0, 0, 1, 1), _host(0), _host()],
     'No host has 4 free CUSTOM_GPU on one NUMA node; the most on one is 2'),
    # A host with too few devices may have the most on one node.
    (_groups(4), [SAME_NODE], [_host(0, 0, 1, 1), _host(0, 0, 0)],
     'No host has 4 free CUSTOM_GPU on one NUMA node; the most on one is 3'),
    (_groups(4), [SAME_NODE], [_host(0, 0, 0), _host(1)],
     'No host has 4 free CUSTOM_GPU; the most is 3'),
    (_groups(1), [], [], 'No host has 1 free CUSTOM_GPU; the most is 0'),
    (_groups(2, CUSTOM_NVLINK='required', CUSTOM_OLD='forbidden'), [],
     [_host(0, 0), _host(0, traits=['CUSTOM_NVLINK'])],
     'No host has 2 free CUSTOM_GPU with CUSTOM_NVLINK and without '
     'CUSTOM_OLD; the most is 1'),
    (_groups(2, 'CUSTOM_VF', 4), [], [_host(0, 0, name='CUSTOM_VF', free=7),
                                      _host(0, name='CUSTOM_VF', free=8)],
     why_not.ELSE),
    (_groups(2, 'CUSTOM_VF', 4), [], [_host(0, 0, 0, name='CUSTOM_VF',
                                            free=3)],
     'No host has 2 times 4 free CUSTOM_VF in one Region; the most is 0'),
    (_groups(3), [_rule('pcie_root', False, 3)], [_host(0, 0, 1, 1)],
     'No host has 3 free CUSTOM_GPU on different PCIe roots; the most on '
     'different ones is 2'),
    (_groups(2), [_rule('link_domain', True, 2)], [_host(0, 0)],
     'No host has 2 free CUSTOM_GPU in one link domain'),
    (_groups(2), [_rule('numa_node', True, 2, also=['guest'])],
     [_host(0, 0, 1, guest=frozenset({1}))],
     'No host has 2 free CUSTOM_GPU on one NUMA node with the guest; the '
     'most on one is 1'),
    # The number of one group says nothing of the other.
    ({**_groups(1), **_groups(1, 'CUSTOM_NIC', first=1)},
     [_rule('numa_node', True, 2)],
     [why_not.Host([*_host(0).available,
                    *_host(1, name='CUSTOM_NIC').available])],
     'No host has 1 free CUSTOM_GPU and 1 free CUSTOM_NIC on one NUMA node'),
    # One host lacks the class, the other one keeps no rule.
    ({**_groups(2), **_groups(1, 'CUSTOM_NIC', first=2)},
     [_rule('numa_node', True, 2)],
     [_host(0, 0), why_not.Host([*_host(0, 1).available,
                                 *_host(1, name='CUSTOM_NIC').available])],
     'No host has all at once: 2 free CUSTOM_GPU, 1 free CUSTOM_NIC, 2 free '
     'CUSTOM_GPU on one NUMA node'),
    # A preferred rule is no reason.
    (_groups(2), [_rule('numa_node', True, 2, weight=1)], [_host(0)],
     'No host has 2 free CUSTOM_GPU; the most is 1'),
    ({'ACCEL0': device_profile.Group({'CUSTOM_A': 1, 'CUSTOM_B': 1}, {})}, [],
     [_host(0)], 'No host can serve the request: ACCEL0 wants units of '
     'CUSTOM_A and CUSTOM_B at once; a Region has one resource class'),
])
def test_sentence_names_the_first_thing_that_no_host_has(
        groups, rules, hosts, sentence):
    assert why_not.reason(groups, rules, hosts) == sentence


def test_links_that_are_too_small():
    hosts = [_host(0, 0, 0, links=[('CUSTOM_GPU-0', 'CUSTOM_GPU-1')])]
    assert 'link domain' in why_not.reason(
        _groups(3), [_rule('link_domain', True, 3)], hosts)


def test_no_more_hosts_are_looked_at_than_the_limit():
    many = [_host(*range(number % 7)) for number
            in range(why_not.MAX_HOSTS)]
    rules = [_rule('numa_node', True, 8)]
    assert why_not.reason(_groups(8), rules, many).startswith('No host has')
    assert why_not.reason(_groups(8), rules, [*many, _host(*[0] * 7)]) == (
        f'None of the {why_not.MAX_HOSTS} hosts that were looked at has 8 '
        'free CUSTOM_GPU; the most is 6')


def test_alike_hosts_are_searched_once(monkeypatch):
    asked = []
    original = why_not.search.is_possible
    monkeypatch.setattr(why_not.search, 'is_possible', lambda *args: (
        asked.append(args) or original(*args)))
    why_not.reason(_groups(4), [SAME_NODE], [_host(0, 0, 1, 1)] * 100)
    assert len(asked) == 1


@given(brute_force.hosts() | brute_force.hosts(tree=False),
       brute_force.requests())
def test_what_would_fit_is_what_fits(available, request):
    """As many as the sentence says can be arranged, and one more cannot."""
    groups, rules, around = request
    words = why_not.reason(groups, rules, [why_not.Host(available, around)])
    assert (words == why_not.ELSE) == bool(
        arrange.arrange(groups, available, rules, around).chosen)
    match = re.fullmatch(
        r'No host has (\d+) free \w+ on .*; the most on .* is (\d+)', words)
    if not match:
        return
    wanted, most = map(int, match.groups())
    broken = [rule for rule in rules if not rule.weight
              and len(set(rule.members) & groups.keys()) == wanted]

    def fits(count, rule):
        members = [name for name in rule.members if name in groups][:count]
        return not members or arrange.arrange(
            {member: groups[member] for member in members}, available,
            [affinity.Rule(rule.key, rule.same, (*members, *(
                name for name in rule.groups if name in ('guest', 'network')
            )))], around).chosen

    assert most < wanted
    assert any(fits(most, rule) and not fits(wanted, rule)
               for rule in broken)

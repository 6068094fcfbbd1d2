# SPDX-License-Identifier: Apache-2.0
"""Why no host can serve a request, in words."""

import pytest

from nova_accel.core import model
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.solver import arrange
from nova_accel.core.solver import reasons

_ASKED = '4 free CUSTOM_GPU'
_NUMA = affinity.Rule('numa_node', True, tuple(
    f'ACCEL{number}' for number in range(4)))
_APART = affinity.Rule('numa_node', False, _NUMA.groups)
_LINKED = affinity.Rule('link_domain', True, _NUMA.groups)


def _host(*nodes, traits=()):
    """Return free GPUs on NUMA nodes of these numbers."""
    return [arrange.AvailableUnits(
        str(number), 'CUSTOM_GPU', frozenset(traits), 1,
        model.Place(node, None, None, str(number)), 1)
        for number, node in enumerate(nodes)]


def _tried(*hosts, rules=(_NUMA,), traits=(), links=(), guest=None,
           faulty=frozenset(), any_of=()):
    group = device_profile.Group(
        {'CUSTOM_GPU': 1}, dict.fromkeys(traits, device_profile.REQUIRED),
        any_of=any_of)
    return [arrange.arrange(
        dict.fromkeys(_NUMA.groups, group), host, rules,
        arrange.HostContext(guest=guest, links=model.Links(
            islands=links, faulty=faulty)))
        for host in hosts]


@pytest.mark.parametrize('found, sentence, clause, stranded', [
    (_tried(_host(0, 0, 1)), f'no host has {_ASKED}; the most is 3',
     f'at most 3 of {_ASKED}', f'fewer than {_ASKED}'),
    (_tried(_host(0, 0, 1, 1)), f'no host has {_ASKED} on one NUMA node; of '
     'the hosts that have them, the most on one is 2',
     f'at most 2 of {_ASKED} on one NUMA node',
     f'fewer than {_ASKED} on one NUMA node'),
    (_tried(_host(0, 0, 0, 0), rules=(_APART,)), f'no host has {_ASKED} on 4 '
     'NUMA nodes; of the hosts that have them, the most is 1 NUMA node',
     f'{_ASKED} on at most 1 of 4 NUMA nodes',
     f'{_ASKED} on fewer than 4 NUMA nodes'),
    (_tried(_host(0, 0, 0, 0), rules=(_LINKED,), links=({'0', '1', '2'},)),
     f'no host has {_ASKED} on one link domain; of the hosts that have them, '
     'the most on one is 3', f'at most 3 of {_ASKED} on one link domain',
     f'fewer than {_ASKED} on one link domain'),
    (_tried(_host(0, 0, 0, 0), traits=('CUSTOM_X',)),
     f'no host has {_ASKED} with CUSTOM_X; the most is 0',
     f'at most 0 of {_ASKED} with CUSTOM_X',
     f'fewer than {_ASKED} with CUSTOM_X')])
def test_failed_rule_and_its_numbers(found, sentence, clause, stranded):
    assert reasons.no_host(found) == sentence
    assert [reasons.clause(one) for one in found] == [clause]
    assert [reasons.stranded(one) for one in found] == [stranded]


_OR = ('CUSTOM_X',), ('CUSTOM_Y',)


@pytest.mark.parametrize('hosts, sentence, clause, stranded', [
    # No alternative matters if there are too few devices of any.
    ([_host(0, 0, 1)], f'no host has {_ASKED}; the most is 3',
     f'at most 3 of {_ASKED}', f'fewer than {_ASKED}'),
    ([_host(0, 0, 0, 0)],
     f'no host can serve the request: at most 0 of {_ASKED} with CUSTOM_X, or '
     f'at most 0 of {_ASKED} with CUSTOM_Y',
     f'at most 0 of {_ASKED} with CUSTOM_X, and at most 0 of {_ASKED} with '
     'CUSTOM_Y',
     f'fewer than {_ASKED} with CUSTOM_X, and fewer than {_ASKED} with '
     'CUSTOM_Y'),
    # The second alternative is nearer.
    ([_host(0, 0, 0, 1, traits=['CUSTOM_Y'])],
     f'no host has {_ASKED} with CUSTOM_Y on one NUMA node; of the hosts that '
     'have them, the most on one is 3',
     f'at most 0 of {_ASKED} with CUSTOM_X, and at most 3 of {_ASKED} with '
     'CUSTOM_Y on one NUMA node',
     f'fewer than {_ASKED} with CUSTOM_X, and fewer than {_ASKED} with '
     'CUSTOM_Y on one NUMA node')])
def test_objections_to_alternatives(hosts, sentence, clause, stranded):
    found = _tried(*hosts, any_of=_OR)
    assert reasons.no_host(found) == sentence
    assert [reasons.clause(one) for one in found] == [clause]
    assert [reasons.stranded(one) for one in found] == [stranded]



def test_reason_mentions_unknown_places():
    [found] = _tried(_host(None, None, None, None))
    assert reasons.clause(found) == (
        f'at most 1 of {_ASKED} on one NUMA node; the NUMA node of some '
        'devices is unknown')


def test_reason_mentions_failed_links():
    faulty = frozenset({'0'})
    for rules, words in ((_LINKED,), '; links of some devices have failed'), (
            (_APART,), ''):
        [found] = _tried(_host(0, 0, 0, 0), rules=rules, faulty=faulty)
        assert reasons.clause(found).partition(';')[1:] == (
            ';' * bool(words), words[1:])


def test_reason_mentions_nodes_of_the_guest():
    [found] = _tried(_host(0, 0, 0, 0), guest=frozenset({1}), rules=(
        affinity.Rule('numa_node', True, (*_NUMA.groups, 'guest')),))
    assert reasons.clause(found) == (
        f'at most 0 of {_ASKED} on one NUMA node, together with the guest')


def test_nearest_hosts_give_the_reason():
    assert reasons.no_host(_tried(
        _host(0, 0, 0), _host(0, 0, 1, 1), _host(0, 0, 0, 1), _host(1))) == (
        f'no host has {_ASKED} on one NUMA node; of the hosts that have them, '
        'the most on one is 3')


def test_hosts_that_fail_different_rules_are_equally_near():
    found = (_tried(_host(0, 0, 1, 1)) + _tried(_host(0, 0, 0, 0),
                                                rules=(_APART,)))
    assert reasons.no_host(found) == (
        f'no host can serve the request: at most 2 of {_ASKED} on one NUMA '
        f'node, or {_ASKED} on at most 1 of 4 NUMA nodes')


@pytest.mark.parametrize('found, text', [
    ([], 'no host has devices'),
    ([arrange.Arrangement(objection='gave up', kind='limit', is_final=False)],
     'no host was found: gave up'),
    ([arrange.Arrangement(objection='none alone', kind='together')],
     'no host can serve the request: none alone')])
def test_reasons_without_numbers(found, text):
    assert reasons.no_host(found) == text

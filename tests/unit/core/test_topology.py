# SPDX-License-Identifier: Apache-2.0
"""Which devices are together, and near the guest."""

import itertools

import pytest

from nova_accel.core import model
from nova_accel.core import topology


def _place(node=0, root='pci0000:40', switch=None, ports=()):
    return model.Location(node, root, ports, switch)


def _judge(wish, places, **facts):
    groups = [f'_ACCEL{index}' for index in range(len(places))]
    return topology.judge(dict.fromkeys(groups, wish),
                          dict(zip(groups, places, strict=True)), **facts)


@pytest.mark.parametrize('nodes, objection', [
    ([0], ''),
    ([0, 0], ''),
    ([None], ''),
    ([None, None], ''),
    ([0, 1], 'its devices are on NUMA nodes 0 and 1, not on one'),
    ([1, None], 'its devices are on NUMA nodes (unknown) and 1, not on one'),
])
def test_required_means_one_node(nodes, objection):
    verdict = _judge('required', [_place(node) for node in nodes])
    assert verdict.objection == objection


@pytest.mark.parametrize('guest, objection', [
    ({0}, ''),
    ({0, 1}, ''),
    (None, ''),
    ({1, 2},
     'its devices are on NUMA node 0, the guest on 1 and 2'),
])
def test_required_means_the_guests_nodes_too(guest, objection):
    verdict = _judge('required', [_place(0)],
                     guest_nodes=None if guest is None else frozenset(guest))
    assert verdict.objection == objection


def test_an_unknown_node_is_not_the_guests():
    assert _judge('required', [_place(None)],
                  guest_nodes=frozenset({0})).objection == (
        'its devices are on NUMA node (unknown), the guest on 0')


def test_on_a_host_of_one_node_an_unknown_node_is_that():
    assert _judge('required', [_place(None), _place(0)], only_node=0,
                  guest_nodes=frozenset({0})).objection == ''


def test_required_of_a_place_that_nobody_knows_is_objected_to():
    assert _judge('required', [None, _place()]).objection == (
        'the host does not say where its devices are')


@pytest.mark.parametrize('wish', ['preferred', 'off'])
@pytest.mark.parametrize('places', [
    [_place(0), _place(1)], [None], [None, _place(1)]])
def test_less_than_required_is_never_objected_to(wish, places):
    assert _judge(wish, places, guest_nodes=frozenset({5})).objection == ''


def test_off_costs_nothing():
    costs = {_judge('off', places, guest_nodes=frozenset({0})).cost
             for places in ([_place(0), _place(1)], [_place(0)] * 2, [None])}
    assert len(costs) == 1


def test_the_closer_together_the_cheaper():
    one_switch = [_place(0, switch='s')] * 2
    one_root = [_place(0, switch='s'), _place(0, switch='t')]
    one_node = [_place(0), _place(0, root='pci0000:50')]
    two_nodes = [_place(0), _place(1, root='pci0000:80')]
    costs = [_judge('preferred', places).cost for places in
             (one_switch, one_root, one_node, two_nodes)]
    assert costs == sorted(costs)
    assert len(set(costs)) == 4


def test_near_the_guest_comes_before_near_each_other():
    near = [_place(0, root='pci0000:40'), _place(0, root='pci0000:50')]
    far = [_place(1, switch='s')] * 2
    guest = frozenset({0})
    assert _judge('preferred', near, guest_nodes=guest).cost < _judge(
        'preferred', far, guest_nodes=guest).cost


def test_devices_behind_one_bridge_are_closer_than_behind_two():
    one = [_place(ports=('a', 'b'))] * 2
    two = [_place(ports=('a', 'b')), _place(ports=('a', 'c'))]
    assert _judge('preferred', one).cost < _judge('preferred', two).cost


def test_the_order_of_the_groups_does_not_matter():
    places = [_place(0, switch='s'), _place(1, root='pci0000:80'), None]
    assert len({_judge('preferred', order).cost for order in
                itertools.permutations(places)}) == 1


def test_groups_of_different_wishes_are_judged_apart():
    verdict = topology.judge({'a': 'required', 'b': 'off'},
                             {'a': _place(0), 'b': _place(1)})
    assert verdict.objection == ''


def test_nothing_asked_is_nothing_objected_to():
    assert topology.judge({}, {}).objection == ''

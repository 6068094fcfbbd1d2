# SPDX-License-Identifier: Apache-2.0
"""Tests of the measure of the room that is left on a host."""

import dataclasses

from hypothesis import given
from hypothesis import strategies
import pytest

from nova_accel.core import model
from nova_accel.core.solver import arrange
from nova_accel.core.solver import fragmentation


def units(device, node=0, free=1, total=1, name='PGPU', switch=None):
    return arrange.AvailableUnits(
        f'p{device}', name, frozenset(), free,
        model.Place(node, None, switch, str(device)), total)


def eight(free=range(8)):
    """Return a host of two NUMA nodes with four Devices each."""
    return [units(number, number // 4, int(number in free))
            for number in range(8)]


def take(*numbers):
    return {f'p{number}': 1 for number in numbers}


def left(available, taken):
    return fragmentation.after(available, taken, model.Links()).left


def test_left_counts_free_devices_that_are_not_taken():
    assert left(eight(), take(0, 1)) == 6
    assert left(eight([0, 1]), take(0, 1)) == 0


def test_left_counts_only_classes_that_are_taken():
    available = [*eight(), units(9, name='VGPU')]
    assert left(available, take(0)) == 7
    assert left(available, take(9)) == 0
    assert left(available, {}) == 0


def test_pool_of_functions_counts_as_one_device():
    pool = units(0, free=32, total=64, name='VF')
    assert left([pool], {'p0': 16}) == 0.25


def broken(free, taken, **links):
    return fragmentation.after(eight(free), take(*taken), model.Links(
        **{key: tuple(frozenset(map(str, numbers)) for numbers in sets)
           for key, sets in links.items()})).broken


def test_taking_the_rest_of_a_node_costs_less_than_a_whole_node():
    rest = broken([0, 1, 4, 5, 6, 7], [0, 1])
    assert rest < broken([0, 1, 4, 5, 6, 7], [4, 5])
    assert rest < broken(range(8), [0, 1])


def test_taking_a_full_pair_costs_less_than_part_of_three():
    assert broken([0, 1, 4, 5], [0, 1]) < broken([0, 1, 2], [0, 1])


def test_taking_from_two_nodes_costs_more_than_from_one():
    assert broken(range(8), [3, 4]) > broken(range(8), [0, 1])


def test_large_island_costs_more_than_small_one():
    small = broken(range(8), [0], islands=[range(4), range(4, 8)])
    assert small < broken(range(8), [0], islands=[range(8)])


def test_last_device_of_an_island_costs_less_than_the_first_of_another():
    islands = [[0, 4], [1, 5], [2, 6], [3, 7]]
    free = [0, *range(1, 4), *range(5, 8)]
    assert broken(free, [0], islands=islands) < broken(
        free, [1], islands=islands)


def test_partition_has_worth_only_while_whole():
    partitions = [range(4), range(4, 8)]

    def cost(free, taken):
        return broken(free, taken, partitions=partitions) - broken(
            free, taken)

    assert cost(range(8), [0]) == 16
    assert cost(range(1, 8), [1]) == 0
    assert cost(range(8), [3, 4]) == 32
    assert cost(range(4), range(4)) == 16


def test_partition_with_a_card_that_is_not_offered_has_no_worth():
    partitions = [[0, 1, 'elsewhere']]
    assert broken(range(8), [0], partitions=partitions) == broken(
        range(8), [0])


def loss(available, taken):
    return fragmentation.after(available, taken, model.Links()).broken


def test_card_in_use_costs_less_than_a_free_one():
    begun, whole = units(0, free=1, total=4), units(1, free=4, total=4)
    assert loss([begun, whole], {'p0': 1}) < loss(
        [begun, whole], {'p1': 1})


def test_switch_counts_as_a_place():
    pairs = [units(number, switch=f's{number // 2}', free=int(number != 0))
             for number in range(4)]
    assert loss(pairs, take(1)) < loss(pairs, take(2))


def test_device_of_unknown_place_counts_alone():
    nowhere = [units(number, node=None) for number in range(4)]
    assert loss(nowhere, take(0, 1)) == 2


def test_free_share():
    assert fragmentation.free_share([(1, 1), (1, 0), (4, 2), (1, 0)]) == 0.375
    assert fragmentation.free_share([]) == 0


@pytest.mark.parametrize('total, free', [(0, 0), (-1, 3), (2, -4), (0, 9)])
def test_invalid_counts_are_read_as_nothing_free(total, free):
    assert fragmentation.free_share([(total, free)]) == 0
    odd = units(0, free=free, total=total)
    assert left([odd], take(0)) == 0
    assert loss([odd], take(0)) == 0


def test_more_free_than_total_is_read_as_all_free():
    assert fragmentation.free_share([(2, 5)]) == 1
    assert fragmentation.free_share([(2, 10 ** 400)]) == 1


_AVAILABLE = strategies.lists(
    strategies.builds(
        units, strategies.just(0), strategies.sampled_from([None, 0, 1]),
        strategies.integers(0, 4), strategies.just(4),
        strategies.sampled_from(['PGPU', 'VGPU']),
        strategies.sampled_from([None, 's0', 's1'])),
    max_size=8).map(lambda available: [
        dataclasses.replace(
            one, provider=f'p{number}', place=dataclasses.replace(
                one.place, device=str(number)))
        for number, one in enumerate(available)])
_SETS = strategies.lists(strategies.frozensets(
    strategies.integers(0, 8).map(str), min_size=1), max_size=4).map(tuple)


@given(_AVAILABLE, _SETS, _SETS, strategies.data())
def test_taking_more_never_leaves_more(available, islands, partitions, data):
    links = model.Links(partitions=partitions, islands=islands)
    more = {one.provider: data.draw(strategies.integers(0, one.free))
            for one in available}
    less = {provider: data.draw(strategies.integers(min(1, amount), amount))
            for provider, amount in more.items()}
    of_more, of_less = (fragmentation.after(available, taken, links)
                        for taken in (more, less))
    assert 0 <= of_more.left <= of_less.left
    assert 0 <= of_less.broken <= of_more.broken


@given(_AVAILABLE, _SETS, strategies.data())
def test_order_of_units_does_not_matter(available, islands, data):
    links = model.Links(islands=islands)
    taken = {one.provider: one.free for one in available[:2]}
    other = data.draw(strategies.permutations(available))
    room, same = (dataclasses.astuple(
        fragmentation.after(one, taken, links)) for one in (available, other))
    assert room == pytest.approx(same)

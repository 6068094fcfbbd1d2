# SPDX-License-Identifier: Apache-2.0
"""How much room a server's Devices leave."""

import dataclasses

from hypothesis import given
from hypothesis import strategies
import pytest

from nova_accel.core import model
from nova_accel.core.solver import arrange
from nova_accel.core.solver import fragmentation


def stock(device, node=0, free=1, total=1, name='PGPU', switch=None):
    return arrange.AvailableUnits(
        f'p{device}', name, frozenset(), free,
        model.Place(node, None, switch, str(device)), total)


def eight(free=range(8)):
    """A host of two NUMA nodes with four Devices each."""
    return [stock(number, number // 4, int(number in free))
            for number in range(8)]


def take(*numbers):
    return {f'p{number}': 1 for number in numbers}


def left(stocks, taken):
    return fragmentation.after(stocks, taken, model.Links()).left


def test_left_are_the_free_ones_that_are_not_taken():
    assert left(eight(), take(0, 1)) == 6
    assert left(eight([0, 1]), take(0, 1)) == 0


def test_left_counts_only_classes_that_are_taken():
    stocks = [*eight(), stock(9, name='VGPU')]
    assert left(stocks, take(0)) == 7
    assert left(stocks, take(9)) == 0
    assert left(stocks, {}) == 0


def test_a_pool_is_one_device():
    pool = stock(0, free=32, total=64, name='VF')
    assert left([pool], {'p0': 16}) == 0.25


def broken(free, taken, **links):
    return fragmentation.after(eight(free), take(*taken), model.Links(
        **{key: tuple(frozenset(map(str, numbers)) for numbers in sets)
           for key, sets in links.items()})).broken


def test_the_rest_of_a_node_breaks_less_than_a_whole_one():
    rest = broken([0, 1, 4, 5, 6, 7], [0, 1])
    assert rest < broken([0, 1, 4, 5, 6, 7], [4, 5])
    assert rest < broken(range(8), [0, 1])


def test_tighter_breaks_less():
    assert broken([0, 1, 4, 5], [0, 1]) < broken([0, 1, 2], [0, 1])


def test_across_two_nodes_breaks_both():
    assert broken(range(8), [3, 4]) > broken(range(8), [0, 1])


def test_a_large_island_costs_more_than_a_small_one():
    small = broken(range(8), [0], islands=[range(4), range(4, 8)])
    assert small < broken(range(8), [0], islands=[range(8)])


def test_the_last_of_an_island_goes_before_the_first_of_another():
    islands = [[0, 4], [1, 5], [2, 6], [3, 7]]
    free = [0, *range(1, 4), *range(5, 8)]
    assert broken(free, [0], islands=islands) < broken(
        free, [1], islands=islands)


def test_a_partition_counts_as_long_as_it_is_whole():
    partitions = [range(4), range(4, 8)]

    def cost(free, taken):
        return broken(free, taken, partitions=partitions) - broken(
            free, taken)

    assert cost(range(8), [0]) == 16
    assert cost(range(1, 8), [1]) == 0
    assert cost(range(8), [3, 4]) == 32
    assert cost(range(4), range(4)) == 16


def test_a_partition_with_a_card_that_is_not_offered_is_none():
    partitions = [[0, 1, 'elsewhere']]
    assert broken(range(8), [0], partitions=partitions) == broken(
        range(8), [0])


def loss(stocks, taken):
    return fragmentation.after(stocks, taken, model.Links()).broken


def test_a_card_that_is_begun_goes_before_a_whole_one():
    begun, whole = stock(0, free=1, total=4), stock(1, free=4, total=4)
    assert loss([begun, whole], {'p0': 1}) < loss(
        [begun, whole], {'p1': 1})


def test_a_switch_is_a_room():
    pairs = [stock(number, switch=f's{number // 2}', free=int(number != 0))
             for number in range(4)]
    assert loss(pairs, take(1)) < loss(pairs, take(2))


def test_what_nobody_knows_the_place_of_is_in_no_room():
    nowhere = [stock(number, node=None) for number in range(4)]
    assert loss(nowhere, take(0, 1)) == 2


def test_free_share():
    assert fragmentation.free_share([(1, 1), (1, 0), (4, 2), (1, 0)]) == 0.375
    assert fragmentation.free_share([]) == 0


@pytest.mark.parametrize('total, free', [(0, 0), (-1, 3), (2, -4), (0, 9)])
def test_odd_counts_are_nothing_free(total, free):
    assert fragmentation.free_share([(total, free)]) == 0
    odd = stock(0, free=free, total=total)
    assert left([odd], take(0)) == 0
    assert loss([odd], take(0)) == 0


def test_more_free_than_there_is_is_all_of_it():
    assert fragmentation.free_share([(2, 5)]) == 1
    assert fragmentation.free_share([(2, 10 ** 400)]) == 1


_STOCKS = strategies.lists(
    strategies.builds(
        stock, strategies.just(0), strategies.sampled_from([None, 0, 1]),
        strategies.integers(0, 4), strategies.just(4),
        strategies.sampled_from(['PGPU', 'VGPU']),
        strategies.sampled_from([None, 's0', 's1'])),
    max_size=8).map(lambda stocks: [
        dataclasses.replace(
            one, provider=f'p{number}', place=dataclasses.replace(
                one.place, device=str(number)))
        for number, one in enumerate(stocks)])
_SETS = strategies.lists(strategies.frozensets(
    strategies.integers(0, 8).map(str), min_size=1), max_size=4).map(tuple)


@given(_STOCKS, _SETS, _SETS, strategies.data())
def test_taking_more_never_leaves_more(stocks, islands, partitions, data):
    links = model.Links(partitions=partitions, islands=islands)
    more = {one.provider: data.draw(strategies.integers(0, one.free))
            for one in stocks}
    less = {provider: data.draw(strategies.integers(min(1, amount), amount))
            for provider, amount in more.items()}
    of_more, of_less = (fragmentation.after(stocks, taken, links)
                        for taken in (more, less))
    assert 0 <= of_more.left <= of_less.left
    assert 0 <= of_less.broken <= of_more.broken


@given(_STOCKS, _SETS, strategies.data())
def test_in_whatever_order_a_host_says_it(stocks, islands, data):
    links = model.Links(islands=islands)
    taken = {one.provider: one.free for one in stocks[:2]}
    other = data.draw(strategies.permutations(stocks))
    assert dataclasses.astuple(fragmentation.after(stocks, taken, links)) == (
        pytest.approx(dataclasses.astuple(fragmentation.after(other, taken,
                                                              links))))

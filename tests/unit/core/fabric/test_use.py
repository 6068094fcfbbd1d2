# SPDX-License-Identifier: Apache-2.0
"""Which partitions servers need."""

import dataclasses
import itertools

import hypothesis
from hypothesis import strategies
import pytest

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.fabric import located
from nova_accel.core.fabric import manager
from nova_accel.core.fabric import use
from tests import fmpm

_ADDRESSES = {module: model.PciAddress(0, 0x40 + module, 0, 0)
              for module in range(1, 9)}


def _found(sets, active=(), unknown=()):
    """Return partitions of modules; those with unknown ones are unusable."""
    modules = {module: address for module, address in _ADDRESSES.items()
               if module not in unknown}
    return located.Located(
        tuple(manager.Partition(number, tuple(map(manager.Member, members)),
                                number in active)
              for number, members in sets.items()),
        modules,
        {number: _cards(*members) for number, members in sets.items()
         if modules.keys() >= set(members)})


def _cards(*modules):
    return frozenset(str(_ADDRESSES[module]) for module in modules)


@pytest.mark.parametrize('modules, numbers', [
    ((1, 2, 3, 4, 5, 6, 7, 8), [0]), ((1, 3), [3]), ((1, 2), [7, 8]),
    ((1, 3, 5), [3, 11]), ((1, 2, 3, 4, 5), [1, 11]), ((), [])])
def test_partitions_of_a_server(modules, numbers):
    needed = use.needed(_found(fmpm.HGX), {*_cards(*modules), '0000:01:00.0'})
    assert sorted(partition.id for partition in needed) == numbers


_SETS = strategies.lists(
    strategies.sets(strategies.integers(1, 8), min_size=1, max_size=4),
    max_size=10).map(lambda sets: dict(enumerate(map(sorted, sets))))


@hypothesis.given(_SETS, strategies.sets(strategies.integers(1, 8)))
def test_no_choice_has_fewer_partitions(sets, modules):
    found = _found(sets)
    cards = _cards(*modules) & found.known_cards
    covers = [chosen for size in range(len(cards) + 1)
              for chosen in itertools.combinations(found.cards.values(), size)
              if sum(map(len, chosen)) == len(cards)
              and frozenset().union(*chosen) == cards]
    if not covers:
        with pytest.raises(errors.AssignmentError, match='no partitions'):
            use.needed(found, _cards(*modules))
        return
    needed = [found.cards[partition.id]
              for partition in use.needed(found, _cards(*modules))]
    assert sum(map(len, needed)) == len(cards)
    assert frozenset().union(*needed) == cards
    assert len(needed) == len(covers[0])


def test_card_of_a_partition_that_cannot_be_used():
    with pytest.raises(errors.AssignmentError, match='no partitions'):
        use.needed(_found({0: (1, 2)}, unknown=[2]), _cards(1))


def test_partitions_that_no_server_needs():
    found = _found(fmpm.HGX, active=(1, 5, 13), unknown=[7])
    assert [partition.id for partition in use.unused(found, _cards(8))] == [1]
    assert use.unused(found, _cards(1, 8)) == []


def test_partitions_in_the_way():
    found = _found(fmpm.HGX, active=(0, 3, 8))
    partition = found.partitions[3]
    assert [other.id for other in use.in_the_way(found, partition)] == [0]


@pytest.mark.parametrize('functions, expected', [
    ({1: 4, 3: 5}, [4, 5]), ({1: None, 3: None}, []), ({1: 4, 3: None}, None)])
def test_virtual_functions(functions, expected):
    def virtual(module, number):
        return dataclasses.replace(_ADDRESSES[module], function=number)

    found = _found(fmpm.HGX)
    of_cards = {str(_ADDRESSES[module]):
                [virtual(module, number)] if number else []
                for module, number in functions.items()}
    if expected is None:
        with pytest.raises(errors.AssignmentError, match='partition 3: '):
            use.virtual_functions(found, found.partitions[3], of_cards)
        return
    assert [address.function for address in use.virtual_functions(
        found, found.partitions[3], of_cards)] == expected

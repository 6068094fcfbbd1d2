# SPDX-License-Identifier: Apache-2.0
"""Which partitions do servers need, and which does no server need?"""

import collections.abc
import functools

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.fabric import located
from nova_accel.core.fabric import manager

#: Addresses of cards.
Cards = frozenset[str]


def needed(found: located.Located, cards: collections.abc.Iterable[str],
           ) -> tuple[manager.Partition, ...]:
    """Return the fewest partitions that together have a server's cards.

    They have no other cards. If the cards are one partition, the server can
    use the links between all of them.

    :param cards: of the server; those that the manager does not have are left
        out
    :returns: none if the manager has none of the cards
    :raises errors.AssignmentError: if no partitions have the cards that the
        manager has
    """
    cards = frozenset(cards) & found.known_cards
    sets = {partition: members for partition in found.partitions
            if (members := found.cards.get(partition.id))
            and members <= cards}
    chosen = _cover(cards, tuple(sorted(
        sets.items(), key=lambda pair: (-len(pair[1]), pair[0].id))))
    if chosen is None:
        raise errors.AssignmentError(
            f'devices {", ".join(sorted(cards))}', 'cannot be connected: the '
            'fabric manager has no partitions with exactly these',
            '; '.join(found.problems) or 'let the profile request a whole '
            'partition (same: link_domain)')
    return chosen


def _cover(cards: Cards,
           sets: collections.abc.Iterable[tuple[manager.Partition, Cards]],
           ) -> tuple[manager.Partition, ...] | None:
    """Return the fewest of disjoint sets that have all cards, None if none.

    :param sets: pairs of a partition and its cards, the largest ones first
    """
    @functools.cache
    def best(left: Cards) -> tuple[manager.Partition, ...] | None:
        if not left:
            return ()
        first = min(left)
        found = None
        for partition, members in sets:
            if first in members and members <= left:
                rest = best(left - members)
                if rest is not None and (
                        found is None or len(rest) + 1 < len(found)):
                    found = (partition, *rest)
        return found
    return best(cards)


def virtual_functions(found: located.Located, partition: manager.Partition,
                      functions: collections.abc.Mapping[
                          str, collections.abc.Collection[model.PciAddress]],
                      ) -> tuple[model.PciAddress, ...]:
    """Return the virtual functions with which a partition is activated.

    :param functions: those that a server has, by card
    :returns: none if it has the whole cards
    :raises errors.AssignmentError: if it has some of them whole
    """
    of_modules = {module: functions[str(found.modules[module])]
                  for module in partition.modules}
    if not any(of_modules.values()):
        return ()
    if not all(of_modules.values()):
        raise errors.AssignmentError(
            f'partition {partition.id}', 'cannot be activated: the server has '
            'virtual functions of some of its cards, and other cards whole')
    return manager.in_order(partition, {
        module: min(own) for module, own in of_modules.items()})


def unused(found: located.Located, held: collections.abc.Collection[str],
           ) -> list[manager.Partition]:
    """Return the active partitions of which no server has any card.

    A partition with a card that is not known may be in use.

    :param held: the cards that servers have
    """
    return [partition for partition in found.partitions
            if partition.is_active and is_free(found, partition, held)]


def in_the_way(found: located.Located, partition: manager.Partition,
               ) -> list[manager.Partition]:
    """Return the active partitions that share a card with another one."""
    return [other for other in found.partitions
            if other.is_active and other.id != partition.id
            and not other.modules.isdisjoint(partition.modules)]


def is_free(found: located.Located, partition: manager.Partition,
            held: collections.abc.Collection[str]) -> bool:
    """Whether no server has any card of a partition, as far as is known.

    :param held: the cards that servers have
    """
    return all(module in found.modules
               and str(found.modules[module]) not in held
               for module in partition.modules)

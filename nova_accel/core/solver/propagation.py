# SPDX-License-Identifier: Apache-2.0
"""What cannot be, seen before anything is tried: counts and matchings."""

import collections
import collections.abc

from nova_accel.core.solver import constraints


def fitting(view: constraints.View) -> list[list[int]]:
    """For each demand the rows that have what it wants.

    Like demands share one list here, and in what becomes of it: it is
    compared by identity, which is why it is never changed in place.
    """
    by_demand = {}
    for demand in set(view.problem.demands):
        by_demand[demand] = [
            index for index, row in enumerate(view.rows)
            if row.resource_class == demand.resource_class
            and row.free >= demand.amount
            and all((trait in row.traits) == wanted
                    for trait, wanted in demand.traits)]
    return [by_demand[demand] for demand in view.problem.demands]


def narrow(view: constraints.View,
           wishes: collections.abc.Iterable[constraints.Wish],
           ) -> list[list[int]] | None:
    """For each demand the rows that hard wishes leave; None if too few.

    What it leaves out is in no answer; what it leaves may be in none either.
    """
    hard = [wish for wish in wishes if not wish.weight]
    domains = fitting(view)
    for wish in hard:
        fit = [index for index in range(len(view.rows))
               if may_ever(view, wish, index)]
        _keep(domains, wish.members, set(fit))
    before = None
    while before != (before := [len(domain) for domain in domains]):
        if not (all(domains)
                and holds(view, needs(view, domains, range(len(domains))))
                and all(_narrow(view, wish, domains) for wish in hard)):
            return None
    return domains


def may_ever(view: constraints.View, wish: constraints.Wish,
             index: int) -> bool:
    """Whether a row may serve a member, whatever the others have."""
    if wish.same:
        return not view.off(wish, index)
    return (len(wish.members) < 2
            or wish.key not in ('numa_node', 'pcie_root')
            or getattr(view.rows[index], wish.key) is not None)


def _keep(domains, members, rows: set[int]) -> None:
    kept: dict[int, list[int]] = {}
    for member in members:
        domain = domains[member]
        if id(domain) not in kept:
            kept[id(domain)] = (
                domain if rows.issuperset(domain) else
                [index for index in domain if index in rows])
        domains[member] = kept[id(domain)]


def within(domains, rows: set[int]) -> list[list[int]]:
    """The domains again, without all rows but these."""
    domains = list(domains)
    _keep(domains, range(len(domains)), rows)
    return domains


#: How many with which demand, and all the rows that they might have.
Needs = list[tuple[constraints.Demand, int, set[int]]]


def needs(view: constraints.View, domains, members) -> Needs:
    """What some demands need, like ones together."""
    kinds = collections.defaultdict(list)
    for member in members:
        kinds[view.problem.demands[member]].append(member)
    return [(demand, len(alike), set().union(*{
        id(domains[member]): domains[member] for member in alike}.values()))
        for demand, alike in kinds.items()]


def holds(view: constraints.View, wanted: Needs,
          rows: set[int] | None = None) -> bool:
    """Whether units suffice, counted by class and by like demands.

    :param rows: those that count, where not all do
    """
    amounts: dict[int, int] = {}
    there: dict[int, set[int]] = {}
    for demand, count, possible in wanted:
        if rows is not None:
            possible = possible & rows
        if units(view, demand, possible) < count:
            return False
        name = demand.resource_class
        amounts[name] = amounts.get(name, 0) + demand.amount * count
        there[name] = there[name] | possible if name in there else possible
    return len(wanted) == len(there) or all(
        sum([view.rows[index].free for index in there[name]]) >= amount
        for name, amount in amounts.items())


def units(view: constraints.View, demand: constraints.Demand,
          rows: collections.abc.Iterable[int]) -> int:
    """How many times a demand can be met out of rows."""
    amount = demand.amount
    return sum([view.rows[index].free // amount for index in rows])


def places(view: constraints.View, wish: constraints.Wish,
           domains) -> list[set[int]]:
    """The sets of rows that may hold all members of a ``same`` wish."""
    rows = set().union(*(domains[member] for member in wish.members))
    if wish.key == constraints.LINKS:
        there = {view.rows[index].device for index in rows}
        sets = [{device} for device in there]
        sets += view.problem.islands
        sets += [partition for partition in view.problem.partitions
                 if partition <= there and
                 len(partition) <= len(wish.members)]
        by_device = collections.defaultdict(set)
        for index in rows:
            by_device[view.rows[index].device].add(index)
        return [set().union(*(by_device[device] for device in devices
                              if device in by_device)) for devices in sets]
    found = collections.defaultdict(set)
    for index in rows:
        found[view.values[wish.key][index]].add(index)
    return list(found.values())


def _narrow(view, wish, domains) -> bool:
    if len(wish.members) < 2:
        return True
    if not wish.same:
        return matching(view, wish, domains) == len(wish.members)
    wanted = needs(view, domains, wish.members)
    left = set().union(*(rows for rows in places(view, wish, domains)
                         if holds(view, wanted, rows)))
    _keep(domains, wish.members, left)
    return bool(left)


def matching(view: constraints.View, wish: constraints.Wish, domains) -> int:
    """How many members of a ``distinct`` wish can have their own value."""
    values = view.values[wish.key]
    possible = {member: dict.fromkeys(values[index]
                                      for index in domains[member])
                for member in wish.members}
    owner: dict = {}

    def give(member, seen) -> bool:
        for value in possible[member]:
            if value not in owner:
                owner[value] = member
                return True
        for value in possible[member]:
            if value not in seen:
                seen.add(value)
                if give(owner[value], seen):
                    owner[value] = member
                    return True
        return False

    return sum(give(member, set()) for member in wish.members)

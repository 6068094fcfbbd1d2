# SPDX-License-Identifier: Apache-2.0
"""What cannot be, seen before anything is tried: counts and matchings."""

import collections
import collections.abc

from nova_accel.core.solver import csp


def fitting(view: csp.View) -> list[list[int]]:
    """For each demand the rows that have what it wants.

    Like demands share one list here, and in what becomes of it: it is
    compared by identity, which is why it is never changed in place.
    """
    by_demand = {}
    for demand in set(view.problem.demands):
        by_demand[demand] = [
            index for index, source in enumerate(view.sources)
            if source.resource_class == demand.resource_class
            and source.free >= demand.amount
            and all((trait in source.traits) == wanted
                    for trait, wanted in demand.traits)]
    return [by_demand[demand] for demand in view.problem.demands]


def narrow(view: csp.View,
           constraints: collections.abc.Iterable[csp.Constraint],
           ) -> list[list[int]] | None:
    """For each demand the rows that hard wishes leave; None if too few.

    What it leaves out is in no answer; what it leaves may be in none either.
    """
    hard = [constraint for constraint in constraints if not constraint.weight]
    domains = fitting(view)
    for constraint in hard:
        fit = [index for index in range(len(view.sources))
               if may_ever(view, constraint, index)]
        _keep(domains, constraint.members, set(fit))
    before = None
    while before != (before := [len(domain) for domain in domains]):
        if not (all(domains)
                and holds(view, needs(view, domains, range(len(domains))))
                and all(_narrow(view, constraint, domains)
                        for constraint in hard)):
            return None
    return domains


def may_ever(view: csp.View, constraint: csp.Constraint,
             index: int) -> bool:
    """Whether a row may serve a member, whatever the others have."""
    if constraint.same:
        return not view.off(constraint, index)
    return (len(constraint.members) < 2
            or constraint.key not in ('numa_node', 'pcie_root')
            or getattr(view.sources[index], constraint.key) is not None)


def _keep(domains, members, sources: set[int]) -> None:
    kept: dict[int, list[int]] = {}
    for member in members:
        domain = domains[member]
        if id(domain) not in kept:
            kept[id(domain)] = (
                domain if sources.issuperset(domain) else
                [index for index in domain if index in sources])
        domains[member] = kept[id(domain)]


def within(domains, sources: set[int]) -> list[list[int]]:
    """The domains again, without all rows but these."""
    domains = list(domains)
    _keep(domains, range(len(domains)), sources)
    return domains


#: How many with which demand, and all the rows that they might have.
Needs = list[tuple[csp.Demand, int, set[int]]]


def needs(view: csp.View, domains, members) -> Needs:
    """What some demands need, like ones together."""
    kinds = collections.defaultdict(list)
    for member in members:
        kinds[view.problem.demands[member]].append(member)
    return [(demand, len(alike), set().union(*{
        id(domains[member]): domains[member] for member in alike}.values()))
        for demand, alike in kinds.items()]


def holds(view: csp.View, wanted: Needs,
          sources: set[int] | None = None) -> bool:
    """Whether units suffice, counted by class and by like demands.

    :param rows: those that count, where not all do
    """
    amounts: dict[int, int] = {}
    there: dict[int, set[int]] = {}
    for demand, count, possible in wanted:
        if sources is not None:
            possible = possible & sources
        if units(view, demand, possible) < count:
            return False
        name = demand.resource_class
        amounts[name] = amounts.get(name, 0) + demand.amount * count
        there[name] = there[name] | possible if name in there else possible
    return len(wanted) == len(there) or all(
        sum([view.sources[index].free for index in there[name]]) >= amount
        for name, amount in amounts.items())


def units(view: csp.View, demand: csp.Demand,
          sources: collections.abc.Iterable[int]) -> int:
    """How many times a demand can be met out of rows."""
    amount = demand.amount
    return sum([view.sources[index].free // amount for index in sources])


def places(view: csp.View, constraint: csp.Constraint,
           domains) -> list[set[int]]:
    """The sets of rows that may hold all members of a ``same`` wish."""
    sources = set().union(*(domains[member] for member in constraint.members))
    if constraint.key == csp.LINKS:
        there = {view.sources[index].device for index in sources}
        sets = [{device} for device in there]
        sets += view.problem.islands
        sets += [partition for partition in view.problem.partitions
                 if partition <= there and
                 len(partition) <= len(constraint.members)]
        by_device = collections.defaultdict(set)
        for index in sources:
            by_device[view.sources[index].device].add(index)
        return [set().union(*(by_device[device] for device in devices
                              if device in by_device)) for devices in sets]
    found = collections.defaultdict(set)
    for index in sources:
        found[view.values[constraint.key][index]].add(index)
    return list(found.values())


def _narrow(view, constraint, domains) -> bool:
    if len(constraint.members) < 2:
        return True
    if not constraint.same:
        return matching(view, constraint, domains) == len(constraint.members)
    wanted = needs(view, domains, constraint.members)
    left = set().union(*(
        sources for sources in places(view, constraint, domains)
        if holds(view, wanted, sources)))
    _keep(domains, constraint.members, left)
    return bool(left)


def matching(view: csp.View, constraint: csp.Constraint,
             domains) -> int:
    """How many members of a ``distinct`` wish can have their own value."""
    values = view.values[constraint.key]
    possible = {member: dict.fromkeys(values[index]
                                      for index in domains[member])
                for member in constraint.members}
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

    return sum(give(member, set()) for member in constraint.members)

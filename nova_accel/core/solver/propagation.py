# SPDX-License-Identifier: Apache-2.0
"""Exclude sources before the search, by counting and by matching."""

import collections
import collections.abc
import itertools

from nova_accel.core.solver import csp


def fitting(view: csp.View) -> csp.Domains:
    """Return, for each demand, the sources that fit it.

    Equal demands share one list, here and in all domains made from it. Callers
    compare these lists by identity and must not change them in place.
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
           ) -> csp.Domains | None:
    """Return, for each demand, the sources that hard constraints leave.

    A source that is left out is in no answer; one that stays may be in none.

    :returns: None if there is no answer
    """
    hard = [constraint for constraint in constraints if not constraint.weight]
    domains = fitting(view)
    for constraint in hard:
        fit = [index for index in range(len(view.sources))
               if may_ever(view, constraint, index)]
        _keep(domains, constraint.members, set(fit))
    before: list[int] | None = None
    while before != (before := [len(domain) for domain in domains]):
        if not (all(domains)
                and suffices(view, needs(view, domains, range(len(domains))))
                and all(_narrow(view, constraint, domains)
                        for constraint in hard)):
            return None
    return domains


def may_ever(view: csp.View, constraint: csp.Constraint,
             index: int) -> bool:
    """Whether a source may serve a member, whatever serves the others."""
    if constraint.same:
        return not view.nodes_missed(constraint, index)
    return (len(constraint.members) < 2
            or constraint.key not in csp.UNCERTAIN
            or view.sources[index].parts[
                csp.PARTS.index(constraint.key)] is not None)


def _keep(domains: csp.Domains, members: collections.abc.Iterable[int],
          sources: set[int]) -> None:
    """Remove all but these sources from the domains of some demands."""
    kept: dict[int, list[int]] = {}
    for member in members:
        domain = domains[member]
        if id(domain) not in kept:
            kept[id(domain)] = (
                domain if sources.issuperset(domain) else
                [index for index in domain if index in sources])
        domains[member] = kept[id(domain)]


def within(domains: csp.Domains, sources: set[int]) -> csp.Domains:
    """Return the domains limited to these sources."""
    domains = list(domains)
    _keep(domains, range(len(domains)), sources)
    return domains


#: A demand, how often it is made, and its possible sources.
Need = tuple[csp.Demand, int, set[int]]
#: One for each different demand.
Needs = list[Need]


def needs(view: csp.View, domains: csp.Domains,
          members: collections.abc.Iterable[int]) -> Needs:
    """Return what some demands need, equal demands together."""
    kinds = collections.defaultdict(list)
    for member in members:
        kinds[view.problem.demands[member]].append(member)
    return [(demand, len(equal), set[int]().union(*{
        id(domains[member]): domains[member] for member in equal}.values()))
        for demand, equal in kinds.items()]


def suffices(view: csp.View, wanted: Needs,
             sources: set[int] | None = None) -> bool:
    """Whether free units suffice, by resource class and by equal demands.

    :param sources: count only these; default all
    """
    amounts: dict[int, int] = {}
    reachable: dict[int, set[int]] = {}
    for demand, count, possible in wanted:
        if sources is not None:
            possible = possible & sources
        if units(view, demand, possible) < count:
            return False
        name = demand.resource_class
        amounts[name] = amounts.get(name, 0) + demand.amount * count
        reachable[name] = (reachable[name] | possible if name in reachable
                           else possible)
    return len(wanted) == len(reachable) or all(
        sum([view.sources[index].free for index in reachable[name]]) >= amount
        for name, amount in amounts.items())


def units(view: csp.View, demand: csp.Demand,
          sources: collections.abc.Iterable[int]) -> int:
    """Return how many times sources can meet a demand."""
    amount = demand.amount
    return sum([view.sources[index].free // amount for index in sources])


def places(view: csp.View, constraint: csp.Constraint,
           domains: csp.Domains) -> list[set[int]]:
    """Return sets of sources that may serve a "same" constraint together."""
    sources = set(itertools.chain(*(
        domains[member] for member in constraint.members)))
    if constraint.key == csp.LINKS:
        return _linked(view, sources, len(constraint.members))
    found = collections.defaultdict(set)
    for index in sources:
        found[view.values[constraint.key][index]].add(index)
    return list(found.values())


def _linked(view: csp.View, sources: set[int], most: int) -> list[set[int]]:
    """Return the sources of each legal set of devices.

    :param most: the most devices of a partition, which is taken whole
    """
    by_device = collections.defaultdict(set)
    for index in sources:
        by_device[view.sources[index].device].add(index)
    sets: list[collections.abc.Set[int]] = [{device} for device in by_device]
    sets += view.problem.islands
    sets += [partition for partition in view.problem.partitions
             if partition <= by_device.keys() and len(partition) <= most]
    return [set[int]().union(*(by_device[device] for device in devices
                               if device in by_device)) for devices in sets]


def _narrow(view: csp.View, constraint: csp.Constraint,
            domains: csp.Domains) -> bool:
    """Narrow the domains by one constraint; False if it cannot be kept."""
    if len(constraint.members) < 2:
        return True
    if not constraint.same:
        return matching(view, constraint, domains) == len(constraint.members)
    wanted = needs(view, domains, constraint.members)
    left = set[int]().union(*(
        sources for sources in places(view, constraint, domains)
        if suffices(view, wanted, sources)))
    _keep(domains, constraint.members, left)
    return bool(left)


def matching(view: csp.View, constraint: csp.Constraint,
             domains: csp.Domains) -> int:
    """Return how many members of a "distinct" constraint can be apart."""
    values = view.values[constraint.key]
    possible = {member: dict.fromkeys(values[index]
                                      for index in domains[member])
                for member in constraint.members}
    owner: dict[csp.Spot, int] = {}

    def give(member: int, seen: set[csp.Spot]) -> bool:
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

# SPDX-License-Identifier: Apache-2.0
"""The cost of an answer, lower bounds of it, and where to search first."""

import collections
import collections.abc
import itertools

from nova_accel.core.solver import csp
from nova_accel.core.solver import propagation

# How many parts of each kind to search.
_MAX_PARTS = 8


def cost(view: csp.View,
         chosen: collections.abc.Sequence[int]) -> tuple[int, ...]:
    """Return the cost of an answer, the most important part first.

    The parts are: the penalty of soft constraints; the numbers of NUMA nodes,
    PCIe roots and switches; the broken sets of each size; unused devices that
    are taken from; free units left on the devices, linked sets, switches and
    nodes that are taken from.

    :param chosen: the index of a source for every demand
    """
    penalty = sum(_penalty(view, constraint, chosen)
                  for constraint in view.problem.constraints
                  if constraint.weight)
    spots = {key: {of[index] for index in chosen}
             for key, of in view.spots.items()}
    amount = sum(demand.amount for demand in view.problem.demands)
    left = [sum(view.free[key][spot] for spot in spots[key]) - amount
            for key in ('device', csp.LINKS, 'pcie_switch',
                        'numa_node')]
    opened = sum(view.fresh[device] for device in spots['device'])
    sign = 1 if view.problem.pack else -1
    return (penalty, *(len(spots[key]) for key in csp.PARTS),
            *(sign * number for number in (
                *view.broken(spots['device']), opened, *left)))


def _penalty(view: csp.View, constraint: csp.Constraint,
             chosen: collections.abc.Sequence[int]) -> int:
    sources = [chosen[member] for member in constraint.members]
    values = view.counted_values(constraint)
    return constraint.weight * (
        view.shortfall(constraint, {values[index] for index in sources},
                       len(sources), 0)
        + sum(view.nodes_missed(constraint, index) for index in sources))


def floor(view: csp.View, domains: csp.Domains) -> tuple[int, ...]:
    """Return a lower bound of the penalty and closeness of any answer."""
    penalty = 0
    for constraint in view.problem.constraints:
        if not constraint.weight:
            continue
        values = view.counted_values(constraint)
        apart = 0
        if not constraint.same:
            possible = {values[index] for member in constraint.members
                        for index in domains[member]}
            apart = max(0, len(constraint.members) - len(possible))
        elif constraint.key != csp.LINKS:
            apart = _fewest(view, domains, constraint.members, values) - 1
        penalty += constraint.weight * apart
        if constraint.guest or constraint.network:
            penalty += constraint.weight * sum(
                min(view.nodes_missed(constraint, index)
                    for index in domains[member])
                for member in constraint.members)
    everyone = range(len(domains))
    return (penalty, *(_fewest(view, domains, everyone, view.spots[key])
                       for key in csp.PARTS))


def least_broken(view: csp.View, domains: csp.Domains) -> tuple[int, ...]:
    """Return, by size, a lower bound of the sets that any answer breaks."""
    least = [0] * len(view.sizes)
    for amount, sources in _needed(view, domains, range(len(domains))):
        devices = {view.sources[index].device for index in sources}
        taken = _spots_for(view, amount, sources, view.spots['device'])
        for number, (size, alike) in enumerate(view.sizes):
            # At best, as many devices as possible are in no whole set, and
            # the rest fill the sets that break.
            inside = taken - sum(not view.whole.get(device, 0) & alike
                                 for device in devices)
            least[number] = max(least[number], -(-inside // size))
    return tuple(least)


def _fewest(view: csp.View, domains: csp.Domains,
            members: collections.abc.Iterable[int],
            spots: list[csp.Spot]) -> int:
    """Return the least number of spots that have enough units."""
    return max((_spots_for(view, amount, sources, spots) for amount, sources
                in _needed(view, domains, members)), default=1)


def _needed(view: csp.View, domains: csp.Domains,
            members: collections.abc.Iterable[int],
            ) -> list[tuple[int, set[int]]]:
    """Return, for each resource class, the amount and possible sources."""
    wanted: collections.Counter[int] = collections.Counter()
    sources: dict[int, set[int]] = collections.defaultdict(set)
    seen = set()
    for member in members:
        demand = view.problem.demands[member]
        wanted[demand.resource_class] += demand.amount
        if id(domains[member]) not in seen:
            seen.add(id(domains[member]))
            sources[demand.resource_class].update(domains[member])
    return [(amount, sources[name]) for name, amount in wanted.items()]


def _spots_for(view: csp.View, amount: int, sources: set[int],
               spots: list[csp.Spot]) -> int:
    """Return the least number of spots that have an amount of free units."""
    free: collections.Counter[csp.Spot] = collections.Counter()
    for index in sources:
        free[spots[index]] += view.sources[index].free
    count = 0
    for _spot, units in free.most_common():
        if amount <= 0:
            break
        amount -= units
        count += 1
    return count


def domains_by_part(view: csp.View, domains: csp.Domains,
                    ) -> collections.abc.Iterator[csp.Domains]:
    """Yield the domains, limited to a part of the host that may suffice."""
    wanted = propagation.needs(view, domains, range(len(domains)))
    sources = sorted(set(itertools.chain(*domains)))
    keys = csp.LINKS, *reversed(csp.PARTS)
    for key in ('device', *keys) if view.problem.pack else keys:
        tried: set[tuple[int, ...]] = set()
        for rank, part in sorted(_parts(view, key, sources)):
            if len(tried) >= _MAX_PARTS:
                break
            if rank not in tried and propagation.suffices(view, wanted,
                                                          set(part)):
                tried.add(rank)
                yield propagation.within(domains, set(part))


def _parts(view: csp.View, key: str, sources: list[int],
           ) -> list[tuple[tuple[int, ...], list[int]]]:
    """Return the sources of each part of the host, with the part's rank.

    The lower the rank, the better it is to take units from that part.
    """
    parts: dict[csp.Spot, list[int]] = collections.defaultdict(list)
    for index in sources:
        if key != csp.LINKS:
            parts[view.spots[key][index]].append(index)
            continue
        for number, devices in enumerate(view.sets):
            if view.sources[index].device in devices:
                parts[number].append(index)
    if len(parts) < 2 and key != csp.LINKS:
        # The only part is the whole host, which is searched anyway.
        return []
    return [(_rank(view, key, part), part) for part in parts.values()]


def _rank(view: csp.View, key: str, part: list[int]) -> tuple[int, ...]:
    sign = 1 if view.problem.pack else -1
    first = part[0]
    return (
        sign * (key == 'device' and view.fresh[view.sources[first].device]),
        sign * sum(view.sources[index].free for index in part),
        *(sign * number for number in view.broken(
            {view.sources[index].device for index in part})),
        *(sign * view.free[level][view.spots[level][first]]
          for level in (csp.LINKS, 'pcie_switch', 'numa_node')))

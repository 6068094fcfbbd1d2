# SPDX-License-Identifier: Apache-2.0
"""Assign a source to every demand so that the constraints hold.

A backtracking search, the hardest demand first. Three things keep it short.
:mod:`.propagation` removes sources that cannot be in any answer. Of sources
that look alike, it tries one. It does not enter a state again from which it
found no answer, nor a state that looks like it.

No library is used: python-constraint has no soft constraints, and OR-Tools is
not in Debian and would add 30 MB to each host.
"""

import collections
import collections.abc
import dataclasses
import itertools
import math
import operator
import typing

from nova_accel.core.solver import cost
from nova_accel.core.solver import csp
from nova_accel.core.solver import propagation
from nova_accel.core.solver import search_budget

#: The most demands. Each is a recursive call of the search, and Python allows
#: a thousand, some of which the caller has used.
MAX_DEMANDS = 512

# Steps for improving an answer that keeps the hard constraints: its penalty,
# its closeness, an answer inside one part of the host, fewer broken sets.
_MAX_BETTER_STEPS, _MAX_CLOSER_STEPS, _MAX_INSIDE_STEPS = 1_000, 100, 100
_MAX_WHOLE_STEPS = 300
# Steps for a first answer that also keeps the soft constraints, and for one
# that regards links although no hard constraint names them.
_MAX_KEEPING_STEPS, _MAX_JOINED_STEPS = 200, 500

_DEVICE = len(csp.PARTS)

# How many chosen sources have a part of the host.
_Uses = collections.Counter[csp.Spot]
_State = tuple[collections.abc.Hashable, ...]
# The shape of a part of the host, and what was taken of the parts inside.
_Part = tuple[typing.Any, ...]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the search found.

    :param sources: the index of a source for every demand; None if no answer
        was found
    :param cost: as of :func:`.cost.cost`
    :param gave_up: if an answer may exist, the steps after which the search
        gave up; else 0
    :param is_final: whether more steps would not change it
    """

    sources: tuple[int, ...] | None
    cost: tuple[int, ...] = ()
    gave_up: int = 0
    is_final: bool = True


def solve(problem: csp.Problem, steps: search_budget.Steps) -> Answer:
    """Return the best answer found that keeps all hard constraints.

    An answer that exists is found, unless the steps run out. Its penalty and
    closeness are the best possible except for large requests. The search for
    a first answer gets at least two steps for each demand.
    """
    problem = dataclasses.replace(problem,
                                  constraints=csp.merged(problem.constraints))
    view = csp.View(problem)
    domains = propagation.narrow(view, problem.constraints)
    if domains is None:
        return Answer(None)
    floor = cost.floor(view, domains)
    can_ignore_links = bool(view.sets) and not any(
        constraint.key == csp.LINKS and not constraint.weight
        for constraint in problem.constraints)
    best = _keeping_soft(view, steps) or _first(
        view, domains, floor, problem.constraints, steps,
        _MAX_JOINED_STEPS if can_ignore_links else math.inf)
    if best.gave_up and can_ignore_links:
        best = _without_links(view, domains, steps)
    if best.sources is None:
        return best
    best = _improve(view, domains, floor, best, steps)
    return dataclasses.replace(best, is_final=not steps.are_spent)


def _keeping_soft(view: csp.View,
                  steps: search_budget.Steps) -> Answer | None:
    """Return an answer that keeps the soft constraints too, or None."""
    constraints = csp.merged(dataclasses.replace(constraint, weight=0)
                             for constraint in view.problem.constraints)
    if constraints == view.problem.constraints:
        return None
    domains = propagation.narrow(view, constraints)
    if domains is None:
        return None
    answer = _first(view, domains, cost.floor(view, domains), constraints,
                    steps, _MAX_KEEPING_STEPS)
    return answer if answer.sources is not None else None


def _first(view: csp.View, domains: csp.Domains, floor: tuple[int, ...],
           constraints: tuple[csp.Constraint, ...],
           steps: search_budget.Steps, most: float = math.inf) -> Answer:
    """Return a first answer, inside one part of the host if possible.

    :param floor: the least that an answer can cost
    :param most: limit of the steps for searching the whole host
    """
    best = Answer(None)
    if len(domains) > 1:
        for inside in cost.domains_by_part(view, domains):
            if steps.left <= steps.limit // 2:
                break
            best = _cheaper(best, _Search(
                view, inside, constraints=constraints).run(
                    steps, _MAX_INSIDE_STEPS))
    if best.cost[:4] == floor:
        return best
    search = _Search(view, domains, constraints=constraints)
    if best.sources is None:
        return search.run(steps, most, 2 * len(domains))
    return _cheaper(best, search.run(steps, _MAX_INSIDE_STEPS))


def _without_links(view: csp.View, domains: csp.Domains,
                   steps: search_budget.Steps) -> Answer:
    """Return a first answer, disregarding links.

    Links make parts of the host differ that look alike otherwise. The domains
    stay valid, for no hard constraint is about links.
    """
    plain = csp.View(dataclasses.replace(view.problem, partitions=(),
                                         islands=()))
    answer = _first(plain, domains, cost.floor(plain, domains),
                    view.problem.constraints, steps)
    if answer.sources is None:
        return answer
    return dataclasses.replace(answer, cost=cost.cost(view, answer.sources))


def _improve(view: csp.View, domains: csp.Domains, floor: tuple[int, ...],
             best: Answer, steps: search_budget.Steps) -> Answer:
    """Return a cheaper answer if one is found in few steps, or the best."""
    if best.cost[:4] != floor:
        best = _cheaper(best, _Search(view, domains, floor, best.cost).run(
            steps, _MAX_BETTER_STEPS if best.cost[0] > floor[0] else
            _MAX_CLOSER_STEPS))
    if view.whole and view.problem.pack:
        floor += cost.least_broken(view, domains)
        if best.cost[:len(floor)] > floor:
            best = _cheaper(best, _Search(
                view, domains, floor, best.cost).run(steps, _MAX_WHOLE_STEPS))
    return best


def is_possible(view: csp.View,
                constraints: collections.abc.Sequence[csp.Constraint],
                steps: search_budget.Steps) -> bool:
    """Whether an answer exists that keeps these constraints, at any cost.

    Also True if the steps run out before that is known.
    """
    constraints = csp.merged(constraints)
    domains = propagation.narrow(view, constraints)
    if domains is None:
        return False
    answer = _Search(view, domains, constraints=constraints).run(
        steps, steps.left, 2 * len(domains))
    return answer.sources is not None or bool(answer.gave_up)


def _cheaper(one: Answer, other: Answer) -> Answer:
    if other.sources is None:
        return one
    return other if one.sources is None or other.cost < one.cost else one


class _Tally:
    """The state of one constraint while its members are assigned."""

    def __init__(self, view: csp.View, constraint: csp.Constraint) -> None:
        self.view, self.constraint = view, constraint
        is_counted = constraint.weight or (
            constraint.same and constraint.key == csp.LINKS)
        self.values = (view.counted_values(constraint) if is_counted
                       else view.values[constraint.key])
        self.counts: dict[csp.Spot, int] = {}
        self.left = len(constraint.members)
        self.assigned = 0
        self._off = ([view.nodes_missed(constraint, index)
                      for index in range(len(view.sources))]
                     if constraint.guest or constraint.network else None)
        self._misses: dict[tuple[frozenset[csp.Spot], int], int] = {}

    @property
    def is_open(self) -> bool:
        return 0 < self.assigned < len(self.constraint.members)

    def allows(self, index: int) -> bool:
        value, counts = self.values[index], self.counts
        if not self.constraint.same:
            return value not in counts
        if not counts or value in counts and len(counts) == 1:
            return True
        return self.constraint.key == csp.LINKS and self.view.may_grow(
            counts.keys() | {value}, self.left - 1)

    def penalty(self, index: int) -> int:
        """Return what a source would add to the penalty."""
        value = self.values[index]
        if not self.constraint.same:
            added = int(value in self.counts)
        elif self.constraint.key != csp.LINKS:
            added = int(self.assigned and value not in self.counts)
        else:
            devices = frozenset(self.counts)
            added = self._missed(devices | {value}, self.left - 1)
            if devices:
                added -= self._missed(devices, self.left)
        if self._off:
            added += self._off[index]
        return self.constraint.weight * added

    def _missed(self, devices: frozenset[csp.Spot], more: int) -> int:
        """Return :meth:`.csp.View.unmet` of these devices."""
        question = devices, more
        if question not in self._misses:
            self._misses[question] = self.view.shortfall(
                self.constraint, devices,
                len(self.constraint.members) - more, more)
        return self._misses[question]

    def push(self, index: int) -> None:
        value = self.values[index]
        self.counts[value] = self.counts.get(value, 0) + 1
        self.assigned += 1
        self.left -= 1

    def pop(self, index: int) -> None:
        value = self.values[index]
        self.counts[value] -= 1
        if not self.counts[value]:
            del self.counts[value]
        self.assigned -= 1
        self.left += 1


class _Search:
    """One backtracking search.

    :param floor: the least that an answer can cost
    :param bound: find an answer that costs less, compared as far as the floor
        goes; None to stop at the first answer
    :param constraints: those to regard; default all of the problem
    """

    def __init__(self, view: csp.View, domains: csp.Domains,
                 floor: tuple[int, ...] = (),
                 bound: tuple[int, ...] | None = None,
                 constraints: tuple[csp.Constraint, ...] | None = None,
                 ) -> None:
        self.view, self.domains, self.floor = view, domains, floor
        self.demands = view.problem.demands
        self.bound = bound and bound[:len(floor)]
        if constraints is None:
            constraints = view.problem.constraints
        self._sign = 1 if view.problem.pack else -1
        self.order = _order(view, domains, constraints)
        amounts = [self.demands[member].amount for member in self.order]
        #: By demand, the units that it and those after it need.
        self.needs = dict(zip(self.order, reversed(list(
            itertools.accumulate(reversed(amounts)))), strict=True))
        self.tallies = [_Tally(view, constraint) for constraint in constraints]
        self.tallies_of: list[tuple[list[_Tally], list[_Tally]]] = [
            ([], []) for _demand in self.demands]
        for tally in self.tallies:
            for member in tally.constraint.members:
                hard, soft = self.tallies_of[member]
                (soft if tally.constraint.weight else hard).append(tally)
        self.taken: dict[int, int] = {}
        self.used: dict[str, _Uses] = {
            key: collections.Counter() for key in view.spots}
        self.touched: _Uses = collections.Counter()
        self.broken = [0]
        self.chosen: dict[int, int] = {}
        self.best: list[int] | None = None
        self.seen: dict[tuple[int, _State], tuple[int, ...]] = {}
        self.steps = 0

    def run(self, steps: search_budget.Steps, most: float, least: int = 0,
            ) -> Answer:
        """Search and deduct the steps taken.

        :param most: the limit of steps
        :param least: the steps to take even if fewer are left
        """
        self.steps = limit = int(max(least, min(most, steps.left)))
        self._descend(0, (0,) * (4 + len(self.view.sizes)))
        steps.left -= limit - self.steps
        if self.best is None:
            return Answer(None, gave_up=(max(limit, steps.limit)
                                         if self.steps <= 0 else 0))
        return Answer(tuple(self.best), cost.cost(self.view, self.best))

    def _descend(self, position: int, cost: tuple[int, ...]) -> bool:
        """Assign the demands from a position on; True ends the search."""
        if position == len(self.order):
            self.best = [self.chosen[index]
                         for index in range(len(self.demands))]
            if self.bound is None:
                return True
            self.bound = cost[:len(self.floor)]
            return False
        if self.steps <= 0:
            return True
        self.steps -= 1
        if self._was_explored(position, cost):
            return False
        member = self.order[position]
        for added, index in self._candidates(member):
            reached = tuple(map(operator.add, cost, added))
            if self.bound is not None and tuple(
                    map(max, reached, self.floor)) >= self.bound:
                continue
            self._push(member, index)
            is_over = self._descend(position + 1, reached)
            self._pop(member, index)
            if is_over:
                return True
        if self.bound is None:
            self.seen[position, self._state()] = ()
        return False

    def _was_explored(self, position: int, cost: tuple[int, ...]) -> bool:
        """Whether an equal state was searched already, at no more cost."""
        if self.bound is None:
            # Save computing the state before any attempt has failed.
            return bool(self.seen) and (position, self._state()) in self.seen
        state = position, self._state()
        if state in self.seen and self.seen[state] <= cost:
            return True
        self.seen[state] = cost
        return False

    def _candidates(self, member: int) -> list[tuple[tuple[int, ...], int]]:
        """Return the sources to try, the best first, with their cost."""
        amount = self.demands[member].amount
        hard, soft = self.tallies_of[member]
        twins: set[collections.abc.Hashable] = set()
        candidates = []
        for index in self.domains[member]:
            free = self.view.sources[index].free - self.taken.get(index, 0)
            if free < amount:
                continue
            twin = self._twin_key(index)
            if twin in twins:
                continue
            twins.add(twin)
            if all(tally.allows(index) for tally in hard):
                candidates.append((self._added_cost(soft, index),
                                   self._packing(index, member), index))
        candidates.sort()
        return [(added, index) for added, _packing, index in candidates]

    def _added_cost(self, soft: list[_Tally], index: int) -> tuple[int, ...]:
        return (sum(tally.penalty(index) for tally in soft),
                *(self.view.spots[key][index] not in self.used[key]
                  for key in csp.PARTS),
                *(self._sign * number for number in self.view.broken(
                    (self.view.sources[index].device,), self.broken[-1])))

    def _packing(self, index: int, member: int) -> list[int]:
        sign = self._sign
        device = self.view.sources[index].device
        left = [self._lack(index, member),
                sign * (self.view.fresh[device] and
                        device not in self.used['device'])]
        for key in ('device', csp.LINKS, 'pcie_switch', 'numa_node'):
            spot = self.view.spots[key][index]
            free = 0 if spot in self.used[key] else self.view.free[key][spot]
            left.append(sign * (free - self.demands[member].amount))
        return left

    def _lack(self, index: int, member: int) -> int:
        """Return how many units the NUMA node of a source lacks.

        So a server that needs several nodes fills the largest one.
        """
        node = self.view.spots['numa_node'][index]
        if self._sign < 0 or node in self.used['numa_node']:
            return 0
        return max(0, self.needs[member] - self.view.free['numa_node'][node])

    def _twin_key(self, index: int) -> collections.abc.Hashable:
        """Return a key that is equal for sources that are equally good now."""
        path = self.view.tree.paths[index]
        if not path:
            return index
        depth = 0
        while depth < 4 and path[depth] in self.touched:
            depth += 1
        return (path[depth - 1] if depth else -1,
                self.view.tree.shapes[index][depth:],
                self.taken.get(index, 0))

    def _state(self) -> _State:
        """Return a key that is equal for states that go on alike."""
        paths, shapes = self.view.tree.paths, self.view.tree.shapes
        if not self.view.tree.shapes:
            return (frozenset(self.taken.items()), self._open_values(),
                    self._spots() if self.bound else None)
        marks = self._marks()
        below: dict[tuple[int, ...], list[_Part]] = (
            collections.defaultdict(list))
        for index, amount in self.taken.items():
            below[paths[index]].append((shapes[index][4], amount))
        shape = {paths[index]: shapes[index] for index in self.taken}
        for depth in (3, 2, 1, 0):
            above: dict[tuple[int, ...], list[_Part]] = (
                collections.defaultdict(list))
            for path, parts in below.items():
                above[path[:-1]].append(
                    (shape[path][depth], tuple(sorted(parts)),
                     marks.get(path[-1], ())))
                shape[path[:-1]] = shape[path]
            below = above
        return tuple(sorted(below.get((), ()))), self._open_values(
            only=csp.LINKS)

    def _marks(self) -> dict[int, tuple[int, ...]]:
        """Return, by part, the incomplete constraints with members in it."""
        marks: dict[int, dict[int, None]] = collections.defaultdict(dict)
        for number, tally in enumerate(self.tallies):
            if not tally.is_open or not (
                    tally.constraint.weight == 0 or self.bound):
                continue
            depth = (_DEVICE if tally.constraint.key == csp.LINKS else
                     csp.LEVELS.index(tally.constraint.key))
            for member in tally.constraint.members:
                if member in self.chosen:
                    index = self.chosen[member]
                    path = self.view.tree.paths[index]
                    for level in {depth, _DEVICE if isinstance(
                            tally.values[index], tuple) else depth}:
                        marks[path[level]][number] = None
        return {part: tuple(sorted(numbers))
                for part, numbers in marks.items()}

    def _open_values(self, only: str | None = None) -> _State:
        return tuple(
            (number, frozenset(tally.counts))
            for number, tally in enumerate(self.tallies)
            if tally.is_open and (tally.constraint.weight == 0 or self.bound)
            and only in (None, tally.constraint.key))

    def _spots(self) -> _State:
        return tuple(frozenset(self.used[key])
                     for key in csp.PARTS)

    def _push(self, member: int, index: int) -> None:
        self.chosen[member] = index
        self.taken[index] = (self.taken.get(index, 0)
                             + self.demands[member].amount)
        for tally in self.tallies_of[member][0] + self.tallies_of[member][1]:
            tally.push(index)
        for key, spots in self.view.spots.items():
            self.used[key][spots[index]] += 1
        self.broken.append(self.broken[-1] | self.view.whole.get(
            self.view.sources[index].device, 0))
        self.touched.update(self.view.tree.paths[index])

    def _pop(self, member: int, index: int) -> None:
        del self.chosen[member]
        self.taken[index] -= self.demands[member].amount
        if not self.taken[index]:
            del self.taken[index]
        for tally in self.tallies_of[member][0] + self.tallies_of[member][1]:
            tally.pop(index)
        for key, spots in self.view.spots.items():
            _drop(self.used[key], spots[index])
        self.broken.pop()
        for part in self.view.tree.paths[index]:
            _drop(self.touched, part)


def _drop(counter: _Uses, key: csp.Spot) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _order(view: csp.View, domains: csp.Domains,
           constraints: tuple[csp.Constraint, ...]) -> list[int]:
    """Return the demands in order: those with few sources first.

    The members of a hard "same" constraint follow each other.
    """
    def ease(member: int) -> tuple[int, int, int]:
        return (len(domains[member]),
                -view.problem.demands[member].amount, member)

    groups = [sorted(constraint.members, key=ease, reverse=True)
              for constraint in sorted(
                  constraints, key=lambda each: -len(each.members))
              if constraint.same and not constraint.weight]
    waiting = sorted(range(len(domains)), key=ease, reverse=True)
    order: dict[int, None] = {}
    while waiting:
        member = waiting.pop()
        if member in order:
            continue
        order[member] = None
        # The last group added is taken first: the smallest.
        for group in [group for group in groups if member in group]:
            groups.remove(group)
            waiting += group
    return list(order)


#: :func:`solve` with a cache.
cached = search_budget.Remembered(solve)

# SPDX-License-Identifier: Apache-2.0
"""A row for every demand, such that the wishes hold: the search.

The search goes demand by demand, the hardest first, and comes back where it
cannot go on. What keeps it short: values that cannot hold all the members of
a wish are struck off before (:mod:`.propagation`); of rows that are as good as
each other one is tried; a state from which there was no way on is not entered
again, nor one like it.
"""

import collections
import collections.abc
import dataclasses
import math
import operator

from nova_accel.core.solver import cost
from nova_accel.core.solver import csp
from nova_accel.core.solver import propagation
from nova_accel.core.solver import search_budget

#: Most demands, each of which takes the search a call deeper: Python has a
#: thousand in all, of which who asks has used some.
MAX_DEMANDS = 512

# Steps for a better way, where one that keeps the rules is known: for the
# soft rules, for closeness, inside of one part of the host, and for fewer sets
# that break.
_MAX_BETTER_STEPS, _MAX_CLOSER_STEPS, _MAX_INSIDE_STEPS = 1_000, 100, 100
_MAX_WHOLE_STEPS = 300
# Steps for the first way: if it is to keep all soft rules, and while links
# count though no hard rule names them.
_MAX_KEEPING_STEPS, _MAX_JOINED_STEPS = 200, 500


@dataclasses.dataclass(frozen=True)
class Answer:
    """The index of a row for every demand, or None if there is no way.

    :param cost: penalty of the soft rules; NUMA nodes, roots and switches;
        then how badly it packs: the lower the better, each in turn
    :param gave_up: where there may be a way after all, the steps after which
        it was not looked for any more; else 0
    :param is_final: whether more steps would not change it
    """

    sources: tuple[int, ...] | None
    cost: tuple[int, ...] = ()
    gave_up: int = 0
    is_final: bool = True


def solve(problem: csp.Problem, steps: search_budget.Steps) -> Answer:
    """The best way found that keeps all hard wishes.

    There is one whenever one exists, unless steps run out. It is the best by
    its soft wishes and closeness for all but large requests. The first way is
    looked for in at least two steps for each demand, whatever was given.
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
    best = _keeping_all(view, steps) or _first(
        view, domains, floor, problem.constraints, steps,
        _MAX_JOINED_STEPS if can_ignore_links else math.inf)
    if best.gave_up and can_ignore_links:
        best = _without_links(view, domains, steps)
    if best.sources is None:
        return best
    best = _improved(view, domains, floor, best, steps)
    return dataclasses.replace(best, is_final=not steps.are_over)


def _keeping_all(view, steps) -> Answer | None:
    """A way that keeps the soft wishes as well, if one is found soon."""
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


def _first(view, domains, floor, constraints, steps, most=math.inf) -> Answer:
    """A way: inside of a small part of the host, or anywhere.

    :param floor: what no answer costs less than
    :param most: steps, if not as many as there are
    """
    best = None
    if len(domains) > 1:
        for inside in cost.inside(view, domains):
            if steps.left <= steps.limit // 2:
                break
            best = _better(best, _Search(
                view, inside, constraints=constraints).run(
                    steps, _MAX_INSIDE_STEPS))
    if best is not None and best.cost[:4] == floor:
        return best
    search = _Search(view, domains, constraints=constraints)
    if best is None:
        return search.run(steps, most, 2 * len(domains))
    return _better(best, search.run(steps, _MAX_INSIDE_STEPS))


def _without_links(view, domains, steps) -> Answer:
    """The first way, as if no devices were linked.

    Links tell parts of the host from each other that are otherwise as good as
    each other. No hard wish is about links, so the domains are the same.
    """
    plain = csp.View(dataclasses.replace(view.problem, partitions=(),
                                                 islands=()))
    answer = _first(plain, domains, cost.floor(plain, domains),
                    view.problem.constraints, steps)
    if answer.sources is None:
        return answer
    return dataclasses.replace(answer, cost=cost.cost(view, answer.sources))


def _improved(view, domains, floor, best: Answer, steps) -> Answer:
    """A better way, where one is found in few steps."""
    if best.cost[:4] != floor:
        best = _better(best, _Search(view, domains, floor, best.cost).run(
            steps, _MAX_BETTER_STEPS if best.cost[0] > floor[0] else
            _MAX_CLOSER_STEPS))
    if view.whole and view.problem.pack:
        floor += cost.least_broken(view, domains)
        if best.cost[:len(floor)] > floor:
            best = _better(best, _Search(
                view, domains, floor, best.cost).run(steps, _MAX_WHOLE_STEPS))
    return best


def is_possible(view: csp.View,
                constraints: collections.abc.Sequence[csp.Constraint],
                steps: search_budget.Steps) -> bool:
    """Whether there is any way that keeps these wishes, whatever it costs.

    Also True if that is not known when the steps are over.
    """
    constraints = csp.merged(constraints)
    domains = propagation.narrow(view, constraints)
    if domains is None:
        return False
    answer = _Search(view, domains, constraints=constraints).run(
        steps, steps.left, 2 * len(domains))
    return answer.sources is not None or bool(answer.gave_up)


def _better(one: Answer | None, other: Answer) -> Answer | None:
    if other.sources is None:
        return one
    return other if one is None or other.cost < one.cost else one


class _Tally:
    """A rule while members are given rows one after the other."""

    def __init__(self, view: csp.View, constraint: csp.Constraint):
        self.view, self.constraint = view, constraint
        self.values = (view.wished(constraint) if constraint.weight or (
            constraint.same and constraint.key == csp.LINKS)
            else view.values[constraint.key])
        self.counts: dict = {}
        self.left = len(constraint.members)
        self.given = 0
        self._off = ([view.off(constraint, index)
                      for index in range(len(view.sources))]
                     if constraint.guest or constraint.network else None)
        self._misses: dict = {}

    @property
    def is_open(self) -> bool:
        return 0 < self.given < len(self.constraint.members)

    def allows(self, index: int) -> bool:
        value, counts = self.values[index], self.counts
        if not self.constraint.same:
            return value not in counts
        if not counts or value in counts and len(counts) == 1:
            return True
        return self.constraint.key == csp.LINKS and self.view.may_grow(
            counts.keys() | {value}, self.left - 1)

    def penalty(self, index: int) -> int:
        """What a row adds to the penalty."""
        value = self.values[index]
        if not self.constraint.same:
            added = int(value in self.counts)
        elif self.constraint.key != csp.LINKS:
            added = int(self.given and value not in self.counts)
        else:
            there = frozenset(self.counts)
            added = self._missed(there | {value}, self.left - 1)
            if there:
                added -= self._missed(there, self.left)
        if self._off:
            added += self._off[index]
        return self.constraint.weight * added

    def _missed(self, devices: frozenset[int], more: int) -> int:
        """By how much these devices miss being joined."""
        question = devices, more
        if question not in self._misses:
            self._misses[question] = self.view.unmet(
                self.constraint, devices,
                len(self.constraint.members) - more, more)
        return self._misses[question]

    def push(self, index: int) -> None:
        value = self.values[index]
        self.counts[value] = self.counts.get(value, 0) + 1
        self.given += 1
        self.left -= 1

    def pop(self, index: int) -> None:
        value = self.values[index]
        self.counts[value] -= 1
        if not self.counts[value]:
            del self.counts[value]
        self.given -= 1
        self.left += 1


class _Search:
    """One search.

    :param floor: what no answer costs less than
    :param below: the cost to be undercut, in as much as the floor speaks of;
        without it the first way will do
    :param wishes: those that count, where not all of the problem's do
    """

    def __init__(self, view: csp.View, domains, floor=(), below=None,
                 constraints=None):
        self.view, self.domains, self.floor = view, domains, floor
        self.demands = view.problem.demands
        self.below = below and below[:len(floor)]
        if constraints is None:
            constraints = view.problem.constraints
        self._sign = 1 if view.problem.pack else -1
        self.order = _order(view, domains, constraints)
        self.tallies = [_Tally(view, constraint) for constraint in constraints]
        self.of = [([], []) for _demand in self.demands]
        for tally in self.tallies:
            for member in tally.constraint.members:
                self.of[member][bool(tally.constraint.weight)].append(tally)
        self.taken: dict[int, int] = {}
        self.used = {key: collections.Counter() for key in view.spots}
        self.touched: collections.Counter = collections.Counter()
        self.broken = [0]
        self.chosen: dict[int, int] = {}
        self.best: list[int] | None = None
        self.seen: dict = {}
        self.steps = 0

    def run(self, steps: search_budget.Steps, most: float, least: int = 0,
            ) -> Answer:
        """What is found in so many steps at most, which are taken.

        :param least: how many it gets if fewer are left
        """
        self.steps = most = int(max(least, min(most, steps.left)))
        self._go(0, (0,) * (4 + len(self.view.sizes)))
        steps.left -= most - self.steps
        if self.best is None:
            return Answer(None, gave_up=(max(most, steps.limit)
                                         if self.steps <= 0 else 0))
        return Answer(tuple(self.best), cost.cost(self.view, self.best))

    def _go(self, position: int, cost: tuple[int, ...]) -> bool:
        """Go on from here; True if the search is over."""
        if position == len(self.order):
            self.best = [self.chosen[index]
                         for index in range(len(self.demands))]
            if self.below is None:
                return True
            self.below = cost[:len(self.floor)]
            return False
        if self.steps <= 0:
            return True
        self.steps -= 1
        if self._is_known(position, cost):
            return False
        member = self.order[position]
        for added, index in self._ways(member):
            reached = tuple(map(operator.add, cost, added))
            if self.below is not None and tuple(
                    map(max, reached, self.floor)) >= self.below:
                continue
            self._push(member, index)
            over = self._go(position + 1, reached)
            self._pop(member, index)
            if over:
                return True
        if self.below is None:
            self.seen[position, self._state()] = ()
        return False

    def _is_known(self, position, cost) -> bool:
        """Whether what comes from here was looked at already.

        Which way led here does not matter, only what it came to.
        """
        if self.below is None:
            # Where no way has failed yet, none is known.
            return bool(self.seen) and (position, self._state()) in self.seen
        state = position, self._state()
        if state in self.seen and self.seen[state] <= cost:
            return True
        self.seen[state] = cost
        return False

    def _ways(self, member):
        amount = self.demands[member].amount
        hard, soft = self.of[member]
        twins: set = set()
        ways = []
        for index in self.domains[member]:
            free = self.view.sources[index].free - self.taken.get(index, 0)
            if free < amount:
                continue
            twin = self._twin(index)
            if twin in twins:
                continue
            twins.add(twin)
            if all(tally.allows(index) for tally in hard):
                ways.append((self._added(soft, index),
                             self._packing(index, amount), index))
        ways.sort()
        return [(added, index) for added, _packing, index in ways]

    def _added(self, soft, index):
        return (sum(tally.penalty(index) for tally in soft),
                *(self.view.spots[key][index] not in self.used[key]
                  for key in csp.LEVELS[:3]),
                *(self._sign * number for number in self.view.broken(
                    (self.view.sources[index].device,), self.broken[-1])))

    def _packing(self, index, amount):
        sign = self._sign
        device = self.view.sources[index].device
        left = [sign * (self.view.fresh[device] and
                        device not in self.used['device'])]
        for key in ('device', csp.LINKS, 'pcie_switch', 'numa_node'):
            spot = self.view.spots[key][index]
            free = 0 if spot in self.used[key] else self.view.free[key][spot]
            left.append(sign * (free - amount))
        return left

    def _twin(self, index):
        """The same for rows that are as good as each other, as it stands."""
        path = self.view.tree.paths[index]
        if not path:
            return index
        depth = 0
        while depth < 4 and path[depth] in self.touched:
            depth += 1
        return (path[depth - 1] if depth else -1,
                self.view.tree.shapes[index][depth:],
                self.taken.get(index, 0))

    def _state(self):
        """What matters for the rest: the same for what looks alike."""
        paths, shapes = self.view.tree.paths, self.view.tree.shapes
        if not self.view.tree.shapes:
            return (frozenset(self.taken.items()), self._open_values(),
                    self._spots() if self.below else None)
        marks = self._marks()
        below: dict = collections.defaultdict(list)
        for index, amount in self.taken.items():
            below[paths[index]].append((shapes[index][4], amount))
        shape = {paths[index]: shapes[index] for index in self.taken}
        for depth in (3, 2, 1, 0):
            above: dict = collections.defaultdict(list)
            for path, parts in below.items():
                above[path[:-1]].append(
                    (shape[path][depth], tuple(sorted(parts)),
                     marks.get(path[-1], ())))
                shape[path[:-1]] = shape[path]
            below = above
        return tuple(sorted(below.get((), ()))), self._open_values(
            only=csp.LINKS)

    def _marks(self) -> dict[int, tuple[int, ...]]:
        """Where the members of rules are that are not complete yet."""
        marks: dict[int, dict] = collections.defaultdict(dict)
        for number, tally in enumerate(self.tallies):
            if not tally.is_open or not (
                    tally.constraint.weight == 0 or self.below):
                continue
            depth = (3 if tally.constraint.key == csp.LINKS else
                     csp.LEVELS.index(tally.constraint.key))
            for member in tally.constraint.members:
                if member in self.chosen:
                    index = self.chosen[member]
                    path = self.view.tree.paths[index]
                    for level in {depth, 3 if isinstance(
                            tally.values[index], tuple) else depth}:
                        marks[path[level]][number] = None
        return {part: tuple(sorted(numbers))
                for part, numbers in marks.items()}

    def _open_values(self, only=None):
        return tuple(
            (number, frozenset(tally.counts))
            for number, tally in enumerate(self.tallies)
            if tally.is_open and (tally.constraint.weight == 0 or self.below)
            and only in (None, tally.constraint.key))

    def _spots(self):
        return tuple(frozenset(self.used[key])
                     for key in csp.LEVELS[:3])

    def _push(self, member, index):
        self.chosen[member] = index
        self.taken[index] = (self.taken.get(index, 0)
                             + self.demands[member].amount)
        for tally in self.of[member][0] + self.of[member][1]:
            tally.push(index)
        for key, spots in self.view.spots.items():
            self.used[key][spots[index]] += 1
        self.broken.append(self.broken[-1] | self.view.whole.get(
            self.view.sources[index].device, 0))
        self.touched.update(self.view.tree.paths[index])

    def _pop(self, member, index):
        del self.chosen[member]
        self.taken[index] -= self.demands[member].amount
        if not self.taken[index]:
            del self.taken[index]
        for tally in self.of[member][0] + self.of[member][1]:
            tally.pop(index)
        for key, spots in self.view.spots.items():
            _drop(self.used[key], spots[index])
        self.broken.pop()
        for part in self.view.tree.paths[index]:
            _drop(self.touched, part)


def _drop(counter, key) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _order(view, domains, constraints) -> list[int]:
    """The demands: those with few ways first, those of a wish together."""
    def ease(member):
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
        # The last to be put on top is the first to be taken: small ones.
        for group in [group for group in groups if member in group]:
            groups.remove(group)
            waiting += group
    return list(order)


#: The same as :func:`solve`, remembered.
cached = search_budget.remembered(solve)

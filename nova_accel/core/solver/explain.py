# SPDX-License-Identifier: Apache-2.0
"""Explain why a problem has no answer, by solving smaller problems."""

import collections
import collections.abc
import dataclasses

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.solver import csp
from nova_accel.core.solver import propagation
from nova_accel.core.solver import search
from nova_accel.core.solver import search_budget

#: Words for one place and for several, by key of a rule.
PLACES = {**{level.key: (level.title, level.plural)
             for level in model.LEVELS},
          'device': ('Device', 'Devices'),
          'link_domain': ('link domain', 'link domains')}


# Names of resource classes or traits, by number.
_Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Shortage:
    """What a host lacks, in numbers that can be compared between hosts.

    :param asked: the units, in words: ``4 free CUSTOM_GPU with CUSTOM_NVLINK``
    :param wanted: how many units; for a rule "distinct", how many places
    :param most: how many of them the host has
    :param near: what else has to be at the place, ``guest`` or ``network``
    :param is_unknown: whether the place of some devices is unknown
    :param have_failed: whether links of some devices have failed
    """

    asked: str
    wanted: int
    most: int
    near: tuple[str, ...] = ()
    is_unknown: bool = False
    have_failed: bool = False


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a problem has no answer.

    :param kind: ``rule`` if one constraint alone cannot be kept
    :param words: a sentence
    :param constraint: the index of that constraint
    """

    kind: str
    words: str
    shortage: Shortage | None = None
    constraint: int | None = None


def explain(problem: csp.Problem,
            classes: collections.abc.Sequence[str],
            traits: collections.abc.Sequence[str],
            budget: search_budget.Budget) -> Reason:
    """Explain why a problem has no answer.

    :param classes: names of resource classes, by number
    :param traits: names of traits, by number
    """
    return _explain(problem, tuple(classes), tuple(traits), budget)


def gave_up(steps: int) -> str:
    """Return a sentence for a host whose search gave up."""
    words = ('the search for devices that keep its rules gave up after '
             + errors.count(steps, 'step'))
    if steps < search_budget.MAX_STEPS:
        words += '; other hosts used the rest of the request\'s steps'
    return words


@search_budget.Remembered
def _explain(problem: csp.Problem, classes: _Names, traits: _Names,
             steps: search_budget.Steps) -> Reason:
    view = csp.View(problem)
    if not search.is_possible(view, (), steps):
        return _shortage(view, classes, traits)
    possible = set()
    for number, constraint in enumerate(problem.constraints):
        # Solve constraints about equal demands once.
        question = dataclasses.replace(constraint, members=()), tuple(
            problem.demands[member] for member in constraint.members)
        if constraint.weight or question in possible:
            continue
        if not search.is_possible(view, (constraint,), steps):
            return _why(view, constraint, number, classes, traits)
        possible.add(question)
    return Reason('together', 'each of its rules can be kept alone, but not '
                  'all together')


def _shortage(view: csp.View, classes: _Names, traits: _Names) -> Reason:
    """Return the reason where units or traits are short."""
    demands = view.problem.demands
    wanted: collections.Counter[int] = collections.Counter()
    for demand in demands:
        wanted[demand.resource_class] += demand.amount
    for name, amount in wanted.items():
        free = sum(source.free for source in view.sources
                   if source.resource_class == name)
        if free < amount:
            return Reason(
                'units', f'wants {errors.count(amount, "unit")} of '
                f'{classes[name]}, {_are_free(free)}',
                Shortage(f'{amount} free {classes[name]}', amount, free))
    for need in propagation.needs(
            view, propagation.fitting(view), range(len(demands))):
        shortage = _shortage_of(view, need, classes, traits)
        if shortage:
            return shortage
    # Equal groups fit, but not together with the others.
    return Reason(
        'traits' if any(demand.traits for demand in demands) else 'units',
        'the free units cannot serve all its groups at once')


def _shortage_of(view: csp.View, need: propagation.Need, classes: _Names,
                 traits: _Names) -> Reason | None:
    """Return the same for equal demands alone, or None."""
    demand, count, sources = need
    name = classes[demand.resource_class]
    words = 'wants ' + (
        f'{errors.count(count, "unit")} of {name}' if demand.amount == 1 else
        _from_one_region(demand, count, f'units of {name}'))
    most = propagation.units(view, demand, (
        index for index, source in enumerate(view.sources)
        if source.resource_class == demand.resource_class))
    if most < count:
        return Reason(
            'units', f'{words}, {_are_free(most)}',
            Shortage(_times(demand, count, classes), count, most))
    most = propagation.units(view, demand, sources)
    if most < count:
        having = _having(demand, traits)
        return Reason(
            'traits', f'{words}{having}, {_are_free(most)}',
            Shortage(_times(demand, count, classes) + having, count, most))
    return None


def _times(demand: csp.Demand, count: int, classes: _Names) -> str:
    name = classes[demand.resource_class]
    return (f'{count} free {name}' if demand.amount == 1 else
            _from_one_region(demand, count, f'free {name}'))


def _from_one_region(demand: csp.Demand, count: int, what: str) -> str:
    amount = f'{demand.amount} {what}'
    return (f'{amount} from one Region' if count == 1 else
            f'{count} times {amount}, each from one Region')


def _are_free(number: int) -> str:
    return f'{errors.count(number, "is", "are")} free'


def _having(demand: csp.Demand, traits: _Names) -> str:
    """Return the words for the traits of a demand, '' for none."""
    return ' ' * bool(demand.traits) + ' and '.join(
        f'{"with" if is_required else "without"} {traits[trait]}'
        for trait, is_required in demand.traits)


def _asked(demands: collections.abc.Iterable[csp.Demand], classes: _Names,
           traits: _Names) -> str:
    """Return the words for the units of some demands."""
    amounts: collections.Counter[str] = collections.Counter()
    for demand in demands:
        amounts[classes[demand.resource_class]
                + _having(demand, traits)] += demand.amount
    return ' and '.join(f'{amount} free {name}'
                        for name, amount in amounts.items())


def _why(view: csp.View, constraint: csp.Constraint, number: int,
         classes: _Names, traits: _Names) -> Reason:
    """Return the reason for a constraint that cannot be kept alone."""
    problem = view.problem
    most = _most(view, constraint)
    words = _at_most(constraint, most)
    near = {name: nodes for asked, name, nodes in (
        (constraint.guest, 'guest', problem.guest),
        (constraint.network, 'network', problem.network))
        if asked and nodes is not None}
    for name, nodes in near.items():
        words += f'; the {name} is on ' + (
            'NUMA node ' + ' and '.join(map(str, sorted(nodes)))
            if nodes else 'no NUMA node')
    is_unknown = constraint.key in csp.UNCERTAIN and any(
        source.parts[csp.PARTS.index(constraint.key)] is None
        for source in problem.sources)
    if is_unknown:
        words += (f'; the {PLACES[constraint.key][0]} of some devices of the '
                  'host is unknown')
    have_failed = constraint.key == csp.LINKS and problem.has_failed_links
    if have_failed:
        words += '; links of some devices of the host have failed'
    members = [problem.demands[member] for member in constraint.members]
    amounts = [demand.amount if constraint.same else 1 for demand in members]
    return Reason('rule', words, Shortage(
        _asked(members, classes, traits), sum(amounts), sum(amounts[:most]),
        tuple(near), is_unknown, have_failed), number)


def _at_most(constraint: csp.Constraint, most: int) -> str:
    """Return the words for how many members can keep a constraint."""
    one, several = PLACES[constraint.key]
    if not constraint.same:
        return 'free units are on only ' + errors.count(most, one, several)
    if constraint.key == csp.LINKS:
        return ('no legal set of linked devices is free for '
                + errors.count(len(constraint.members), 'group'))
    if len(constraint.members) == 1:
        return 'no unit is free there'
    return f'at most {errors.count(most, "fits", "fit")} on one {one}'


def _most(view: csp.View, constraint: csp.Constraint) -> int:
    """Return how many members can have one value, or distinct values."""
    domains = [[index for index in domain
                if propagation.may_ever(view, constraint, index)]
               for domain in propagation.fitting(view)]
    if not constraint.same:
        return propagation.matching(view, constraint, domains)
    most = 0
    for sources in propagation.places(view, constraint, domains):
        while most < len(constraint.members) and propagation.suffices(
                view, propagation.needs(view, domains,
                                        constraint.members[:most + 1]),
                sources):
            most += 1
    return most

# SPDX-License-Identifier: Apache-2.0
"""Explain why a problem has no answer, by solving smaller problems."""

import collections
import collections.abc
import dataclasses

from nova_accel.core import model
from nova_accel.core.solver import csp
from nova_accel.core.solver import propagation
from nova_accel.core.solver import search
from nova_accel.core.solver import search_budget

#: The singular and the plural of what a rule can be about, by its key.
PLACES = {**{level.key: (level.title, level.plural)
             for level in model.LEVELS},
          'device': ('Device', 'Devices'),
          'link_domain': ('link domain', 'link domains')}


def explain(problem: csp.Problem,
            classes: collections.abc.Sequence[str],
            traits: collections.abc.Sequence[str],
            budget: search_budget.Budget,
            ) -> tuple[str, int | None, str]:
    """Explain why a problem has no answer.

    :param classes: names of resource classes, by number
    :param traits: names of traits, by number
    :returns: the kind of the reason (``rule`` if one constraint alone cannot
        be kept), the index of that constraint or None, and a sentence
    """
    return _explain(problem, tuple(classes), tuple(traits), budget)


def gave_up(steps: int) -> str:
    """Return a sentence for a host whose search gave up."""
    words = ('the search for devices that keep its rules gave up after '
             f'{steps} steps')
    if steps < search_budget.MAX_STEPS:
        words += '; other hosts used the rest of the request\'s steps'
    return words


@search_budget.remembered
def _explain(problem, classes, traits, steps):
    view = csp.View(problem)
    if not search.is_possible(view, (), steps):
        kind, words = _shortage(view, classes, traits)
        return kind, None, words
    possible = set()
    for number, constraint in enumerate(problem.constraints):
        # Solve constraints about equal demands once.
        question = dataclasses.replace(constraint, members=tuple(
            problem.demands[member] for member in constraint.members))
        if constraint.weight or question in possible:
            continue
        if not search.is_possible(view, (constraint,), steps):
            return 'rule', number, _why(view, constraint)
        possible.add(question)
    return ('together', None,
            'each of its rules can be kept alone, but not all together')


def _shortage(view, classes, traits) -> tuple[str, str]:
    """Return kind and sentence where units or traits are short."""
    demands = view.problem.demands
    wanted = collections.Counter()
    for demand in demands:
        wanted[demand.resource_class] += demand.amount
    for name, amount in wanted.items():
        free = sum(source.free for source in view.sources
                   if source.resource_class == name)
        if free < amount:
            return 'units', (f'wants {amount} units of {classes[name]}, '
                             f'{free} are free')
    for need in propagation.needs(
            view, propagation.fitting(view), range(len(demands))):
        shortage = _shortage_of(view, need, classes, traits)
        if shortage:
            return shortage
    # Equal groups fit, but not together with the others.
    return ('traits' if any(demand.traits for demand in demands) else 'units',
            'the free units cannot serve all its groups at once')


def _shortage_of(view, need, classes, traits) -> tuple[str, str] | None:
    """Return the same for equal demands alone, or None."""
    demand, count, sources = need
    name = classes[demand.resource_class]
    words = (f'wants {count} units of {name}' if demand.amount == 1 else
             f'wants {count} times {demand.amount} units of {name}, each from '
             'one Region')
    most = propagation.units(view, demand, (
        index for index, source in enumerate(view.sources)
        if source.resource_class == demand.resource_class))
    if most < count:
        return 'units', f'{words}, {most} are free'
    most = propagation.units(view, demand, sources)
    if most < count:
        return 'traits', (words + ' ' + ' and '.join(
            f'{"with" if is_required else "without"} {traits[trait]}'
            for trait, is_required in demand.traits) + f', {most} are free')
    return None


def _why(view, constraint) -> str:
    """Return a sentence for a constraint that cannot be kept alone."""
    problem = view.problem
    one, several = PLACES[constraint.key]
    most = most_members(view, constraint)
    if not constraint.same:
        words = ('free units are on only '
                 f'{most} {one if most == 1 else several}')
    elif constraint.key == csp.LINKS:
        words = ('no legal set of linked devices is free for '
                 f'{len(constraint.members)} groups')
    elif len(constraint.members) == 1:
        words = 'no unit is free there'
    else:
        words = f'at most {most} fit on one {one}'
    for asked, name, nodes in ((constraint.guest, 'guest', problem.guest),
                               (constraint.network, 'network',
                                problem.network)):
        if asked and nodes is not None:
            words += f'; the {name} is on ' + (
                'NUMA node ' + ' and '.join(map(str, sorted(nodes)))
                if nodes else 'no NUMA node')
    if constraint.key in csp.UNCERTAIN and any(
            source.parts[csp.PARTS.index(constraint.key)] is None
            for source in problem.sources):
        words += f'; the {one} of some devices of the host is unknown'
    return words


def most_members(view: csp.View, constraint: csp.Constraint) -> int:
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

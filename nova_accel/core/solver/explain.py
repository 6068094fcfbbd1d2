# SPDX-License-Identifier: Apache-2.0
"""Why nothing fits, found by asking for less, and said in words."""

import collections
import collections.abc
import dataclasses

from nova_accel.core.solver import csp
from nova_accel.core.solver import propagation
from nova_accel.core.solver import search
from nova_accel.core.solver import search_budget

_PLACES = {'numa_node': ('NUMA node', 'NUMA nodes'),
           'pcie_root': ('PCIe root', 'PCIe roots'),
           'pcie_switch': ('PCIe switch', 'PCIe switches'),
           'device': ('Device', 'Devices'),
           'link_domain': ('link domain', 'link domains')}


def explain(problem: csp.Problem,
            classes: collections.abc.Sequence[str],
            traits: collections.abc.Sequence[str],
            budget: search_budget.Budget,
            ) -> tuple[str, int | None, str]:
    """What is in the way of a problem that has no answer.

    :param classes: names by number
    :param traits: the same
    :returns: a word for its kind (``rule`` for one wish alone), that wish's
        index or None, and a sentence
    """
    return _explain(problem, tuple(classes), tuple(traits), budget)


def gave_up(steps: int) -> str:
    """What is said of a host that was not searched to its end."""
    words = f'no way to keep its rules was found in {steps} steps'
    if steps < search_budget.MAX_STEPS:
        words += '; other hosts took the rest of what a request has'
    return words


@search_budget.remembered
def _explain(problem, classes, traits, steps):
    view = csp.View(problem)
    if not search.is_possible(view, (), steps):
        kind, words = _shortage(view, classes, traits)
        return kind, None, words
    possible = set()
    for number, constraint in enumerate(problem.constraints):
        # Eight like pairs are one question.
        question = dataclasses.replace(constraint, members=tuple(
            problem.demands[member] for member in constraint.members))
        if constraint.weight or question in possible:
            continue
        if not search.is_possible(view, (constraint,), steps):
            return 'rule', number, _why(view, constraint)
        possible.add(question)
    return ('together', None,
            'its rules cannot be kept together, each alone can')


def _shortage(view, classes, traits) -> tuple[str, str]:
    problem = view.problem
    wanted = collections.Counter()
    for demand in problem.demands:
        wanted[demand.resource_class] += demand.amount
    for name, amount in wanted.items():
        free = sum(source.free for source in problem.sources
                   if source.resource_class == name)
        if free < amount:
            return 'units', (f'wants {amount} units of {classes[name]}, '
                             f'{free} are free')
    for demand, count, sources in propagation.needs(
            view, propagation.fitting(view), range(len(problem.demands))):
        words = (f'wants {count} units of {classes[demand.resource_class]}'
                 if demand.amount == 1 else
                 f'wants {count} times {demand.amount} units of '
                 f'{classes[demand.resource_class]}, each from one Region')
        most = propagation.units(view, demand, (
            index for index, source in enumerate(problem.sources)
            if source.resource_class == demand.resource_class))
        if most < count:
            return 'units', f'{words}, {most} are free'
        most = propagation.units(view, demand, sources)
        if most < count:
            return 'traits', (words + ' ' + ' and '.join(
                f'{"with" if wanted else "without"} {traits[trait]}'
                for trait, wanted in demand.traits) + f', {most} are free')
    # Each kind of group fits alone.
    return ('traits' if any(demand.traits for demand in problem.demands) else
            'units', 'its groups do not all fit into what is free')


def _why(view, constraint) -> str:
    problem = view.problem
    one, several = _PLACES[constraint.key]
    most = _most(view, constraint)
    if not constraint.same:
        words = f'there are free units on {most} {several} only'
    elif constraint.key == csp.LINKS:
        words = f'no legal set of {len(constraint.members)} is free'
    elif len(constraint.members) == 1:
        words = 'none is free there'
    else:
        words = f'the most on one {one} is {most}'
    for asked, name, nodes in ((constraint.guest, 'guest', problem.guest),
                               (constraint.network, 'network',
                                problem.network)):
        if asked and nodes is not None:
            words += f'; the {name} is on ' + (
                ' and '.join(map(str, sorted(nodes))) or 'none')
    if constraint.key in ('numa_node', 'pcie_root') and any(
            getattr(source, constraint.key) is None
            for source in problem.sources):
        words += (f'; the host does not say which {one} some of its devices '
                  'are on')
    return words


def _most(view, constraint) -> int:
    """How many members can have the same value, or different ones."""
    domains = [[index for index in domain
                if propagation.may_ever(view, constraint, index)]
               for domain in propagation.fitting(view)]
    if not constraint.same:
        return propagation.matching(view, constraint, domains)
    most = 0
    for sources in propagation.places(view, constraint, domains):
        while most < len(constraint.members) and propagation.holds(
                view, propagation.needs(view, domains,
                                        constraint.members[:most + 1]),
                sources):
            most += 1
    return most

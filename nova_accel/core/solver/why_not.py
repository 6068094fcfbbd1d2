# SPDX-License-Identifier: Apache-2.0
"""Say in one sentence why no host can serve a request.

The owner of a server may read the sentence: it has the rule that no host keeps
and what would fit, but no host, device address or other server::

    No host has 4 free CUSTOM_GPU_H100 on one NUMA node; the most on one is 2
"""

import collections
import collections.abc
import dataclasses
import itertools

from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.solver import arrange
from nova_accel.core.solver import csp
from nova_accel.core.solver import explain
from nova_accel.core.solver import propagation
from nova_accel.core.solver import search
from nova_accel.core.solver import search_budget

#: Most hosts that are looked at. Hosts that look alike take the time of one.
MAX_HOSTS = 256
#: Steps of the search on each host for a rule: some milliseconds.
STEPS = 250

#: The sentence if a host has the devices.
ELSE = ('Hosts with the devices lack something else that is asked for, such '
        'as vCPUs, memory or disk')


@dataclasses.dataclass(frozen=True)
class Host:
    """What a host offers for a request, as :func:`.arrange.arrange` takes it.

    A host with several possible contexts is one of these for each of them.
    """

    available: collections.abc.Sequence[arrange.AvailableUnits]
    around: arrange.HostContext = arrange.HostContext()


@dataclasses.dataclass(frozen=True)
class _Need:
    """Something that a request needs of a host.

    :param what: in words
    :param wanted: how many of it
    :param count: returns how many of it a host has; ``wanted`` if enough
    :param most: the words before the largest number that any host has; '' if
        that number says nothing
    """

    what: str
    wanted: int
    count: collections.abc.Callable[[csp.View], int]
    most: str = 'the most'


def reason(groups: collections.abc.Mapping[str, device_profile.Group],
           rules: collections.abc.Sequence[affinity.Rule],
           hosts: collections.abc.Iterable[Host]) -> str:
    """Return why none of the hosts can serve a request.

    It is the first of these that no host has: the units of a resource class,
    units with the traits of a group, devices that keep a required rule. If
    each of them is on some host, it is all of them together. If a host can
    serve the request after all, something else must be missing there.

    :param groups: as for :func:`.arrange.arrange`, as are the rules
    :param hosts: at most :data:`MAX_HOSTS` are looked at
    """
    objection = arrange.unusable(groups, rules)
    if objection:
        return f'No host can serve the request: {objection.objection}'
    first = list(itertools.islice(hosts, MAX_HOSTS + 1))
    views = [csp.View(problem) for problem in dict.fromkeys(
        arrange.problem(groups, host.available, rules, host.around)
        for host in first[:MAX_HOSTS] or [Host(())])]
    has = ('No host has' if len(first) <= MAX_HOSTS else
           f'None of the {MAX_HOSTS} hosts that were looked at has')
    needs = list(_needs(groups, rules, views[0].problem))
    for need in needs:
        most = max(map(need.count, views))
        if most < need.wanted:
            return f'{has} {need.what}' + (
                f'; {need.most} is {most}' if need.most else '')
    if any(map(_is_served, views)):
        return ELSE
    return f'{has} all at once: ' + ', '.join(dict.fromkeys(
        need.what for need in needs))


def _is_served(view) -> bool:
    """Whether a host can certainly serve the request."""
    steps = search_budget.Steps(STEPS)
    return search.is_possible(view, [
        constraint for constraint in view.problem.constraints
        if not constraint.weight], steps) and not steps.are_spent


def _needs(groups, rules, problem) -> collections.abc.Iterator[_Need]:
    """Yield what a request needs, the simplest first."""
    classes, traits = arrange.names(groups)
    units: collections.Counter[int] = collections.Counter()
    for demand in problem.demands:
        units[demand.resource_class] += demand.amount
    for number, wanted in units.items():
        yield _Need(f'{wanted} free {classes[number]}', wanted,
                    lambda view, number=number: sum(
                        source.free for source in view.sources
                        if source.resource_class == number))
    for demand, count in collections.Counter(problem.demands).items():
        if demand.amount > 1 or demand.traits:
            yield _Need(_units(demand, count, classes, traits), count,
                        lambda view, demand=demand: _served(view, demand))
    for rule, constraint in zip(arrange.applicable(groups, rules),
                                problem.constraints, strict=True):
        if not constraint.weight:
            yield _of_rule(rule, constraint, problem, classes, traits)


def _served(view, demand) -> int:
    """Return how often a host can meet a demand."""
    domains = propagation.fitting(view)
    number = view.problem.demands.index(demand)
    return propagation.units(view, demand, domains[number])


def _units(demand, count, classes, traits) -> str:
    words = (f'{count} free {classes[demand.resource_class]}'
             if demand.amount == 1 else
             f'{count} times {demand.amount} free '
             f'{classes[demand.resource_class]} in one Region')
    return words + (' ' + ' and '.join(
        f'{"with" if is_required else "without"} {traits[trait]}'
        for trait, is_required in demand.traits) if demand.traits else '')


def _of_rule(rule, constraint, problem, classes, traits) -> _Need:
    """Return the need to keep a required rule, whatever else holds."""
    alike = collections.Counter(problem.demands[member]
                                for member in constraint.members)
    what = ' and '.join(_units(demand, count, classes, traits)
                        for demand, count in alike.items())
    one, several = explain.PLACES[constraint.key]
    where = 'in' if constraint.key == csp.LINKS else 'on'
    where += f' one {one}' if constraint.same else f' different {several}'
    near = ' and '.join(f'the {name}' for name in (
        affinity.GUEST, affinity.NETWORK) if name in rule.groups)
    # Of different groups, or of linked devices, no number tells what fits.
    is_telling = len(alike) == 1 and constraint.key != csp.LINKS
    wanted = len(constraint.members)
    return _Need(
        f'{what} {where}' + (f' with {near}' if near else ''), wanted,
        lambda view: _kept(view, constraint), is_telling and (
            f'the most {"on one" if constraint.same else "on different ones"}'
        ) or '')


def _kept(view, constraint) -> int:
    """Return how many members of a rule a host can serve.

    The rule's own groups alone: a host that lacks others may keep the rule.
    """
    wanted = len(constraint.members)
    alone = csp.View(dataclasses.replace(
        view.problem, constraints=(), demands=tuple(
            view.problem.demands[member] for member in constraint.members)))
    constraint = dataclasses.replace(constraint, members=tuple(range(wanted)))
    if search.is_possible(alone, (constraint,), search_budget.Steps(STEPS)):
        return wanted
    return min(explain.most_members(alone, constraint), wanted - 1)

# SPDX-License-Identifier: Apache-2.0
"""Which of a host's stocks each group of a request is taken from.

:func:`arrange` turns stocks and rules into numbers, so that hosts that look
alike cost one search (:mod:`.search`), and says in words what is in the way
where nothing fits.
"""

import collections.abc
import dataclasses

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.solver import csp
from nova_accel.core.solver import explain
from nova_accel.core.solver import search
from nova_accel.core.solver import search_budget


@dataclasses.dataclass(frozen=True)
class AvailableUnits:
    """What can be had of one Region.

    :param provider: the uuid of its resource provider
    :param free: units that can be taken
    :param total: units in all, or 0 if nobody knows
    :param rank: of Stocks that are as good as each other, the lowest is taken
    """

    provider: str
    resource_class: str
    traits: frozenset[str]
    free: int
    place: model.Place
    total: int = 0
    rank: float = 0.


@dataclasses.dataclass(frozen=True)
class HostContext:
    """What else is on the host.

    :param guest: the NUMA nodes that the guest is put on, or None for a guest
        that is put on none in particular
    :param network: those of its PCI network devices, or None
    :param only_node: the host's NUMA node where it has just one; stands in
        for what a device of such a host does not say
    """

    guest: frozenset[int] | None = None
    network: frozenset[int] | None = None
    only_node: int | None = None
    links: model.Links = model.Links()


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """How a request is served, or why it cannot be.

    :param chosen: providers by group; empty where there is an objection
    :param objection: in words, or ''
    :param kind: the objection in a word or two, the same for the same reason
        on each host: ``units``, ``traits``, ``classes``, ``group`` (a rule
        names one that there is not), a rule's title (``same numa_node``),
        ``together`` or ``limit``
    :param rule: the rule that cannot be kept, where it is one alone
    :param cost: for sorting, the lower the better: the penalty of the rules
        that are preferred; how many NUMA nodes, roots and switches; how
        badly it packs: of each size, how many sets that are joined break, and
        what is left of what is touched. Comparable for one host
    :param is_final: whether more steps would not change it
    """

    chosen: collections.abc.Mapping[str, str] = dataclasses.field(
        default_factory=dict)
    objection: str = ''
    kind: str = ''
    rule: affinity.Rule | None = None
    cost: tuple[int, ...] = ()
    is_final: bool = True

    @property
    def penalty(self) -> int:
        """Of the rules that are preferred and not kept."""
        return self.cost[0] if self.cost else 0


def arrange(groups: collections.abc.Mapping[str, device_profile.Group],
            available: collections.abc.Sequence[AvailableUnits],
            rules: collections.abc.Sequence[affinity.Rule] = (),
            around: HostContext = HostContext(),
            pack: bool = True,
            budget: search_budget.Budget | None = None) -> Arrangement:
    """Choose a stock for every group.

    A group takes all its units, of one class, from one stock that has its
    traits. Rules of weight 0 hold exactly; of what is left the answer has the
    least penalty: for each other rule its weight for every value too many
    (``same``) or too few (``distinct``), and for every member that is off
    the guest's or the network's NUMA nodes. Then closer together is better,
    then better packed.

    Where a value is unknown: the NUMA node and the root of two Devices are
    then neither the same nor distinct; behind no switch is nobody else's
    switch. Two groups on one Device have the same of everything.

    ``same link_domain`` wants a set of Devices that is one alone, a partition
    or part of an island. ``distinct link_domain`` wants no two in Devices
    that are joined by any chain of partitions and islands.

    If there is a way, it is found, unless that takes more than
    :data:`.budget.MAX_STEPS` steps, or there are fewer; the objection says so
    then. No request of 16 like groups comes near that. The best way is found
    for requests of a few groups; for larger ones a good one.

    :param pack: leave large parts of the host whole; False to spread
    :param budget: steps that it shares with other hosts
    """
    objection = _unusable(groups, rules)
    if objection:
        return objection
    names = list(groups)
    wanted = sorted({next(iter(group.resources))
                     for group in groups.values()})
    kept = [rule for rule in rules
            if any(name in groups for name in rule.members)]
    used = sorted((units for units in available
                   if units.resource_class in wanted and units.free > 0),
                  key=_in_order)
    problem = _problem([groups[name] for name in names], names, used, kept,
                       around, pack)
    budget = budget or search_budget.Budget()
    answer = search.cached(problem, budget)
    if answer.sources is not None:
        return Arrangement(
            {name: used[source].provider for name, source in
             zip(names, answer.sources, strict=True)}, cost=answer.cost,
            is_final=answer.is_final)
    if answer.gave_up:
        return Arrangement(objection=explain.gave_up(answer.gave_up),
                           kind='limit', is_final=False)
    kind, number, words = explain.explain(
        problem, wanted, sorted(
            {trait for group in groups.values() for trait in group.traits}),
        budget)
    rule = None if number is None else kept[number]
    return Arrangement(
        objection=f'{rule}: {words}' if rule else words,
        kind=rule.title if rule else kind, rule=rule)


def _in_order(units: AvailableUnits):
    return (units.rank, units.place.device, units.resource_class, units.free,
            units.total, units.provider)


def _unusable(groups, rules) -> Arrangement | None:
    if len(groups) > search.MAX_DEMANDS:
        return Arrangement(
            objection=f'wants {len(groups)} groups, or single units, and '
            f'{search.MAX_DEMANDS} are the most that can be arranged; several '
            'units of one Region can be one group', kind='limit')
    for name, group in groups.items():
        if len(group.resources) != 1:
            return Arrangement(
                objection=f'{name} wants units of '
                + (' and '.join(group.resources) or 'nothing')
                + ' at once; a Region has one class', kind='classes')
    for rule in rules:
        for name in rule.members:
            if name not in groups and not rule.weight:
                return Arrangement(
                    objection=f'{rule}: there is no group {name}',
                    kind='group', rule=rule)
    return None


def _number(values: collections.abc.Iterable[str]) -> dict[str, int]:
    return {value: index for index, value in enumerate(sorted(values))}


class _Numbers(dict):
    """Numbers in the order of first use; None stays."""

    def __missing__(self, name):
        if name is None or name == '':
            return None
        self[name] = number = len(self)
        return number


def _problem(groups, names, available, rules, around,
             pack) -> csp.Problem:
    classes = _number({next(iter(group.resources)) for group in groups})
    traits = _number({trait for group in groups for trait in group.traits})
    roots, switches, devices = _Numbers(), _Numbers(), _Numbers()
    ours = frozenset(traits)
    sources = tuple(csp.Source(
        classes[units.resource_class],
        frozenset(traits[trait] for trait in units.traits & ours),
        units.free, units.free >= units.total > 0,
        around.only_node if units.place.numa_node is None else
        units.place.numa_node,
        roots[units.place.pcie_root], switches[units.place.pcie_switch],
        devices[units.place.device]) for units in available)
    index = {name: number for number, name in enumerate(names)}
    return csp.Problem(
        tuple(_demand(group, classes, traits) for group in groups), sources,
        tuple(csp.Constraint(
            rule.key, rule.same,
            tuple(index[name] for name in rule.members if name in index),
            affinity.GUEST in rule.groups, affinity.NETWORK in rule.groups,
            rule.weight) for rule in rules),
        around.guest, around.network,
        _sets(around.links.partitions, devices),
        _sets(around.links.islands, devices), pack)


def _demand(group, classes, traits) -> csp.Demand:
    [(name, amount)] = group.resources.items()
    return csp.Demand(classes[name], amount, tuple(
        (traits[trait], constraint == device_profile.REQUIRED)
        for trait, constraint in group.traits.items()
        if trait not in naming.OUR_TRAITS))


def _sets(sets, devices) -> tuple[frozenset[int], ...]:
    return tuple(frozenset(devices[device] for device in sorted(one))
                 for one in sets if one)

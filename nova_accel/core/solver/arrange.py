# SPDX-License-Identifier: Apache-2.0
"""Choose a provider of a host for each group of a request.

:func:`arrange` states the request as a numbered problem, so that hosts that
look alike cost one search (:mod:`.search`). If nothing fits, it says why.
"""

import collections.abc
import dataclasses

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import alternatives
from nova_accel.core.request import device_profile
from nova_accel.core.request import profile_group
from nova_accel.core.solver import csp
from nova_accel.core.solver import explain
from nova_accel.core.solver import search
from nova_accel.core.solver import search_budget


@dataclasses.dataclass(frozen=True)
class AvailableUnits:
    """The available units of one Region.

    :param provider: the uuid of its resource provider
    :param free: how many units are free
    :param total: all units, free or not; 0 if unknown
    :param rank: the lowest is taken where several are equally good
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
    """NUMA nodes and links that the rules refer to.

    :param guest: the NUMA nodes of the guest, or None if it is on no
        particular one
    :param network: those of its PCI network devices, or None
    :param only_node: the host's NUMA node if it has one only; used for devices
        whose node is unknown
    """

    guest: frozenset[int] | None = None
    network: frozenset[int] | None = None
    only_node: int | None = None
    links: model.Links = model.Links()


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """How a host serves a request, or why it cannot.

    :param chosen: providers by group; empty if there is an objection
    :param objection: why the host cannot serve the request, or ''
    :param kind: of the objection, for counting hosts: ``units``, ``traits``,
        ``classes``, ``group`` (a rule names an unknown group), a rule's title
        (``same numa_node``), ``together``, ``limit`` or ``alternatives``
    :param rule: the rule that cannot be kept, if it is one alone
    :param shortage: what the host lacks, if that can be counted
    :param cost: as of :func:`.cost.cost`, the lower the better; comparable
        within one host only
    :param is_final: whether more steps would not change it
    :param alternative: the number of the chosen combination of alternatives
    :param objections: why the host serves none of the alternatives, if the
        reasons differ
    """

    chosen: collections.abc.Mapping[str, str] = dataclasses.field(
        default_factory=dict)
    objection: str = ''
    kind: str = ''
    rule: affinity.Rule | None = None
    shortage: explain.Shortage | None = None
    cost: tuple[int, ...] = ()
    is_final: bool = True
    alternative: int = 0
    objections: tuple['Arrangement', ...] = ()

    @property
    def order(self) -> tuple[bool, int, tuple[int, ...]]:
        """Sorts arrangements of one host, the best first."""
        return bool(self.objection), self.alternative, self.cost

    @property
    def penalty(self) -> int:
        """The penalty of preferred rules that are not kept."""
        return self.cost[0] if self.cost else 0


def arrange(groups: profile_group.Groups,
            available: collections.abc.Sequence[AvailableUnits],
            rules: collections.abc.Sequence[affinity.Rule] = (),
            around: HostContext = HostContext(),
            pack: bool = True,
            budget: search_budget.Budget | None = None,
            with_reason: bool = True) -> Arrangement:
    """Choose a provider for every group.

    A group takes all its units, of one resource class, from one provider that
    has its traits. Of alternatives, the first that fits is chosen
    (:mod:`.alternatives`). Required rules (weight 0) hold exactly. The answer
    has the least penalty of preferred rules: a rule's weight for each value
    too many (``same``) or too few (``distinct``), and for each member off the
    NUMA nodes of the guest or the network. Of equal answers the one whose
    devices are closer together is better, then the one that packs better.

    Two Devices whose NUMA node or PCIe root is unknown have neither the same
    nor distinct ones. A Device behind no switch shares its switch with no
    other. Two groups on one Device have the same of everything.

    ``same link_domain`` needs one Device, exactly the Devices of a partition,
    or some of an island. With ``distinct link_domain`` no two Devices may be
    joined by any chain of partitions and islands.

    An answer that exists is found, unless the search reaches the limit of
    :data:`.search_budget.MAX_STEPS` or of the budget; the objection then says
    so. Requests of 16 equal groups stay far below that. The answer is the
    best for requests of a few groups, and a good one for larger requests.

    :param available: all that the host offers; what the request does not ask
        for is disregarded
    :param pack: keep large parts of the host whole; False to spread
    :param budget: of search steps, shared with other hosts
    :param with_reason: whether an objection says why, which takes longer
    """
    how = available, rules, around, pack, budget or search_budget.Budget()
    if not any(group.any_of for group in groups.values()):
        return _arrange(groups, *how, with_reason)
    combinations = list(alternatives.combinations(groups))
    is_final = True
    for number, plain in enumerate(combinations):
        # A reason is needed only if none of them fits.
        found = _arrange(plain, *how, False)
        is_final &= found.is_final
        if not found.objection:
            return dataclasses.replace(found, alternative=number,
                                       is_final=is_final)
    return _of_all([_arrange(plain, *how, with_reason)
                    for plain in combinations])


def _of_all(failed: list[Arrangement]) -> Arrangement:
    """Return the objection to all alternatives."""
    if all(found == failed[0] for found in failed):
        return failed[0]
    return Arrangement(
        objection='no alternative fits: ' + '; '.join(
            f'{number}. {found.objection}'
            for number, found in enumerate(failed)),
        kind='alternatives', objections=tuple(failed),
        is_final=all(found.is_final for found in failed))


def _arrange(groups: profile_group.Groups,
             available: collections.abc.Sequence[AvailableUnits],
             rules: collections.abc.Sequence[affinity.Rule],
             around: HostContext, pack: bool, budget: search_budget.Budget,
             with_reason: bool) -> Arrangement:
    """Choose a provider for every group; the groups have no alternatives."""
    unusable = _unusable(groups, rules)
    if unusable:
        return unusable
    classes = {next(iter(group.resources)) for group in groups.values()}
    regarded = [rule for rule in rules
                if not groups.keys().isdisjoint(rule.members)]
    used = _usable(available, classes)
    problem = _problem(groups, classes, used, regarded, around, pack)
    answer = search.cached(problem, budget)
    if answer.gave_up:
        return Arrangement(objection=explain.gave_up(answer.gave_up),
                           kind='limit', is_final=False)
    if answer.sources is None and not with_reason:
        return Arrangement(objection='it does not have the devices')
    if answer.sources is None:
        return _objection(explain.explain(
            problem, sorted(classes), sorted(_traits(groups)), budget),
            regarded)
    return Arrangement(
        {name: used[source].provider for name, source in
         zip(groups, answer.sources, strict=True)}, cost=answer.cost,
        is_final=answer.is_final)


def _objection(reason: explain.Reason,
               rules: collections.abc.Sequence[affinity.Rule],
               ) -> Arrangement:
    if reason.constraint is None:
        return Arrangement(objection=reason.words, kind=reason.kind,
                           shortage=reason.shortage)
    rule = rules[reason.constraint]
    return Arrangement(objection=f'{rule}: {reason.words}', kind=rule.title,
                       rule=rule, shortage=reason.shortage)


def _usable(available: collections.abc.Iterable[AvailableUnits],
            classes: collections.abc.Container[str]) -> list[AvailableUnits]:
    return sorted((units for units in available
                   if units.resource_class in classes and units.free > 0),
                  key=_sort_key)


def _sort_key(units: AvailableUnits) -> tuple[
        float, str, str, int, int, str]:
    return (units.rank, units.place.device, units.resource_class, units.free,
            units.total, units.provider)


def _unusable(groups: profile_group.Groups,
              rules: collections.abc.Iterable[affinity.Rule],
              ) -> Arrangement | None:
    """Return an objection to a request that no host can serve, or None."""
    if len(groups) > search.MAX_DEMANDS:
        return Arrangement(
            objection=f'wants {len(groups)} groups or single units; at most '
            f'{search.MAX_DEMANDS} can be arranged; several units of one '
            'Region can be one group', kind='limit')
    for name, group in groups.items():
        if len(group.resources) != 1:
            return Arrangement(
                objection=f'{name} wants units of '
                + (' and '.join(group.resources) or 'nothing')
                + ' at once; a Region has one resource class',
                kind='classes')
    for rule in rules:
        for name in rule.members:
            if name not in groups and not rule.weight:
                return Arrangement(
                    objection=f'{rule}: there is no group {name}',
                    kind='group', rule=rule)
    return None


def _number(values: collections.abc.Iterable[str]) -> dict[str, int]:
    return {value: index for index, value in enumerate(sorted(values))}


class _Numbers(dict[object, int]):
    """Numbers of names in the order of first use."""

    def __missing__(self, name: object) -> int:
        self[name] = number = len(self)
        return number


def _numbered(place: model.Place, inner: list[_Numbers],
              only_node: int | None) -> tuple[int | None, ...]:
    _node, *others = place.parts
    return (only_node if place.numa_node is None else place.numa_node,
            *(None if part in (None, '') else numbers[part]
              for numbers, part in zip(inner, others, strict=True)))


def _traits(groups: profile_group.Groups) -> set[str]:
    return {trait for group in groups.values() for trait in group.traits}


def _problem(groups: profile_group.Groups,
             names: collections.abc.Iterable[str],
             available: list[AvailableUnits], rules: list[affinity.Rule],
             around: HostContext, pack: bool) -> csp.Problem:
    classes, traits = _number(names), _number(_traits(groups))
    # NUMA nodes keep their numbers, which the guest's are compared with.
    inner, devices = [_Numbers() for _key in csp.PARTS[1:]], _Numbers()
    asked = frozenset(traits)
    sources = tuple(csp.Source(
        classes[units.resource_class],
        frozenset(traits[trait] for trait in units.traits & asked),
        units.free, units.free >= units.total > 0,
        _numbered(units.place, inner, around.only_node),
        devices[units.place.device]) for units in available)
    index = {name: number for number, name in enumerate(groups)}
    return csp.Problem(
        tuple(_demand(group, classes, traits) for group in groups.values()),
        sources,
        tuple(csp.Constraint(
            rule.key, rule.same,
            tuple(index[name] for name in rule.members if name in index),
            affinity.GUEST in rule.groups, affinity.NETWORK in rule.groups,
            rule.weight) for rule in rules),
        around.guest, around.network,
        _sets(around.links.partitions, devices),
        _sets(around.links.islands, devices),
        bool(around.links.faulty), pack)


def _demand(group: device_profile.Group, classes: dict[str, int],
            traits: dict[str, int]) -> csp.Demand:
    [(name, amount)] = group.resources.items()
    return csp.Demand(classes[name], amount, tuple(
        (traits[trait], strength == device_profile.REQUIRED)
        for trait, strength in group.traits.items()
        if trait not in naming.OUR_TRAITS))


def _sets(sets: collections.abc.Iterable[frozenset[str]],
          devices: _Numbers) -> tuple[frozenset[int], ...]:
    return tuple(frozenset(devices[device] for device in sorted(one))
                 for one in sets if one)

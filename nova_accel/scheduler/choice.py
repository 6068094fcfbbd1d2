# SPDX-License-Identifier: Apache-2.0
"""Which devices of one host serve a request, written into its candidates."""

import collections
import collections.abc
import dataclasses
import functools
import random

from nova_accel.core import affinity
from nova_accel.core import arrangement
from nova_accel.core import assignment
from nova_accel.core import flavor
from nova_accel.core import identity
from nova_accel.core import profile
from nova_accel.core import providers
from nova_accel.core.arrangement import budget
from nova_accel.scheduler import candidates


@dataclasses.dataclass(frozen=True)
class Request:
    """What a flavor asks for.

    :param name: of its Profile, for people
    :param classes: that are, or could be, those of devices
    """

    name: str
    groups: collections.abc.Mapping[str, profile.Group]
    rules: tuple[affinity.Rule, ...]
    classes: frozenset[str]

    @functools.cached_property
    def units(self) -> frozenset[str]:
        """The classes in which devices' providers count their units."""
        return frozenset(map(identity.unit_class, self.classes))

    @functools.cached_property
    def programs(self) -> frozenset[str]:
        """The classes of which something is to be programmed."""
        return frozenset(name for group in self.groups.values()
                         if group.bitstream for name in group.resources)

    def concerns(self, member: str) -> bool:
        """Whether a rule is about the guest, or the network."""
        return affinity.concern(self.rules, member)


def request(extra_specs: collections.abc.Mapping[str, str],
            image_traits: collections.abc.Iterable[str] = ()) -> Request:
    """What a flavor asks for, by its extra specs, and an image beside it.

    :raises errors.ProfileError: if it wants more than this version knows of
    """
    return _request(frozenset(extra_specs.items()), frozenset(image_traits))


@functools.lru_cache(maxsize=256)
def _request(items, image_traits) -> Request:
    specs = dict(items)
    return Request(specs.get(flavor.EXPANDED_KEY, 'the flavor'),
                   flavor.read(specs, image_traits), flavor.rules(specs),
                   frozenset(flavor.classes(specs)))


class Choice:
    """How devices of a host are chosen for candidates of a request.

    :param host_state: nova.scheduler.host_manager.HostState
    :param around: from a candidate to what the rules are about, in each way
        that it can be
    :param pack: whether large groups of free devices are kept whole
    """

    def __init__(self, host_state, wanted: Request,
                 around: collections.abc.Callable[
                     [dict], collections.abc.Iterable[
                         arrangement.Surroundings]], pack: bool):
        self.host_state = host_state
        self._wanted = wanted
        self._around = around
        self._pack = pack
        self._counting = providers.of_classes(host_state.uuid,
                                              wanted.classes)

    def without_devices(self, candidate: collections.abc.Mapping) -> dict:
        """What a candidate allocates beside devices that were chosen.

        A device's provider can have classes of the operator's too, from
        provider.yaml; these stay.
        """
        left = {provider: {**allocation, 'resources': {
            name: amount for name, amount in allocation['resources'].items()
            if name not in self._wanted.units}}
            for provider, allocation in candidate['allocations'].items()}
        return {provider: allocation for provider, allocation in left.items()
                if allocation['resources']}

    def fill(self, candidate: candidates.Candidate,
             answer: candidates.Answer, steps: budget.Budget,
             given: collections.abc.Mapping[str, int] = {},
             chance: random.Random | None = None,
             ) -> arrangement.Arrangement | None:
        """Choose devices, and have the candidate allocate them.

        :param steps: that the search may take
        :param given: units by provider that Placement does not know of yet
        :param chance: for which of devices that are as good as each other;
            the first, if there is none
        :returns: how they are arranged, or why they cannot be; None where
            the candidate is not about devices of ours
        """
        plain = self.without_devices(candidate)
        counts = units(self._counting, plain)
        if not counts:
            return None
        if not candidates.has_our_driver(self.host_state):
            return arrangement.Arrangement(
                objection='its nova-compute says nothing of devices; is its '
                'compute_driver accel.LibvirtDriver?', kind='driver')
        stocks = candidates.stocks(self.host_state, answer, given)
        if chance:
            stocks = tuple(dataclasses.replace(stock, rank=chance.random())
                           for stock in stocks)
        groups = assignment.with_the_rest(self._wanted.groups, counts, stocks)
        found = self._best(groups, stocks, self._around(candidate), steps)
        if not found.objection:
            candidate['allocations'] = _merged(plain, _allocations(
                groups, found.chosen))
            candidate.choice = self
            candidate.penalty = found.penalty
        return found

    def _best(self, groups, stocks, ways, steps) -> arrangement.Arrangement:
        """The best arrangement; of equals the first."""
        best = None
        for around in ways:
            found = self._arrange(groups, stocks, around, steps)
            if best is None or (bool(found.objection), found.cost) < (
                    bool(best.objection), best.cost):
                best = found
            # There is no better one; or other surroundings change nothing.
            if not (best.penalty or best.rule or best.kind == 'together'):
                break
        return best

    def _arrange(self, groups, stocks, around, steps,
                 ) -> arrangement.Arrangement:
        programs = self._wanted.programs
        if programs:
            # Somebody may have the very bitstream where one is in use, but
            # who knows; what nobody holds can be programmed for certain.
            unused = tuple(stock for stock in stocks
                           if stock.resource_class not in programs
                           or stock.free == stock.total)
            found = arrangement.arrange(groups, unused, self._wanted.rules,
                                        around, self._pack, steps)
            if not found.objection:
                return found
        return arrangement.arrange(groups, stocks, self._wanted.rules,
                                   around, self._pack, steps)


def units(counting: collections.abc.Mapping[str, str],
          allocations: collections.abc.Mapping[str, dict],
          ) -> collections.Counter[str]:
    """How many units of which class Placement found.

    :param counting: a host's providers of classes, as providers.of_classes
        has them
    :param allocations: a candidate's
    """
    return collections.Counter({
        name: allocations[uuid]['resources'][name]
        for uuid, name in counting.items()
        if name in allocations.get(uuid, {}).get('resources', ())})


def devices(candidate: collections.abc.Mapping) -> dict[str, int]:
    """Units by provider that were chosen for a candidate."""
    return {provider: amount for provider, allocation
            in candidate.get('allocations', {}).items()
            for name, amount in allocation['resources'].items()
            if identity.class_of_units(name)}


def _merged(plain, added) -> dict[str, dict]:
    """Allocations of both, those of the same provider in one."""
    return {**plain, **{provider: {'resources': {
        **plain.get(provider, {}).get('resources', {}),
        **allocation['resources']}} for provider, allocation
        in added.items()}}


def _allocations(groups, chosen) -> dict[str, dict]:
    """What of the devices' own providers is allocated."""
    amounts: dict[str, collections.Counter] = collections.defaultdict(
        collections.Counter)
    for name, provider in chosen.items():
        for resource_class, amount in groups[name].resources.items():
            amounts[provider][identity.unit_class(resource_class)] += amount
    return {provider: {'resources': dict(resources)}
            for provider, resources in amounts.items()}

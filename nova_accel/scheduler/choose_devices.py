# SPDX-License-Identifier: Apache-2.0
"""Choose the devices of one host for a request, and allocate them."""

import collections
import collections.abc
import dataclasses
import random

from nova_accel.core import naming
from nova_accel.core.assignment import assign
from nova_accel.core.assignment import choose
from nova_accel.core.placement import inventory
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget
from nova_accel.scheduler import candidates


class Choice:
    """Chooses devices of a host for the candidates of a request.

    :param host_state: nova.scheduler.host_manager.HostState
    :param contexts: returns, for a candidate, each HostContext that is
        possible: the NUMA nodes of the guest and of its network ports
    :param pack: whether to keep large groups of free devices whole
    """

    def __init__(self, host_state, wanted: flavor_request.Request,
                 contexts: collections.abc.Callable[
                     [dict], collections.abc.Iterable[
                         arrange.HostContext]], pack: bool):
        self.host_state = host_state
        self._wanted = wanted
        self._contexts = contexts
        self._pack = pack
        self._counting = inventory.counting(host_state.uuid, wanted.classes)

    def without_devices(self, candidate: collections.abc.Mapping) -> dict:
        """Return a candidate's allocations without the chosen devices.

        Resource classes that an operator added to a device's provider with
        provider.yaml stay.
        """
        left = {provider: {**allocation, 'resources': {
            name: amount for name, amount in allocation['resources'].items()
            if name not in self._wanted.units}}
            for provider, allocation in candidate['allocations'].items()}
        return {provider: allocation for provider, allocation in left.items()
                if allocation['resources']}

    def fill(self, candidate: candidates.Candidate,
             answer: candidates.Answer, steps: search_budget.Budget,
             earlier: collections.abc.Mapping[str, int] = {},
             chance: random.Random | None = None,
             ) -> arrange.Arrangement | None:
        """Choose devices, and write them into the candidate's allocations.

        :param steps: budget of the search
        :param earlier: units by provider that earlier servers of the request
            got
        :param chance: selects among equally good devices; None for the first
        :returns: the arrangement, with an objection if there is none; None if
            the candidate requests no devices of ours
        """
        plain = self.without_devices(candidate)
        counts = units(self._counting, plain)
        if not counts:
            return None
        if not candidates.has_our_driver(self.host_state):
            return arrange.Arrangement(
                objection='its nova-compute does not report devices; check '
                'that its compute_driver is accel.LibvirtDriver',
                kind='driver')
        available = candidates.available(self.host_state, answer, earlier)
        if chance:
            available = tuple(dataclasses.replace(units, rank=chance.random())
                              for units in available)
        groups = assign.with_other_units(self._wanted.groups, counts,
                                         available)
        found = self._best(groups, available, self._contexts(candidate),
                           steps)
        if not found.objection:
            candidate['allocations'] = _merged(plain, _allocations(
                groups, found.chosen))
            candidate.choice = self
            candidate.penalty = found.penalty
            candidate.rank = self._wanted.rank(found.alternative)
        return found

    def _best(self, groups, available, contexts,
              steps) -> arrange.Arrangement:
        """Return the best arrangement; the first one, if several are equal."""
        found: list[arrange.Arrangement] = []
        for context in contexts:
            found.append(choose.choose(self._wanted, groups, available,
                                       context, self._pack, steps))
            best = min(found, key=lambda one: one.order)
            # It is perfect, or no other NUMA nodes can improve it.
            if not (best.penalty or best.alternative or best.rule
                    or best.kind in ('together', 'alternatives')):
                break
        return best


def units(counting: collections.abc.Mapping[str, str],
          allocations: collections.abc.Mapping[str, dict],
          ) -> collections.Counter[str]:
    """Return the number of units of each class that Placement found.

    :param counting: a host's providers of classes, from inventory.counting
    :param allocations: the allocations of a candidate
    """
    return collections.Counter({
        name: allocations[uuid]['resources'][name]
        for uuid, name in counting.items()
        if name in allocations.get(uuid, {}).get('resources', ())})


def devices(candidate: collections.abc.Mapping) -> dict[str, int]:
    """Return the units, by provider, that were chosen for a candidate."""
    return {provider: amount for provider, allocation
            in candidate.get('allocations', {}).items()
            for name, amount in allocation['resources'].items()
            if naming.class_of_units(name)}


def _merged(plain, added) -> dict[str, dict]:
    """Merge two mappings of allocations by provider."""
    return {**plain, **{provider: {'resources': {
        **plain.get(provider, {}).get('resources', {}),
        **allocation['resources']}} for provider, allocation
        in added.items()}}


def _allocations(groups, chosen) -> dict[str, dict]:
    """Return the allocations of the chosen devices' providers."""
    amounts: dict[str, collections.Counter] = collections.defaultdict(
        collections.Counter)
    for name, provider in chosen.items():
        for resource_class, amount in groups[name].resources.items():
            amounts[provider][naming.unit_class(resource_class)] += amount
    return {provider: {'resources': dict(resources)}
            for provider, resources in amounts.items()}

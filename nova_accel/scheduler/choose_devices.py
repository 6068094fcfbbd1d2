# SPDX-License-Identifier: Apache-2.0
"""Which devices of one host serve a request, written into its candidates."""

import collections
import collections.abc
import dataclasses
import random

from nova_accel.core import naming
from nova_accel.core.assignment import assign
from nova_accel.core.placement import inventory
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget
from nova_accel.scheduler import candidates


class Choice:
    """How devices of a host are chosen for candidates of a request.

    :param host_state: nova.scheduler.host_manager.HostState
    :param around: from a candidate to what the rules are about, in each way
        that it can be
    :param pack: whether large groups of free devices are kept whole
    """

    def __init__(self, host_state, wanted: flavor_request.Request,
                 around: collections.abc.Callable[
                     [dict], collections.abc.Iterable[
                         arrange.HostContext]], pack: bool):
        self.host_state = host_state
        self._wanted = wanted
        self._around = around
        self._pack = pack
        self._counting = inventory.counting(host_state.uuid, wanted.classes)

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
             answer: candidates.Answer, steps: search_budget.Budget,
             given: collections.abc.Mapping[str, int] = {},
             chance: random.Random | None = None,
             ) -> arrange.Arrangement | None:
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
            return arrange.Arrangement(
                objection='its nova-compute says nothing of devices; is its '
                'compute_driver accel.LibvirtDriver?', kind='driver')
        available = candidates.available(self.host_state, answer, given)
        if chance:
            available = tuple(dataclasses.replace(units, rank=chance.random())
                           for units in available)
        groups = assign.with_the_rest(self._wanted.groups, counts, available)
        found = self._best(groups, available, self._around(candidate), steps)
        if not found.objection:
            candidate['allocations'] = _merged(plain, _allocations(
                groups, found.chosen))
            candidate.choice = self
            candidate.penalty = found.penalty
        return found

    def _best(self, groups, available, ways, steps) -> arrange.Arrangement:
        """The best arrangement; of equals the first."""
        best = None
        for around in ways:
            found = self._arrange(groups, available, around, steps)
            if best is None or (bool(found.objection), found.cost) < (
                    bool(best.objection), best.cost):
                best = found
            # There is no better one; or other surroundings change nothing.
            if not (best.penalty or best.rule or best.kind == 'together'):
                break
        return best

    def _arrange(self, groups, available, around, steps,
                 ) -> arrange.Arrangement:
        programs = self._wanted.programs
        if programs:
            # Somebody may have the very bitstream where one is in use, but
            # who knows; what nobody holds can be programmed for certain.
            unused = tuple(units for units in available
                           if units.resource_class not in programs
                           or units.free == units.total)
            found = arrange.arrange(groups, unused, self._wanted.rules,
                                    around, self._pack, steps)
            if not found.objection:
                return found
        return arrange.arrange(groups, available, self._wanted.rules,
                               around, self._pack, steps)


def units(counting: collections.abc.Mapping[str, str],
          allocations: collections.abc.Mapping[str, dict],
          ) -> collections.Counter[str]:
    """How many units of which class Placement found.

    :param counting: a host's providers of classes, as inventory.counting
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
            if naming.class_of_units(name)}


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
            amounts[provider][naming.unit_class(resource_class)] += amount
    return {provider: {'resources': dict(resources)}
            for provider, resources in amounts.items()}

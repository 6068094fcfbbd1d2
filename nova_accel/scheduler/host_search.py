# SPDX-License-Identifier: Apache-2.0
"""Search all hosts of a request for devices, the most promising ones longer.

A first, short search takes a few milliseconds per host. It succeeds for all
but the hardest requests. The search is then continued on the most promising
hosts only: with many different hosts, a full search of each takes minutes.
"""

import collections.abc

import nova.conf

from nova_accel.core.request import flavor_request
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices
from nova_accel.scheduler import guest_numa
from nova_accel.scheduler import multi_create

CONF = nova.conf.CONF


class HostSearch:
    """The search of one host for a request.

    :param host_state: nova.scheduler.host_manager.HostState
    :param answer: from which its candidates are
    :param spec_obj: nova.objects.RequestSpec
    """

    def __init__(self, host_state, answer: candidates.Answer, spec_obj,
                 wanted: flavor_request.Request):
        self.host_state = host_state
        self.answer = answer
        self._wanted = wanted
        self._siblings = multi_create.Siblings.of(host_state)
        self._choice = choose_devices.Choice(
            host_state, wanted, guest_numa.Nodes(
                host_state, spec_obj, wanted, self.answer.fits).around,
            CONF.nova_accel.pack_devices)
        self._found: list[tuple[candidates.Candidate,
                                arrange.Arrangement | None]] = []

    def take(self, steps: search_budget.Budget) -> None:
        """Choose devices for each candidate, within a budget of steps."""
        # Copies, as an earlier server of the request may have claimed them.
        copies = [candidates.Candidate(candidate, self.answer)
                  for candidate in self.host_state.allocation_candidates]
        self._found = [
            (candidate, self._choice.fill(candidate, self.answer, steps,
                                          self._siblings.units))
            for candidate in copies]

    @property
    def arranged(self) -> list[arrange.Arrangement | None]:
        return [arranged for _candidate, arranged in self._found]

    @property
    def passes(self) -> bool:
        """Whether the host serves the request."""
        return any(map(_serves, self.arranged))

    @property
    def is_final(self) -> bool:
        """Whether a longer search cannot change the result."""
        return all(arranged is None or arranged.is_final
                   for arranged in self.arranged)

    @property
    def penalty(self) -> int:
        """The penalty of the best candidate."""
        return min(arranged.penalty if arranged else 0
                   for arranged in filter(_serves, self.arranged))

    @property
    def has_first(self) -> bool:
        """Whether it has the first alternative, as far as hosts differ."""
        return self.passes and (not self._wanted.alternatives or any(
            not (arranged and self._wanted.rank(arranged.alternative))
            for arranged in filter(_serves, self.arranged)))

    def settle(self) -> bool:
        """Set the host's candidates to those with devices, the best first.

        :returns: whether there are any
        """
        self.host_state.allocation_candidates = [
            candidate for candidate, arranged in sorted(
                self._found, key=lambda item: item[1].order if item[1] else ())
            if _serves(arranged)]
        self._siblings.expect(self.host_state.allocation_candidates)
        return self.passes


def _serves(arranged: arrange.Arrangement | None) -> bool:
    return arranged is None or not arranged.objection


def search_all(searches: collections.abc.Sequence[HostSearch]) -> None:
    """Search all hosts of a request, the most promising ones repeatedly."""
    first = search_budget.Budget(0, least=search_budget.FIRST_STEPS)
    for search in searches:
        search.take(first)
    for most in search_budget.ROUNDS:
        passing = [search for search in searches if search.has_first]
        unsure = [search for search in passing or searches
                  if not search.is_final]
        if passing:
            unsure.sort(key=lambda search: search.penalty)
        for search in unsure:
            steps = search.answer.better if passing else search.answer.steps
            if steps.is_spent:
                return
            steps.most = most
            search.take(steps)

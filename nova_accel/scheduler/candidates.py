# SPDX-License-Identifier: Apache-2.0
"""Allocation candidates that know what Placement said beside them.

With the candidates Placement tells, for each provider of their trees, how
much of it is used and which traits it has. Nova keeps of that only which
hosts there are. Here each candidate keeps it all, so that which devices are
free is known as exactly as the ledger knows it, at no request more.
"""

import collections
import collections.abc
import copy
import functools

from nova_accel import numa_fit
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import host_summary
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget

# All, of a guest with one NUMA node on a host with eight.
_LEAST_FITS = 8


class Answer:
    """What Placement said, once for all candidates of a request.

    :param summaries: of all providers, by uuid
    :param resources: nova.scheduler.utils.ResourceRequest
    :ivar claimed: uuids of the servers that have claimed one of them since
    :ivar steps: that the request's hosts share where devices are chosen
    :ivar better: and where better ones are looked for than were found
    :ivar fits: and where a guest's NUMA nodes are
    """

    def __init__(self, summaries: collections.abc.Mapping[str, dict],
                 resources):
        self._summaries = summaries
        self.resources = resources
        self.claimed: set[str] = set()
        self.steps = search_budget.Budget(search_budget.REQUEST_STEPS)
        self.better = search_budget.Budget(search_budget.BETTER_STEPS)
        # A fit takes Nova a millisecond or some; Nova itself makes one a host.
        self.fits = search_budget.Budget(8 * numa_fit.MOST, least=_LEAST_FITS,
                                         most=numa_fit.MOST)

    @functools.cached_property
    def _trees(self) -> dict[str, dict[str, dict]]:
        trees: dict[str, dict[str, dict]] = collections.defaultdict(dict)
        for uuid, said in self._summaries.items():
            if naming.MARKER_TRAIT in said['traits']:
                trees[said['root_provider_uuid']][uuid] = said
        return trees

    def ours(self, root: str) -> dict[str, dict]:
        """Our providers below a compute node's, by uuid."""
        return self._trees.get(root, {})


class Candidate(dict):
    """One candidate; to Nova, the dictionary that Placement gave.

    :ivar answer: what else Placement said
    :ivar choice: how devices were chosen for it, to choose again
    :ivar penalty: by how much they miss the preferred rules
    :ivar claimed: whether a server has it
    """

    def __init__(self, candidate: collections.abc.Mapping, answer: Answer,
                 choice=None, penalty: int = 0):
        super().__init__(candidate)
        self.answer = answer
        self.choice = choice
        self.penalty = penalty
        self.claimed = False

    def claim(self, instance_uuid: str) -> None:
        """Note that a server has it."""
        self.claimed = True
        self.answer.claimed.add(instance_uuid)

    def __deepcopy__(self, memo) -> 'Candidate':
        # Nova copies it for each host and each claim. The answer is for all.
        return Candidate(copy.deepcopy(dict(self), memo), self.answer,
                         self.choice, self.penalty)


def available(host_state, answer: Answer,
           given: collections.abc.Mapping[str, int] = {},
           ) -> tuple[arrange.AvailableUnits, ...]:
    """What of a host's devices is free, as Placement said.

    :param host_state: nova.scheduler.host_manager.HostState
    :param given: units by provider that Placement does not know of yet
    """
    places = summary(host_state).places
    return tuple(
        arrange.AvailableUnits(
            uuid, resource_class, frozenset(provider['traits']),
            record['capacity'] - record['used'] - given.get(uuid, 0),
            places.get(uuid) or model.Place(None, None, None, uuid),
            record['capacity'])
        for uuid, provider in answer.ours(host_state.uuid).items()
        for name, record in provider['resources'].items()
        if (resource_class := naming.class_of_units(name)))


def of(host_state) -> Answer | None:
    """What Placement said with a host's candidates."""
    found = host_state.allocation_candidates
    return getattr(found[0], 'answer', None) if found else None


def claimed(host_state) -> collections.abc.Set[str]:
    """The servers of the request that have claimed something by now."""
    answer = of(host_state)
    return answer.claimed if answer else frozenset()


def has_our_driver(host_state) -> bool:
    """Whether a host's nova-compute keeps what our providers promise.

    They stay in Placement where it was started again with Nova's own driver,
    which would have the server run without its devices.
    """
    stats = getattr(host_state, 'stats', None)
    return stats is None or host_summary.KEY in stats


def summary(host_state) -> host_summary.Summary:
    """What the host itself said last."""
    # Nova sets the attribute when it has first read the compute node.
    stats = getattr(host_state, 'stats', None) or {}
    return host_summary.loads(stats.get(host_summary.KEY), host_state.uuid)


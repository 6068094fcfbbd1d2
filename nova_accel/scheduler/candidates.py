# SPDX-License-Identifier: Apache-2.0
"""Allocation candidates that keep Placement's provider summaries.

Placement returns, with the candidates, a summary of each provider in their
trees: its usage and its traits. Nova uses the summaries only to find the
hosts. Here each candidate keeps all of them, so the scheduler knows which
devices are free without another request.
"""

import collections
import collections.abc
import copy
import functools
import math

from nova_accel import numa_fit
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import host_summary
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget

# Enough for all nodes of a host with eight, for a guest with one NUMA node.
_LEAST_FITS = 8


class Answer:
    """Placement's answer, shared by all candidates of a request.

    :param summaries: provider summaries by uuid
    :param resources: nova.scheduler.utils.ResourceRequest
    :ivar has_more_hosts: whether Nova examines other hosts if it finds none
    :ivar claimed: uuids of the servers that have claimed a candidate since
    :ivar steps: budget that the request's hosts share to choose devices
    :ivar better: budget that they share to find better devices
    :ivar fits: budget that they share to fit the guest to NUMA nodes
    """

    def __init__(self, summaries: collections.abc.Mapping[str, dict],
                 resources):
        self._summaries = summaries
        self.resources = resources
        self.restart()

    def restart(self, has_more_hosts: bool = False) -> None:
        """Begin to examine hosts; Nova has cleaned up its earlier claims."""
        self.has_more_hosts = has_more_hosts
        self.claimed: set[str] = set()
        self.steps = search_budget.Budget(search_budget.REQUEST_STEPS)
        self.better = search_budget.Budget(search_budget.BETTER_STEPS)
        # A fit takes some milliseconds. Nova itself makes one for each host.
        self.fits = search_budget.Budget(8 * numa_fit.MOST, least=_LEAST_FITS,
                                         most=numa_fit.MOST)

    @functools.cached_property
    def _trees(self) -> dict[str, dict[str, dict]]:
        trees: dict[str, dict[str, dict]] = collections.defaultdict(dict)
        for uuid, summary in self._summaries.items():
            if naming.MARKER_TRAIT in summary['traits']:
                trees[summary['root_provider_uuid']][uuid] = summary
        return trees

    def times(self, allocations: collections.abc.Mapping[str, dict]) -> float:
        """Return how many servers can get such allocations, at most.

        Units of devices are not regarded: each server can get others.
        """
        return min((max(0, usage['capacity'] - usage['used']) // amount
                    for provider, allocation in allocations.items()
                    for name, amount in allocation['resources'].items()
                    if not naming.class_of_units(name)
                    for usage in [
                        self._summaries[provider]['resources'][name]]),
                   default=math.inf)

    def ours(self, root: str) -> dict[str, dict]:
        """Return the summaries of our providers below a compute node's."""
        return self._trees.get(root, {})


class Candidate(dict):
    """An allocation candidate. Nova uses it as a plain dictionary.

    :ivar answer: the answer of Placement that it is from
    :ivar choice: chooses its devices, and can do so again; or None
    :ivar penalty: penalty of the preferred rules that its devices violate
    :ivar rank: 0 for the first alternative of the profile, 1 for the second
    :ivar claimed: whether a server has claimed it
    """

    def __init__(self, candidate: collections.abc.Mapping, answer: Answer,
                 choice=None, penalty: int = 0, rank: int = 0):
        super().__init__(candidate)
        self.answer = answer
        self.choice = choice
        self.penalty = penalty
        self.rank = rank
        self.claimed = False

    def claim(self, instance_uuid: str) -> None:
        """Record that a server has claimed the candidate."""
        self.claimed = True
        self.answer.claimed.add(instance_uuid)

    def __deepcopy__(self, memo) -> 'Candidate':
        # Nova copies candidates for each host and each claim. All copies
        # share one answer.
        return Candidate(copy.deepcopy(dict(self), memo), self.answer,
                         self.choice, self.penalty, self.rank)


def available(host_state, answer: Answer,
              earlier: collections.abc.Mapping[str, int] = {},
              ) -> tuple[arrange.AvailableUnits, ...]:
    """Return the available units of a host's Regions, from the summaries.

    :param host_state: nova.scheduler.host_manager.HostState
    :param earlier: units by provider that earlier servers of the request got
    """
    return units(answer.ours(host_state.uuid), summary(host_state).places,
                 earlier)


def units(providers: collections.abc.Mapping[str, dict],
          places: collections.abc.Mapping[str, model.Place] = {},
          earlier: collections.abc.Mapping[str, int] = {},
          ) -> tuple[arrange.AvailableUnits, ...]:
    """Return the available units of our providers of one host.

    :param providers: their summaries by uuid
    :param places: by provider, as far as they are known
    :param earlier: as for :func:`available`
    """
    return tuple(
        arrange.AvailableUnits(
            uuid, resource_class, frozenset(provider['traits']),
            usage['capacity'] - usage['used'] - earlier.get(uuid, 0),
            places.get(uuid) or model.Place.at(model.Location(), uuid),
            usage['capacity'])
        for uuid, provider in providers.items()
        for name, usage in provider['resources'].items()
        if (resource_class := naming.class_of_units(name)))


def of(host_state) -> Answer | None:
    """Return Placement's answer that a host's candidates are from."""
    found = host_state.allocation_candidates
    return getattr(found[0], 'answer', None) if found else None


def claimed(host_state) -> collections.abc.Set[str]:
    """Return the servers of the request that have made their claim."""
    answer = of(host_state)
    return answer.claimed if answer else frozenset()


def has_our_driver(host_state) -> bool:
    """Whether a host's nova-compute runs our driver.

    Our providers stay in Placement after nova-compute was restarted with
    Nova's own driver, which would start the server without its devices.
    """
    stats = getattr(host_state, 'stats', None)
    return stats is None or host_summary.KEY in stats


def summary(host_state) -> host_summary.Summary:
    """Return the summary that the host last reported."""
    # The attribute is missing until Nova has read the compute node.
    stats = getattr(host_state, 'stats', None) or {}
    return host_summary.loads(stats.get(host_summary.KEY), host_state.uuid)

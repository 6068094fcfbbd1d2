# SPDX-License-Identifier: Apache-2.0
"""nova-scheduler: which of a host's allocation candidates, and in what order.

Seam: ``nova.scheduler.filters.BaseHostFilter`` and
``HostState.allocation_candidates``, of which Nova claims the first. Checked
with Nova 33 and 34.
"""

from nova import objects
from nova.scheduler import filters
from nova.virt import hardware
from oslo_log import log as logging

from nova_accel.core import flavor
from nova_accel.core import model
from nova_accel.core import profile
from nova_accel.core import summary
from nova_accel.core import topology
from nova_accel.scheduler import siblings

LOG = logging.getLogger(__name__)


class AcceleratorFilter(filters.BaseHostFilter):
    """Keep a server's devices together, and near its guest.

    Where one request asks for several servers, what one of them has been
    given is not offered to the next.

    Candidates whose devices are not where a group says ``required`` are
    dropped; of the others the closest comes first, after those whose regions
    nobody holds, where one is to be programmed. It calls nothing: the
    locations come with the host's state. It belongs last in
    ``enabled_filters``, so that what it puts first stays first.
    """

    # A rebuild keeps its host and its devices, and has no candidates.
    RUN_ON_REBUILD = False

    def host_passes(self, host_state, spec_obj):
        specs = spec_obj.flavor.extra_specs
        if spec_obj.num_instances < 2 or not flavor.classes(specs):
            return self._choose(host_state, spec_obj)
        before = siblings.Siblings.of(host_state)
        host_state.allocation_candidates = before.leave(
            host_state.allocation_candidates)
        passes = (bool(host_state.allocation_candidates)
                  and self._choose(host_state, spec_obj))
        before.expect(host_state.allocation_candidates)
        return passes

    def _choose(self, host_state, spec_obj):
        passes = self._are_together(host_state, spec_obj)
        if host_state.allocation_candidates:
            # A region that cannot be programmed would be no use close by.
            host_state.allocation_candidates.sort(key=_held_regions(
                spec_obj.flavor.extra_specs, host_state))
        return passes

    def _are_together(self, host_state, spec_obj):
        wishes = {
            f'_{name}': group.numa
            for name, group in flavor.read(spec_obj.flavor.extra_specs).items()
            if group.numa != profile.OFF}
        if not wishes or not host_state.allocation_candidates:
            return True
        if len(wishes) == 1 and not spec_obj.numa_topology:
            # One device is together with itself, wherever it is.
            return True
        locations = {
            provider: model.Location(place.numa_node, place.pcie_root or '',
                                     switch=place.pcie_switch)
            for provider, place in _said(host_state).places.items()}
        guest_nodes = _GuestNodes(host_state, spec_obj)
        objections: dict[str, None] = {}
        costs: dict[int, tuple[int, ...]] = {}

        def keep(candidate):
            verdict = topology.judge(
                wishes, _places(candidate, wishes, locations),
                guest_nodes.with_(candidate), guest_nodes.only_node)
            costs[id(candidate)] = verdict.cost
            if verdict.objection:
                objections[verdict.objection] = None
            return not verdict.objection

        candidates = [candidate for candidate in
                      host_state.allocation_candidates if keep(candidate)]
        if not candidates:
            LOG.info('%(host)s cannot keep devices of %(profile)s together: '
                     '%(why)s (%(count)d allocation candidates)',
                     {'host': host_state.host,
                      'profile': spec_obj.flavor.extra_specs.get(
                          flavor.EXPANDED_KEY, 'the flavor'),
                      'why': '; '.join(list(objections)[:3]),
                      'count': len(host_state.allocation_candidates)})
        # Stable: among equals, Placement's order stays.
        candidates.sort(key=lambda candidate: costs[id(candidate)])
        host_state.allocation_candidates = candidates
        return bool(candidates)


def _said(host_state) -> summary.Summary:
    return summary.loads((host_state.stats or {}).get(summary.KEY),
                         host_state.uuid)


def _held_regions(specs, host_state):
    """Of a candidate, how many regions are to be programmed that are in use.

    Somebody may have the very bitstream there, so these come last.
    """
    groups = [f'_{name}' for name, group in flavor.read(specs).items()
              if group.bitstream]
    units = _said(host_state).units if groups else {}
    in_use = {provider for provider, (total, free) in units.items()
              if free < total}
    return lambda candidate: sum(
        provider in in_use for group in groups
        for provider in candidate['mappings'].get(group, ()))


def _places(candidate, wishes, locations) -> dict[str, model.Location | None]:
    mappings = candidate['mappings']
    return {group: locations.get(provider)
            for group in wishes for provider in mappings.get(group, ())}


class _GuestNodes:
    """The host's NUMA nodes that the guest will be on.

    nova-compute will fit the guest into the host by this same function over
    the same state; without a NUMA topology a guest is not put anywhere.
    """

    def __init__(self, host_state, spec_obj):
        self._host_state = host_state
        self._spec = spec_obj
        cells = host_state.numa_topology.cells if (
            host_state.numa_topology) else ()
        self.only_node = cells[0].id if len(cells) == 1 else None
        pci_requests = spec_obj.pci_requests
        self._pci_requests = pci_requests.requests if pci_requests else []
        self._same_for_all: list[frozenset[int] | None] = []

    def with_(self, candidate) -> frozenset[int] | None:
        """The nodes where a candidate is taken; None for anywhere."""
        if self._pci_requests:
            return self._fit(candidate)
        if not self._same_for_all:
            self._same_for_all.append(self._fit(candidate))
        return self._same_for_all[0]

    def _fit(self, candidate) -> frozenset[int] | None:
        state = self._host_state
        if not self._spec.numa_topology or not state.numa_topology:
            return None
        fitted = hardware.numa_fit_instance_to_host(
            state.numa_topology,
            # The function writes into what it is given.
            self._spec.numa_topology.obj_clone(),
            limits=objects.NUMATopologyLimits(
                cpu_allocation_ratio=state.cpu_allocation_ratio,
                ram_allocation_ratio=state.ram_allocation_ratio),
            pci_requests=self._pci_requests, pci_stats=state.pci_stats,
            provider_mapping=candidate['mappings'])
        # Whether it fits at all is the NUMATopologyFilter's business.
        return frozenset(cell.id for cell in fitted.cells) if fitted else None

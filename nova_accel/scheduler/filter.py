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

LOG = logging.getLogger(__name__)


class AcceleratorFilter(filters.BaseHostFilter):
    """Keep a server's devices together, and near its guest.

    Candidates whose devices are not where a group says ``required`` are
    dropped; of the others the closest comes first. It calls nothing: the
    locations come with the host's state. It belongs last in
    ``enabled_filters``, so that what it puts first stays first.
    """

    # A rebuild keeps its host and its devices, and has no candidates.
    RUN_ON_REBUILD = False

    def host_passes(self, host_state, spec_obj):
        wishes = {
            f'_{name}': group.numa
            for name, group in flavor.read(spec_obj.flavor.extra_specs).items()
            if group.numa != profile.OFF}
        if not wishes or not host_state.allocation_candidates:
            return True
        locations = summary.loads((host_state.stats or {}).get(summary.KEY))
        guest, only_node = _guest_nodes(host_state, spec_obj)
        objections: dict[str, None] = {}
        costs: dict[int, tuple[int, ...]] = {}

        def keep(candidate):
            verdict = topology.judge(
                wishes, _places(candidate, wishes, locations), guest,
                only_node)
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


def _places(candidate, wishes, locations) -> dict[str, model.Location | None]:
    mappings = candidate['mappings']
    return {group: locations.get(provider)
            for group in wishes for provider in mappings.get(group, ())}


def _guest_nodes(host_state, spec_obj):
    """The host's NUMA nodes that the guest will be on, and the only one.

    nova-compute will fit the guest into the host by this same function over
    the same state; without a NUMA topology a guest is not put anywhere.
    """
    host = host_state.numa_topology
    cells = host.cells if host else ()
    only_node = cells[0].id if len(cells) == 1 else None
    if not spec_obj.numa_topology or not host:
        return None, only_node
    # The function writes into the topology that it is given.
    wanted = spec_obj.obj_clone().numa_topology
    fitted = hardware.numa_fit_instance_to_host(
        host, wanted, limits=objects.NUMATopologyLimits(
            cpu_allocation_ratio=host_state.cpu_allocation_ratio,
            ram_allocation_ratio=host_state.ram_allocation_ratio))
    if not fitted:
        # Whether it fits at all is the NUMATopologyFilter's business.
        return None, only_node
    return frozenset(cell.id for cell in fitted.cells), only_node

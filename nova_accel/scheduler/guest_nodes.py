# SPDX-License-Identifier: Apache-2.0
"""Where on a host a guest, and its network ports, are going to be.

Seam: ``nova.virt.hardware.numa_fit_instance_to_host``, by which nova-compute
will fit the guest into the host, over the same state;
``nova.pci.stats.PciDeviceStats``. Checked with Nova 33 and 34.
"""

import copy

from nova import objects
from nova.virt import hardware

from nova_accel.core import affinity
from nova_accel.core import arrangement
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choice


class Nodes:
    """What a request's rules are about, on one host.

    :param host_state: nova.scheduler.host_manager.HostState
    :param spec_obj: nova.objects.RequestSpec
    """

    def __init__(self, host_state, spec_obj, wanted: choice.Request):
        self._host_state = host_state
        self._spec = spec_obj
        self._wanted = wanted
        pci_requests = spec_obj.pci_requests
        self._pci_requests = pci_requests.requests if pci_requests else []
        self._same_for_all: list[arrangement.Surroundings] = []

    def around(self, candidate) -> arrangement.Surroundings:
        """Where a candidate would put guest and network ports."""
        if self._pci_requests:
            return self._around(candidate)
        if not self._same_for_all:
            self._same_for_all.append(self._around(candidate))
        return self._same_for_all[0]

    def _around(self, candidate) -> arrangement.Surroundings:
        cells = self._cells()
        return arrangement.Surroundings(
            self._fit(candidate) if self._wanted.concerns(affinity.GUEST)
            else None,
            self._ports(candidate) if self._wanted.concerns(affinity.NETWORK)
            else None,
            cells[0].id if len(cells) == 1 else None,
            candidates.said(self._host_state).links)

    def _cells(self):
        topology = self._host_state.numa_topology
        return topology.cells if topology else ()

    def _fit(self, candidate) -> frozenset[int] | None:
        """The guest's; None without a NUMA topology, which is anywhere."""
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

    def _ports(self, candidate) -> frozenset[int] | None:
        """Those where all network ports' functions could be had together."""
        requests = [request for request in self._pci_requests
                    if request.source == objects.InstancePCIRequest.
                    NEUTRON_PORT]
        if not requests:
            return None
        return frozenset(cell.id for cell in self._cells() if self._can(
            requests, cell.id, candidate['mappings']))

    def _can(self, requests, node: int, mappings) -> bool:
        if not self._host_state.pci_stats:
            return False
        stats = copy.copy(self._host_state.pci_stats)
        stats.pools = [pool for pool in stats.pools
                       if pool.get('numa_node') == node]
        return stats.support_requests(requests, mappings)

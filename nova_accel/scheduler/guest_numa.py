# SPDX-License-Identifier: Apache-2.0
"""Predict the NUMA nodes of a guest and of its network ports on a host.

Seams: ``nova.virt.hardware.numa_fit_instance_to_host``, with which
nova-compute will fit the guest to the host, from the same state, and to the
nodes of its devices if possible (:mod:`nova_accel.numa_fit`);
``nova.pci.stats.PciDeviceStats.apply_requests``, with which the scheduler
records the PCI devices that nova-compute will take.
"""

import collections
import collections.abc
import copy
import itertools

from nova import exception
from nova import objects
from nova.virt import hardware

from nova_accel import numa_fit
from nova_accel.core import model
from nova_accel.core.request import affinity
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget
from nova_accel.scheduler import candidates


class Nodes:
    """The NUMA nodes of a request's guest and network ports on one host.

    :param host_state: nova.scheduler.host_manager.HostState
    :param spec_obj: nova.objects.RequestSpec
    :param fits: budget of fits to other nodes than those that Nova chooses
    """

    def __init__(self, host_state, spec_obj, wanted: flavor_request.Request,
                 fits: search_budget.Budget):
        self._host_state = host_state
        self._spec = spec_obj
        self._wanted = wanted
        pci_requests = spec_obj.pci_requests
        self._pci_requests = pci_requests.requests if pci_requests else []
        self._fits = fits
        self._contexts: collections.abc.Iterator | None = None

    def around(self, candidate) -> collections.abc.Iterator[
            arrange.HostContext]:
        """Yield the possible contexts of a candidate, Nova's own first."""
        if self._pci_requests or self._contexts is None:
            self._contexts = self._all_contexts(candidate)
        # Compute each context once, when it is first needed.
        self._contexts, contexts = itertools.tee(self._contexts)
        return contexts

    def _all_contexts(self, candidate):
        first = self._context(candidate, self._fit(candidate))
        yield first
        if first.guest is None:
            return
        places = candidates.summary(self._host_state).places.values()
        for nodes in itertools.islice(
                numa_fit.node_sets(self._host_state.numa_topology,
                                   len(first.guest),
                                   {place.numa_node for place in places}),
                self._fits.share().limit):
            if nodes != first.guest:
                self._fits.take(1)
                if fitted := self._fit(candidate, nodes):
                    yield self._context(candidate, fitted)

    def _context(self, candidate, guest) -> arrange.HostContext:
        return arrange.HostContext(
            frozenset(cell.id for cell in guest) if guest else None,
            self._ports(candidate, guest)
            if self._wanted.has_member(affinity.NETWORK) else None,
            self._only_node(), candidates.summary(self._host_state).links)

    def _only_node(self) -> int | None:
        """Return the host's NUMA node with CPUs, if it has exactly one."""
        topology = self._host_state.numa_topology
        nodes = {cell.id for cell in topology.cells} if topology else set()
        nodes -= candidates.summary(self._host_state).cpuless_nodes.keys()
        return nodes.pop() if len(nodes) == 1 else None

    def _fit(self, candidate, nodes=None):
        """Return the guest's cells on the host, if a rule needs them.

        :param nodes: the host nodes to fit to, None for all
        :returns: None also for a guest without a NUMA topology
        """
        state = self._host_state
        if not self._spec.numa_topology or not state.numa_topology or not any(
                map(self._wanted.has_member, (affinity.GUEST,
                                              affinity.NETWORK))):
            return None
        fitted = hardware.numa_fit_instance_to_host(
            state.numa_topology if nodes is None
            else numa_fit.restrict(state.numa_topology, nodes),
            # The function modifies its argument.
            self._spec.numa_topology.obj_clone(), limits=self._limits(),
            pci_requests=self._pci_requests, pci_stats=state.pci_stats,
            provider_mapping=candidate['mappings'])
        # NUMATopologyFilter rejects hosts on which the guest does not fit.
        return fitted.cells if fitted else None

    def _limits(self):
        """Return the limits that NUMATopologyFilter would set."""
        limits = objects.NUMATopologyLimits(
            cpu_allocation_ratio=self._host_state.cpu_allocation_ratio,
            ram_allocation_ratio=self._host_state.ram_allocation_ratio)
        if 'network_metadata' in self._spec and self._spec.network_metadata:
            limits.network_metadata = self._spec.network_metadata
        return limits

    def _ports(self, candidate, guest) -> frozenset[int] | None:
        """Return the nodes of the functions that Nova takes for ports.

        Nova takes the first functions that match. So does the claim in
        nova-compute, which has the pools in the same order.
        """
        if not any(map(_is_ports, self._pci_requests)):
            return None
        stats = copy.deepcopy(self._host_state.pci_stats)
        if not stats:
            return frozenset()
        found: set[int | None] = set()
        for request in self._pci_requests:
            before = _free(stats)
            try:
                stats.apply_requests([request], candidate['mappings'], guest)
            except exception.PciDeviceRequestFailed:
                return frozenset()
            if _is_ports(request):
                found.update(before - _free(stats))
        return model.nodes_with_cpus(
            found, candidates.summary(self._host_state).cpuless_nodes,
            self._only_node())


def _is_ports(request) -> bool:
    return request.source == objects.InstancePCIRequest.NEUTRON_PORT


def _free(stats) -> collections.Counter[int | None]:
    """Return the number of free functions on each NUMA node."""
    free: collections.Counter[int | None] = collections.Counter()
    for pool in stats.pools:
        free[pool.get('numa_node')] += pool['count']
    return free

# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts with 16 partitioned GPUs and 8 network cards.

Random devices are in use.
"""

import copy
import gc
import random
import time
import uuid

from nova import objects
from nova.scheduler import host_manager
from nova.scheduler.filters import numa_topology_filter

from nova_accel.core import model
from nova_accel.core.placement import host_summary
from nova_accel.core.placement import inventory
from nova_accel.core.placement import providers
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import search
from nova_accel.scheduler import candidates
from nova_accel.scheduler import filter as filter_
from nova_accel.scheduler import shortlist
from tests.bench import unlike

GPU, NIC = 'CUSTOM_GPU', 'CUSTOM_NIC'
GPUS, NICS, SWITCHES, NODES = 16, 8, 8, 2
PROCESSORS, MEMORY_MB = 64, 1 << 20
#: The share of all devices that is in use.
IN_USE = 0.3
#: The number of devices of each class that a server requests.
COUNT = 4


class Fleet:

    def __init__(self, count: int):
        objects.register_all()
        chance = random.Random(count)
        self.summaries: dict[str, dict] = {}
        self._states = [self._host(f'host{number}', chance)
                        for number in range(count)]
        self._filter = filter_.AcceleratorFilter()

    def _host(self, name, chance) -> host_manager.HostState:
        root = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        found = inventory.NodeInventory(machine(), inventory.Node(root, name))
        for provider in (*providers.desired(found),
                         *providers.classes(found)):
            self.summaries[provider.uuid] = {
                'root_provider_uuid': root, 'traits': sorted(provider.traits),
                'parent_provider_uuid': provider.parent,
                'resources': {name: {'capacity': total, 'used': 0}
                              for name, total in provider.totals.items()}}
        counting = {name: uuid for uuid, name in inventory.counting(
            root, (GPU, NIC)).items()}
        for item in found.offered:
            if chance.random() < IN_USE:
                for provider in (item.uuid,
                                 counting[item.region.resource_class]):
                    [amounts] = self.summaries[provider]['resources'].values()
                    amounts['used'] += 1
        state = host_manager.HostState(name, name, 'cell')
        state.uuid, state.num_instances = root, 0
        state.stats = {host_summary.KEY: host_summary.dumps(
            found.offered, links=machine().links)}
        state.numa_topology = _topology(chance)
        state.cpu_allocation_ratio = state.ram_allocation_ratio = 1.
        state.pci_stats = None
        state.free = {name: COUNT <= amounts['capacity'] - amounts['used']
                      for name, uuid in counting.items() for amounts in [
                          self.summaries[uuid]['resources'][name]]}
        state.allocations = {
            root: {'resources': {'VCPU': 16}},
            **{uuid: {'resources': {name: COUNT}}
               for name, uuid in counting.items()}}
        return state

    def states(self) -> list[host_manager.HostState]:
        """Return the hosts with enough free devices, as for a new request."""
        answer = candidates.Answer(self.summaries, None)
        found = []
        for host in self._states:
            if all(host.free.values()):
                state = copy.copy(host)
                state.allocation_candidates = [candidates.Candidate(
                    {'allocations': host.allocations,
                     'mappings': {'': [host.uuid]}}, answer)]
                found.append(state)
        return found

    def measure(self, policy: str) -> dict:
        """Return the seconds of each part, for a first and second request."""
        wanted = flavor_request.parse(specs(policy))
        search.cached.memory.clear()
        cell: dict = {'candidates': len(self.states()),
                      **{part: {} for part in (unlike.RANK, unlike.EXAMINE)}}
        for when in (unlike.FIRST, unlike.AGAIN):
            found = {state.uuid: state.allocation_candidates
                     for state in self.states()}
            cell[unlike.RANK][when], ranking = _timed(
                shortlist.rank, wanted, found, unlike.SIZE)
            best, *_rest = ranking.rounds(unlike.SIZE)
            cell[unlike.EXAMINE][when], _passed = self._examine(
                policy, [state for state in self.states()
                         if state.uuid in best])
        cell.update(fitting=len(ranking.fitting), unsure=len(ranking.unsure))
        search.cached.memory.clear()
        cell[unlike.FILTER] = {when: self._examine(policy, self.states())[0]
                               for when in (unlike.FIRST, unlike.AGAIN)}
        novas = numa_topology_filter.NUMATopologyFilter()
        cell[unlike.NOVAS] = {unlike.FIRST: _timed(
            lambda: list(novas.filter_all(self.states(), _spec(
                policy, _guest()))))[0]}
        return cell

    def _examine(self, policy, states):
        return _timed(lambda: list(self._filter.filter_all(
            states, _spec(policy))))


def _timed(function, *arguments):
    gc.collect()
    begin = time.process_time()
    answer = function(*arguments)
    return round(time.process_time() - begin, 6), answer


def machine() -> model.Host:
    def cards(resource_class, count, bus):
        for number in range(count):
            switch = number * SWITCHES // count
            at = model.PciAddress(0, bus + number, 0, 0)
            yield model.Device(at, '10de:2330', model.Location(
                switch * NODES // SWITCHES, f'pci0000:{switch:02x}', (),
                f'0000:{switch:02x}:00.0'), (model.Region(
                    resource_class, resource_class, frozenset(), ((at,),)),))

    gpus = [*cards(GPU, GPUS, 0x80)]
    names = [str(gpu.address) for gpu in gpus]
    return model.Host((), (*gpus, *cards(NIC, NICS, 0xa0)), links=model.Links(
        tuple(frozenset(names[first:first + size])
              for size in (16, 8, 4, 2, 1)
              for first in range(0, GPUS, size)), ()))


def specs(policy: str) -> dict[str, str]:
    """Return the extra specs for four GPUs and four network cards."""
    groups = [{'name': name, 'resources': {resource_class: 1}, 'count': COUNT,
               'numa': 'off'} for name, resource_class in (
                   ('gpu', GPU), ('nic', NIC))]
    return flavor_specs.expand(device_profile.parse({
        'name': policy, 'groups': groups, 'affinity': [
            {'same': 'link_domain', 'groups': ['gpu'], 'policy': policy},
            {'same': 'pcie_switch', 'groups': ['gpu', 'nic'], 'each': True,
             'policy': policy}]}, policy), {})


def _spec(policy, guest=None):
    return objects.RequestSpec(
        flavor=objects.Flavor(
            vcpus=16, memory_mb=1024, root_gb=1, ephemeral_gb=0, swap=0,
            extra_specs=specs(policy)), num_instances=1, numa_topology=guest,
        pci_requests=None, instance_group=None, requested_destination=None,
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        instance_uuid=str(uuid.uuid4()))


def _guest():
    return objects.InstanceNUMATopology(cells=[objects.InstanceNUMACell(
        id=0, cpuset=set(), pcpuset=set(range(16)), memory=1024,
        cpu_policy='dedicated', cpu_thread_policy=None, pagesize=None)])


def _topology(chance):
    cells = []
    for node in range(NODES):
        own = set(range(node * PROCESSORS, (node + 1) * PROCESSORS))
        cells.append(objects.NUMACell(
            id=node, cpuset=set(), pcpuset=own, cpu_usage=0,
            memory=MEMORY_MB, memory_usage=0, socket=node, siblings=[
                {one} for one in own], pinned_cpus=set(chance.sample(
                    sorted(own), chance.randint(0, PROCESSORS // 2))),
            mempages=[objects.NUMAPagesTopology(
                size_kb=4, total=MEMORY_MB << 8, used=0)],
            network_metadata=objects.NetworkMetadata(physnets=set(),
                                                     tunneled=False)))
    return objects.NUMATopology(cells=cells)

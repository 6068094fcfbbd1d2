# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts with eight GPUs for nova-scheduler, without services.

The project's own code makes what nova-compute would write and what Placement
would answer. Allocations are kept in the form of Placement's answers.
"""

import copy
import dataclasses
import functools
import uuid

from nova import objects
from nova.scheduler import host_manager

from nova_accel.core import model
from nova_accel.core.placement import host_summary
from nova_accel.core.placement import inventory
from nova_accel.core.placement import providers
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.host import reader
from nova_accel.host import tree
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices
from tests.functional import cloud

#: Resources of each host. A server gets a share in proportion to its devices.
DEVICES, VCPUS, MEMORY_MB, DISK_GB = 8, 128, 2 << 20, 8 << 10
#: The number of devices of a NUMA node.
OF_A_NODE = 4


@dataclasses.dataclass
class Host:
    """:param root: the uuid of the compute node's provider
    :param counter: the uuid of the provider that counts all devices
    :param devices: NUMA nodes by device provider
    """

    root: str
    counter: str
    state: host_manager.HostState
    devices: dict[str, int]

    def __hash__(self):
        return hash(self.root)


class Fleet:
    """Hosts, and the allocations of their servers."""

    def __init__(self, count: int):
        objects.register_all()
        self.summaries: dict[str, dict] = {}
        self.hosts = [self._host(number) for number in range(count)]
        self.by_root = {host.root: host for host in self.hosts}

    def _host(self, number) -> Host:
        name = f'host{number}'
        root = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        offered = inventory.NodeInventory(
            machine(), inventory.Node(root, name)).offered
        reported = reported_by(root, name)
        for provider in reported:
            self.summaries[provider.uuid] = {
                'root_provider_uuid': root, 'traits': sorted(provider.traits),
                'parent_provider_uuid': provider.parent,
                'resources': {name: {'capacity': total, 'used': 0}
                              for name, total in provider.totals.items()}}
        [counter] = [provider.uuid for provider in reported
                     if cloud.GPU in provider.totals]
        return Host(root, counter, _state(name, root, offered), {
            item.uuid: item.device.location.numa_node for item in offered})

    def used(self, provider: str) -> int:
        [record] = self.summaries[provider]['resources'].values()
        return record['used']

    def free(self, host: Host) -> list[str]:
        """Return the free devices of a host, in order."""
        return [device for device in host.devices if not self.used(device)]

    def ask(self, count: int) -> list[Host]:
        """Return the hosts with so many free devices."""
        return [host for host in self.hosts
                if self.used(host.counter) + count <= DEVICES]

    def states(self, count: int) -> list[host_manager.HostState]:
        """Return host states of these hosts, with allocation candidates."""
        answer = candidates.Answer(self.summaries, None)
        found = []
        for host in self.ask(count):
            # A copy, because a request changes the state.
            state = copy.copy(host.state)
            state.allocation_candidates = [candidates.Candidate(
                _candidate(host, count), answer)]
            found.append(state)
        return found

    def claim(self, host: Host, devices: list[str], sign: int = 1) -> None:
        """Allocate devices of a host to a server.

        :param sign: -1 releases them
        """
        for provider, amount in ((host.counter, len(devices)),
                                 *((device, 1) for device in devices)):
            [record] = self.summaries[provider]['resources'].values()
            record['used'] += sign * amount
            assert 0 <= record['used'] <= record['capacity']
        share = sign * len(devices) / DEVICES
        state = host.state
        state.num_instances += sign
        state.vcpus_used += VCPUS * share
        state.free_ram_mb -= MEMORY_MB * share
        state.free_disk_mb -= DISK_GB * 1024 * share

    def release(self, host: Host, devices: list[str]) -> None:
        self.claim(host, devices, -1)


@functools.cache
def machine() -> model.Host:
    """Return the recorded machine as nova_accel sees it."""
    entries, _broken = reader.parse([cloud.GPU_SPEC])
    return reader.read(tree.open_tree(cloud.EIGHT_GPUS), entries)


def reported_by(root: str, name: str) -> tuple[providers.Provider, ...]:
    """Return the providers that a nova-compute reports, parents first.

    :param root: the uuid of the compute node's provider
    :param name: the name of the compute node
    """
    offered = inventory.NodeInventory(machine(), inventory.Node(root, name))
    return (*providers.desired(offered), *providers.classes(offered))


def chosen(state: host_manager.HostState) -> list[str]:
    """Return the devices that the filter added to the candidate."""
    return list(choose_devices.devices(state.allocation_candidates[0]))


def request(count: int,
            numa: str = device_profile.PREFERRED) -> objects.RequestSpec:
    """Return the request spec of a server with a number of devices."""
    group = device_profile.Group({cloud.GPU: 1}, {}, numa)
    return objects.RequestSpec(
        flavor=objects.Flavor(
            vcpus=VCPUS * count // DEVICES, root_gb=1, ephemeral_gb=0, swap=0,
            memory_mb=MEMORY_MB * count // DEVICES,
            extra_specs=flavor_specs.expand(
                device_profile.Profile(f'gpu-{count}', (group,) * count), {})),
        num_instances=1, numa_topology=None, pci_requests=None,
        force_hosts=None, force_nodes=None, instance_group=None,
        image=objects.ImageMeta(
            properties=objects.ImageMetaProps()),
        requested_destination=None, instance_uuid=str(uuid.uuid4()))


def _state(name, root, offered) -> host_manager.HostState:
    state = host_manager.HostState(name, name, 'cell')
    state.uuid = root
    state.stats = {host_summary.KEY: host_summary.dumps(offered)}
    state.vcpus_total = VCPUS
    state.total_usable_ram_mb = state.free_ram_mb = MEMORY_MB
    state.total_usable_disk_gb = DISK_GB
    state.free_disk_mb = DISK_GB * 1024
    state.cpu_allocation_ratio = state.ram_allocation_ratio = 1.
    state.disk_allocation_ratio = 1.
    state.hypervisor_version = 8_002_002
    return state


def _candidate(host, count) -> dict:
    return {
        'allocations': {
            host.root: {'resources': {
                'VCPU': VCPUS * count // DEVICES,
                'MEMORY_MB': MEMORY_MB * count // DEVICES}},
            host.counter: {'resources': {cloud.GPU: count}}},
        'mappings': {'': [host.root], '_ACCEL0': [host.counter]}}

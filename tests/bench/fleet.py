# SPDX-License-Identifier: Apache-2.0
"""Hosts with eight GPUs as nova-scheduler sees them, and Placement's answers.

There is no service behind them: what a nova-compute would write and Placement
would answer is made here by the project's own code, and what is promised is
kept in the form in which Placement answers.
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

#: Of each host; they are shared out with the devices.
DEVICES, VCPUS, MEMORY_MB, DISK_GB = 8, 128, 2 << 20, 8 << 10
#: Devices of one NUMA node.
OF_A_NODE = 4


@dataclasses.dataclass
class Host:
    """:param devices: NUMA nodes by device provider; and who has which"""

    root: str
    counter: str
    state: host_manager.HostState
    devices: dict[str, int]

    def __hash__(self):
        return hash(self.root)


class Fleet:
    """Some hosts, and the ledger of what servers hold of them."""

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
        """The devices of a host that nobody has, in their order."""
        return [device for device in host.devices if not self.used(device)]

    def ask(self, count: int) -> list[Host]:
        """The hosts that have as many devices."""
        return [host for host in self.hosts
                if self.used(host.counter) + count <= DEVICES]

    def states(self, count: int) -> list[host_manager.HostState]:
        """Those, as Nova's scheduler has them after it asked Placement."""
        answer = candidates.Answer(self.summaries, None)
        found = []
        for host in self.ask(count):
            # What one request leaves at it is not for the next.
            state = copy.copy(host.state)
            state.allocation_candidates = [candidates.Candidate(
                _candidate(host, count), answer)]
            found.append(state)
        return found

    def claim(self, host: Host, devices: list[str], sign: int = 1) -> None:
        """Give devices of a host to a server; or take them back."""
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
    """The recorded machine as nova_accel sees it."""
    entries, _broken = reader.parse([cloud.GPU_SPEC])
    return reader.read(tree.open_tree(cloud.EIGHT_GPUS), entries)


def reported_by(root: str, name: str) -> tuple[providers.Provider, ...]:
    """The providers that its nova-compute has in Placement, parents first.

    :param root: uuid of the compute node's provider
    :param name: of the compute node
    """
    offered = inventory.NodeInventory(machine(), inventory.Node(root, name))
    return (*providers.desired(offered), *providers.classes(offered))


def chosen(state: host_manager.HostState) -> list[str]:
    """The devices that the filter has put into what Nova would claim."""
    return list(choose_devices.devices(state.allocation_candidates[0]))


def request(count: int,
            numa: str = device_profile.PREFERRED) -> objects.RequestSpec:
    """What nova-scheduler is asked for a server with some devices."""
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

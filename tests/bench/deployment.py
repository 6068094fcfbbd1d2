# SPDX-License-Identifier: Apache-2.0
"""Many hosts with eight GPUs, a real scheduler and a real Placement.

It runs in a process of its own (:mod:`tests.bench.worker`). For a number of
devices, a side of :data:`SIDES` returns the outcome and the duration of Nova's
``select_destinations``.
"""

# First: it monkey-patches threads before any thread exists.
from tests.functional import cloud  # isort: split

import functools
import gc
import json
import logging
import re
import statistics
import time

import fixtures
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.pci import request as pci_request
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt import hardware
from oslo_messaging.rpc import dispatcher
from oslo_utils import uuidutils

from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from tests.bench import clones
from tests.bench import fleet
from tests.bench import worker

_ADDRESS = re.compile(r'_(\w{4}:\w{2}:\w{2}\.\w)$')
#: A request is repeated until it took so many seconds in total, or was made
#: so many times.
PATIENCE, ROUNDS = 5, 7


class _Deployment(cloud.Cloud):

    DEVICE_SPEC = (cloud.GPU_SPEC,)

    def __init__(self, connection, hosts):
        super().__init__('serve')
        self._connection, self._hosts = connection, hosts

    def setUp(self):
        # Copies of services never report again. Services read this option
        # when they start.
        self.flags(service_down_time=86400)
        super().setUp()
        self._nodes = _gpus()

    def serve(self):
        self.start_compute('compute1', pci_info=self.pci_info())
        self._run_periodics()
        names = [f'compute{number}' for number in range(2, self._hosts + 1)]
        clones.clone('compute1', self.compute_rp_uuids['compute1'], names,
                     self.derived)
        self._context = nova_context.get_admin_context()
        manager = self.scheduler.manager.host_manager
        for name in ('compute1', *names):
            # As each nova-compute reports when it starts: no instances.
            manager.sync_instance_info(self._context, name, [])
            manager.sync_instance_info(self._context, name, [])
        self._watch()
        # Nova's fixtures would format each debug message.
        logging.disable(logging.DEBUG)
        self.addCleanup(logging.disable, logging.NOTSET)
        # Fill connection pools and statement caches, and import modules.
        self.answer(count=1, one_node=False)
        worker.answer(self._connection, self.answer)

    def _watch(self):
        client = self.scheduler.manager.placement_client
        get = client.get_allocation_candidates

        def timed(*args):
            begin = time.perf_counter()
            found = get(*args)
            self._placement = (time.perf_counter() - begin, found[0] or ())
            return found
        self.useFixture(fixtures.MockPatchObject(
            client, 'get_allocation_candidates', timed))

    def answer(self, count, one_node, crowded=False) -> dict:
        """Ask the scheduler repeatedly, and return the median times.

        :param crowded: from now on, a device is in use on each host but the
            last
        """
        if crowded:
            self._crowd()
        rounds: list[dict] = []
        while len(rounds) < ROUNDS and (
                sum(item['seconds'] for item in rounds) < PATIENCE):
            rounds.append(self._round(count, one_node))
        return {**rounds[-1], 'rounds': len(rounds), **{
            key: round(statistics.median(item[key] for item in rounds), 6)
            for key in ('seconds', 'placement_seconds')},
            # The worst outcome: 'right' is the last in the alphabet.
            'outcome': min(item['outcome'] for item in rounds)}

    @functools.cache  # noqa: B019 (there is one deployment in a process)
    def _crowd(self):
        uuids = {provider['name']: provider['uuid'] for provider in
                 self.placement.get('/resource_providers').body[
                     'resource_providers']}
        first = min(self._nodes)
        for number in range(1, self._hosts):
            taken = self.one_device(f'compute{number}', first)
            answered = self.placement.put(
                f'/allocations/{uuidutils.generate_uuid()}', {
                    'allocations': {uuids[name]: {'resources': resources}
                                    for name, resources in taken.items()},
                    'project_id': 'bench', 'user_id': 'bench',
                    'consumer_generation': None}, version='1.28')
            assert answered.status == 204, answered.body

    def _round(self, count, one_node) -> dict:
        uuid = uuidutils.generate_uuid()
        spec = self._request(uuid, self.specs(count, one_node))
        gc.collect()
        self._placement = (0, ())
        begin = time.perf_counter()
        try:
            self.scheduler.manager.select_destinations(
                self._context, spec_obj=spec, instance_uuids=[uuid],
                return_objects=True, return_alternates=True)
        except dispatcher.ExpectedException as expected:
            # The scheduler wraps NoValidHost so that it is not logged.
            if not isinstance(expected.exc_info[1], exception.NoValidHost):
                raise
            found = False
        else:
            found = True
        took = time.perf_counter() - begin
        seconds, candidates = self._placement
        return {'seconds': took, 'placement_seconds': seconds,
                'candidates': len(candidates),
                'outcome': self._verdict(uuid, count, one_node)
                if found else 'no host'}

    def _request(self, uuid, extra_specs) -> objects.RequestSpec:
        wanted = objects.Flavor(
            id=1, flavorid='bench', name='bench', vcpus=1, memory_mb=256,
            root_gb=1, ephemeral_gb=0, swap=0, disabled=False, is_public=True,
            rxtx_factor=1.0, vcpu_weight=0, description=None,
            extra_specs=extra_specs)
        image = objects.ImageMeta.from_dict({})
        return objects.RequestSpec.from_components(
            self._context, uuid, image, wanted,
            hardware.numa_get_constraints(wanted, image),
            pci_request.get_pci_requests_from_flavor(
                wanted, hardware.get_pci_numa_policy_constraint(
                    wanted, image)),
            {}, None, None, project_id='bench', user_id='bench')

    def _verdict(self, uuid, count, one_node) -> str:
        """Return whether the allocated devices match the request."""
        allocations = self.placement.get(
            f'/allocations/{uuid}').body['allocations']
        names = [self.placement.get(
            f'/resource_providers/{provider}').body['name']
            for provider in allocations]
        addresses = [match[1] for name in names
                     if (match := _ADDRESS.search(name))]
        self.placement.delete(f'/allocations/{uuid}')
        right = (len({name.partition('_')[0] for name in names}) == 1
                 and len(addresses) == count
                 and len({self._nodes[address] for address in addresses})
                 <= (1 if one_node else 2))
        return 'right' if right else 'not as asked for'


class Ours(_Deployment):
    """nova_accel: profiles, AcceleratorFilter, Placement's defaults."""

    @staticmethod
    def derived(root, name):
        return {provider.name: provider.uuid
                for provider in fleet.reported_by(root, name)}

    @staticmethod
    def one_device(host, address):
        return {f'{host}_accel_{address}': {cloud.unit(cloud.GPU): 1},
                f'{host}_accel_{cloud.GPU}': {cloud.GPU: 1}}

    def pci_info(self):
        return None

    def specs(self, count, one_node):
        if not count:
            return {}
        wanted = device_profile.parse({'name': 'bench', 'groups': [{
            'resources': {cloud.GPU: 1}, 'count': count,
            'numa': device_profile.REQUIRED if one_node
            else device_profile.OFF}]}, 'bench')
        return flavor_specs.expand(wanted, _guest(one_node))


class Novas(_Deployment):
    """Nova's way: PCI devices in Placement, default options."""

    ADDITIONAL_FILTERS = ['PciPassthroughFilter', 'NUMATopologyFilter']

    def setUp(self):
        super().setUp()
        ids = {'vendor_id': '10de', 'product_id': '2330'}
        self.flags(group='pci', report_in_placement=True,
                   device_spec=[json.dumps(ids)],
                   alias=[json.dumps({**ids, 'name': 'gpu',
                                      'device_type': 'type-PCI'})])
        self.flags(group='filter_scheduler', pci_in_placement=True)

    def _setup_compute_service(self):
        self.flags(compute_driver='libvirt.LibvirtDriver')

    @staticmethod
    def one_device(host, address):
        return {f'{host}_{address}': {'CUSTOM_PCI_10DE_2330': 1}}

    @staticmethod
    def derived(root, name):
        return {}

    def pci_info(self):
        info = fakelibvirt.HostPCIDevicesInfo(num_pfs=0, num_vfs=0)
        for group, (address, node) in enumerate(_gpus().items()):
            _domain, *numbers = re.split('[:.]', address)
            info.add_device('PCI', *(int(number, 16) for number in numbers),
                            group, node, vend_id='10de', prod_id='2330')
        return info

    def specs(self, count, one_node):
        if not count:
            return {}
        return {'pci_passthrough:alias': f'gpu:{count}', **_guest(one_node),
                **({'hw:pci_numa_affinity_policy': 'required'}
                   if one_node else {})}


class NovasTuned(Novas):
    """Nova's way, with Placement's options for wide provider trees."""

    def setUp(self):
        super().setUp()
        config = self.placement_fixture.conf_fixture.config
        config(group='placement', max_allocation_candidates=1000,
               allocation_candidates_generation_strategy='breadth-first')
        config(group='workarounds', optimize_for_wide_provider_trees=True)


SIDES = {'ours': Ours, 'tuned': NovasTuned, 'defaults': Novas}


def _guest(one_node: bool) -> dict[str, str]:
    return {'hw:numa_nodes': '1'} if one_node else {}


def _gpus() -> dict[str, int]:
    """Return the NUMA nodes of a host's GPUs by PCI address."""
    return {str(device.address): device.location.numa_node
            for device in fleet.machine().devices}

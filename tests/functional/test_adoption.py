# SPDX-License-Identifier: Apache-2.0
"""Adoption of running servers with devices of [pci] alias or of Cyborg."""

import contextlib
import json

import fixtures
from lxml import etree
from nova import context
from nova import objects
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.core import errors
from nova_accel.core import model
from tests.functional import cloud

_GPUS = ('43', '44', '83', '84')


class AdoptionCase(cloud.Cloud):

    ADDRESSES = tuple(f'0000:{bus}:00.0' for bus in _GPUS)

    def setUp(self):
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.flags(device_spec=[], group='nova_accel')
        self.flags(device_spec=[json.dumps(
            {'vendor_id': '10de', 'product_id': '2330'})], group='pci')
        self.flags(alias=[json.dumps({
            'name': 'gpu', 'vendor_id': '10de', 'product_id': '2330',
            'device_type': 'type-PCI', 'numa_policy': 'preferred'})],
            group='pci')
        machine = fakelibvirt.HostPCIDevicesInfo(num_pci=0, num_pfs=0,
                                                 num_vfs=0)
        for number, bus in enumerate(_GPUS):
            machine.add_device('PCI', int(bus, 16), 0, 0, number, 0,
                               vend_id='10de', prod_id='2330')
        self.start_compute('compute1', pci_info=machine)
        self.gpu_profile('pair', 2, numa='off')
        self.pair = self.flavor('pair')

    def take_over(self):
        """Give the devices to nova_accel, as the operator does."""
        self.flags(device_spec=[], group='pci')
        self.flags(device_spec=[cloud.FOUR_SPEC], group='nova_accel')
        with self.watch('put') as of_put, self.watch('post') as of_post:
            self.restart_compute_service('compute1')
            self._run_periodics()
            self._run_periodics()
        self.assertEqual(self.free_by_right, self.free())
        self.assertEqual(set(), (of_put | of_post) - self.free_by_right)

    @contextlib.contextmanager
    def watch(self, method):
        """Collect the devices that are free after any write to Placement."""
        write, found = getattr(report.SchedulerReportClient, method), set()

        def watched(*args, **kwargs):
            try:
                return write(*args, **kwargs)
            finally:
                if 'compute1' in self.compute_rp_uuids:
                    found.update(self.free())
        with fixtures.MonkeyPatch('nova.scheduler.client.report.'
                                  f'SchedulerReportClient.{method}', watched):
            yield found

    def free(self):
        """Return the addresses of the devices with free units in Placement."""
        free = set()
        for name, provider in self.providers().items():
            used = sum(self._get_provider_usages(provider['uuid']).values())
            inventory = self._get_provider_inventory(provider['uuid'])
            if sum(record['total'] - record['reserved']
                   for record in inventory.values()) > used:
                free.add(name.rpartition('_')[2])
        return free

    def devices(self):
        """Return the status of Nova's PCI devices in use, by address."""
        found = objects.PciDeviceList.get_by_compute_node(
            context.get_admin_context(), self.node_id())
        return {device.address: device.status for device in found
                if device.status != 'available'}

    def node_id(self):
        return objects.ComputeNode.get_first_node_by_host_for_old_compat(
            context.get_admin_context(), 'compute1').id

    def check_keeps(self, server):
        before = self.hostdevs(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.hostdevs(server))
        self.assertEqual(before, {
            str(device.address): device.alias
            for device in self.attached(server)})
        self._resize_server(server, self.pair)
        self._confirm_resize(server)
        self._run_periodics()
        self.assertEqual(2, len(self.hostdevs(server)))
        self.assertEqual([], self.disagreements())
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual(set(self.ADDRESSES), self.free())

    def check_taken_over(self, server, devices):
        self.assertEqual(devices, self.hostdevs(server).keys())
        self.assertEqual({f'compute1_accel_{address}': {cloud.GPU: 1}
                          for address in devices}, self.allocated(server))
        self.assertEqual([], self.disagreements())
        self.assertEqual(1, self.stdlog.logger.output.count('Took over'))


class AliasTest(AdoptionCase):

    def setUp(self):
        super().setUp()
        self.server = self.boot(self.flavor(
            extra_spec={'pci_passthrough:alias': 'gpu:2'}))
        self.free_by_right = set(self.ADDRESSES) - self.hostdevs(
            self.server).keys()

    def test_server_that_runs(self):
        devices = self.hostdevs(self.server).keys()
        self.take_over()
        self.check_taken_over(self.server, devices)
        self.assertEqual({}, self.devices())
        self.check_keeps(self.server)

    def test_server_that_is_migrated(self):
        """An adopted server can migrate with its old request spec.

        The request spec still has the PCI request.
        """
        self.take_over()
        self.start_compute('compute2')
        self._migrate_server(self.server)
        self._confirm_resize(self.server)
        self.assertEqual(2, len(self.hostdevs(self.server, 'compute2')))
        self._run_periodics()
        self.assertEqual(set(self.ADDRESSES), self.free())

    def test_server_that_is_evacuated(self):
        """An adopted server can be evacuated with its old request spec.

        The request spec still has the old flavor and the PCI request.
        """
        self.take_over()
        self.start_compute('compute2')
        self.computes['compute1'].stop()
        [service] = self.api.get_services(binary='nova-compute',
                                          host='compute1')
        self.api.put_service(service['id'], {'forced_down': True})
        self._evacuate_server(self.server, expected_host='compute2')
        self.assertEqual(2, len(self.hostdevs(self.server, 'compute2')))
        self.assertEqual([], self.disagreements('compute2'))

    def test_server_that_is_stopped(self):
        devices = self.hostdevs(self.server).keys()
        self._stop_server(self.server)
        self.take_over()
        self.check_taken_over(self.server, devices)
        self._start_server(self.server)
        self.check_keeps(self.server)

    def test_server_that_is_suspended_afterwards(self):
        devices = self.hostdevs(self.server).keys()
        self.take_over()
        self._suspend_server(self.server)
        self._resume_server(self.server)
        self.check_taken_over(self.server, devices)

    def test_server_with_a_device_that_is_not_offered(self):
        self.free_by_right = set()
        held = self.hostdevs(self.server)
        entry = json.loads(cloud.FOUR_SPEC)
        self.flags(device_spec=[json.dumps({**entry, 'address': min(held)})],
                   group='nova_accel')
        self.flags(device_spec=[], group='pci')
        self.restart_compute_service('compute1')
        for _round in range(3):
            self._run_periodics()
        self.assertEqual(held, self.hostdevs(self.server))
        self.assertEqual({}, self.allocated(self.server))
        self.assertEqual(set(), self.free())
        self.assertEqual(1, self.stdlog.logger.output.count(
            f'is not taken over: device {max(held)}: is not offered'))

    def test_steps_that_nova_compute_did_not_finish(self):
        devices = self.hostdevs(self.server).keys()
        for step in ('nova_accel.compute.state.placement.PlacementClient.'
                     'adopt', 'nova.objects.Instance.save'):
            with fixtures.MonkeyPatch(step, self.die):
                self.take_over()
            self.assertEqual(0, self.stdlog.logger.output.count('Took over'))
        self.take_over()
        self.check_taken_over(self.server, devices)
        self.check_keeps(self.server)

    def die(self, *_args, **_kwargs):
        raise errors.AssignmentError('nova-compute', 'died')


class CyborgTest(AdoptionCase):

    def test_server_of_a_device_profile_of_cyborg(self):
        server = self.boot(self.flavor())
        devices = set(self.ADDRESSES[:2])
        self.free_by_right = set(self.ADDRESSES) - devices
        self.give(server, devices)
        self.take_over()
        self.check_taken_over(server, devices)
        allocated = self._get_allocations_by_server_uuid(server['id'])
        self.assertEqual(set(), self.cyborgs & allocated.keys())
        self.check_keeps(server)

    def give(self, server, addresses):
        """Give devices to a server as Nova and Cyborg do."""
        instance = objects.Instance.get_by_uuid(
            context.get_admin_context(), server['id'],
            expected_attrs=['flavor'])
        flavor = instance.flavor
        flavor.extra_specs = {'accel:device_profile': 'two-gpus'}
        instance.flavor = flavor
        instance.save()
        domain = self.domain(server)
        for address in addresses:
            at = model.PciAddress.parse(address)
            element = etree.fromstring(
                '<hostdev mode="subsystem" type="pci" managed="yes"><source>'
                f'<address domain="{at.domain:#x}" bus="{at.bus:#x}" '
                f'slot="{at.slot:#x}" function="{at.function:#x}"/>'
                '</source><alias name="hostdev0"/></hostdev>')
            domain.hostdevs.append(element)
            domain.plugged.append(element)
        self.allocate(server, addresses)

    def allocate(self, server, addresses):
        self.cyborgs = set()
        self.placement.put('/resource_classes/CUSTOM_CYBORG_GPU', {},
                           version='1.7')
        path = f'/allocations/{server["id"]}'
        known = self.placement.get(path, version='1.28').body
        for address in addresses:
            provider = self.placement.post('/resource_providers', {
                'name': f'compute1_{address}',
                'parent_provider_uuid': self.compute_rp_uuids['compute1'],
            }, version='1.20').body['uuid']
            self.cyborgs.add(provider)
            self.placement.put(
                f'/resource_providers/{provider}/inventories', {
                    'resource_provider_generation': 0, 'inventories': {
                        'CUSTOM_CYBORG_GPU': {'total': 1}}}, version='1.26')
            known['allocations'][provider] = {
                'resources': {'CUSTOM_CYBORG_GPU': 1}}
        self.assertEqual(204, self.placement.put(
            path, known, version='1.28').status)

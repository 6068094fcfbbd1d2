# SPDX-License-Identifier: Apache-2.0
"""Adoption of running servers with devices of [pci] alias or of Cyborg."""

from concurrent import futures
import contextlib
import json
import pathlib

import ddt
import fixtures
from lxml import etree
from nova import context
from nova import objects
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
from oslo_concurrency import lockutils
from oslo_utils import importutils

from nova_accel.core import errors
from nova_accel.core import model
from tests.functional import cloud

_GPUS = ('43', '44', '83', '84')
_ALIAS = {'pci_passthrough:alias': 'gpu:2'}


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
        self.start_compute('compute1', pci_info=_machine())
        self.gpu_profile('pair', 2, numa='off')
        self.pair = self.flavor('pair')

    def boot_with_alias(self):
        self.server = self.boot(self.flavor(extra_spec=_ALIAS),
                                host='compute1')
        self.had = self.hostdevs(self.server).keys()
        self.free_by_right = set(self.ADDRESSES) - self.had

    def take_over(self):
        """Switch the host, and check that nobody else gets a device."""
        with self.watch('put') as of_put, self.watch('post') as of_post:
            self.switch()
            self._run_periodics()
            self._run_periodics()
        self.assertEqual(self.free_by_right, self.free())
        self.assertEqual(set(), (of_put | of_post) - self.free_by_right)

    def switch(self):
        """Give the devices to nova_accel, as the operator does."""
        self.flags(device_spec=[], group='pci')
        self.flags(device_spec=[cloud.FOUR_SPEC], group='nova_accel')
        self.restart_compute_service('compute1')

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

    def check_not_taken_over(self):
        self.assertNotIn('Took over', self.stdlog.logger.output)
        self.assertEqual(self.had, self.devices().keys())
        self.assertEqual({}, self.allocated(self.server))

    def run_round(self):
        """Run the periodic task of one nova-compute."""
        self.flags(host='compute1')
        self.computes['compute1'].manager.update_available_resource(
            context.get_admin_context())

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
        self.boot_with_alias()

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
        self.take_down('compute1')
        self._evacuate_server(self.server, expected_host='compute2')
        self.assertEqual(2, len(self.hostdevs(self.server, 'compute2')))
        self.assertEqual([], self.disagreements('compute2'))

    def test_server_that_is_rebuilt_afterwards(self):
        self.take_over()
        self._rebuild_server(
            self.server, self.glance.auto_disk_config_enabled_image['id'])
        self.check_taken_over(self.server, self.had)
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
        for step in ('nova_accel.compute.state.placement.PlacementClient.'
                     'adopt', 'nova.objects.Instance.save',
                     'nova.pci.manager.PciDevTracker.free_device',
                     'nova.objects.Instance.save'):
            with fixtures.MonkeyPatch(step, self.die):
                self.take_over()
            self.assertEqual(0, self.stdlog.logger.output.count('Took over'))
        self.take_over()
        self.check_taken_over(self.server, self.had)
        self.assertEqual([], self.requests())
        self.check_keeps(self.server)

    def die(self, *_args, **_kwargs):
        raise errors.AssignmentError('nova-compute', 'died')

    def requests(self):
        """Return Nova's PCI requests of the server."""
        return objects.InstancePCIRequests.get_by_instance_uuid(
            context.get_admin_context(), self.server['id']).requests


class StateTest(AdoptionCase):
    """Servers in other states than ACTIVE at the take-over."""

    def setUp(self):
        super().setUp()
        self.boot_with_alias()

    def check_at_once(self, enter, leave):
        enter()
        self.take_over()
        self.assertTrue(all(self.hostdevs(self.server).values()))
        leave()
        self.check_taken_over(self.server, self.had)
        self.check_keeps(self.server)

    def check_later(self, enter, leave):
        enter()
        self.take_over()
        self.check_not_taken_over()
        leave()
        self.run_round()
        self.check_taken_over(self.server, self.had)
        self.assertTrue(all(self.hostdevs(self.server).values()))
        self.check_keeps(self.server)

    def act(self, action, state, details=None):
        self.api.post_server_action(self.server['id'], {action: details})
        self._wait_for_state_change(self.server, state)

    def test_paused_server_is_taken_over_at_once(self):
        self.check_at_once(lambda: self.act('pause', 'PAUSED', {}),
                           lambda: self.act('unpause', 'ACTIVE', {}))

    def test_suspended_server_is_taken_over_at_once(self):
        self.check_at_once(lambda: self._suspend_server(self.server),
                           lambda: self._resume_server(self.server))

    def test_stopped_server_is_taken_over_at_once(self):
        self.check_at_once(lambda: self._stop_server(self.server),
                           lambda: self._start_server(self.server))

    def test_shelved_server_is_taken_over_after_unshelve(self):
        self.flags(shelved_offload_time=-1)
        self.check_later(
            lambda: self._shelve_server(self.server, 'SHELVED'),
            lambda: self._unshelve_server(self.server))

    def test_soft_deleted_server_is_taken_over_after_restore(self):
        self.flags(reclaim_instance_interval=3600)

        def delete():
            self.api.delete_server(self.server['id'])
            self._wait_for_state_change(self.server, 'SOFT_DELETED')

        def restore():
            self.act('restore', 'ACTIVE')
            self.flags(reclaim_instance_interval=0)
        self.check_later(delete, restore)

    def test_rescued_server_is_taken_over_after_unrescue(self):
        """Nova defines the domain from the XML that it had before."""
        self.check_later(self.rescue,
                         lambda: self._unrescue_server(self.server))

    def rescue(self):
        pathlib.Path(cloud.CONF.instances_path, self.server['id']).mkdir(
            exist_ok=True)
        self._rescue_server(self.server)

    def test_server_that_is_rescued_afterwards_keeps_its_aliases(self):
        self.take_over()
        self.rescue()
        self._unrescue_server(self.server)
        self.check_aliases()

    def test_server_whose_volume_is_swapped_gets_its_aliases_again(self):
        """Nova defines the domain from the XML of the guest.

        The guest was not started since, and has no alias of ours.
        """
        self.take_over()
        self.connection().defineXML(self.domain(self.server).XMLDesc(0))
        self.assertEqual({''}, set(self.hostdevs(self.server).values()))
        self.run_round()
        self.check_aliases()

    def check_aliases(self):
        self.assertEqual(self.had, self.hostdevs(self.server).keys())
        self.assertTrue(all(self.hostdevs(self.server).values()))
        self._suspend_server(self.server)
        # libvirt refuses to save a guest with devices.
        self.assertEqual([], self.domain(self.server).saved)

    def test_resized_server_is_taken_over_after_revert(self):
        self.start_compute('compute2', pci_info=_machine())

        def resize():
            self._resize_server(self.server, self.flavor(extra_spec=_ALIAS))
            self.assertEqual('compute2', self.api.get_server(
                self.server['id'])['OS-EXT-SRV-ATTR:host'])
            self.flags(host='compute1')

        def revert():
            self.flags(host='compute1')
            self._revert_resize(self.server)
        self.check_later(resize, revert)


@ddt.ddt
class OneTimeUseTest(AdoptionCase):

    @ddt.data(0, 600)
    def test_device_stays_reserved(self, check_interval):
        """With and without an audit, which sees what is reserved."""
        self.flags(check_interval=check_interval, group='nova_accel')
        self.boot_with_alias()
        self.switch()
        for _round in range(3):
            self.run_round()
        self.assertIn('Took over', self.stdlog.logger.output)
        self._delete_server(self.server)
        for _round in range(2):
            self.computes['compute1'].manager.reset()
            for _run in range(2):
                self.run_round()
            self.assertEqual(self.free_by_right, self.free())

    def switch(self):
        super().switch()
        self.flags(device_spec=[
            cloud.FOUR_SPEC[:-1] + ', "one_time_use": "yes"}'],
            group='nova_accel')
        self.restart_compute_service('compute1')


class MeanwhileTest(AdoptionCase):
    """Servers that change while nova-compute takes them over."""

    def setUp(self):
        super().setUp()
        self.boot_with_alias()

    @contextlib.contextmanager
    def once_after(self, step, meanwhile):
        """Do something after a step of the first try to take over."""
        name = f'nova_accel.compute.state.{step}'
        owner, _dot, method = name.rpartition('.')
        do, todo = getattr(importutils.import_class(owner), method), [
            meanwhile]

        def done(*args, **kwargs):
            do(*args, **kwargs)
            while todo:
                todo.pop()()
        with fixtures.MonkeyPatch(name, done):
            yield
        self.assertEqual([], todo)
        self.assertNotIn('Traceback', self.stdlog.logger.output)

    def specs(self):
        return objects.Instance.get_by_uuid(
            context.get_admin_context(), self.server['id'],
            expected_attrs=['flavor']).flavor.extra_specs

    def test_server_whose_task_starts_is_taken_over_after_it(self):
        with self.once_after(
                'placement.PlacementClient.adopt',
                lambda: self.set_task_state(self.server, 'powering-off')):
            self.take_over()
        self.assertNotIn('Took over', self.stdlog.logger.output)
        self.assertEqual((_ALIAS, self.had), (self.specs(),
                                              self.devices().keys()))
        self.assertEqual('powering-off', self.api.get_server(
            self.server['id'])['OS-EXT-STS:task_state'])
        self.set_task_state(self.server, None)
        self.run_round()
        self.check_taken_over(self.server, self.had)
        self.check_keeps(self.server)

    def test_server_with_an_operation_is_taken_over_after_it(self):
        """Some operations have no task state: attachments of volumes."""
        with lockutils.lock(self.server['id']):
            self.take_over()
            self.check_not_taken_over()
            self.assertEqual({''}, set(self.hostdevs(self.server).values()))
        self.run_round()
        self.check_taken_over(self.server, self.had)

    def test_server_that_is_deleted_leaves_nothing(self):
        # nova-api waits for nova-compute in these tests.
        api = futures.ThreadPoolExecutor()
        self.addCleanup(api.shutdown)

        def delete():
            api.submit(self.api.delete_server, self.server['id'])
            self._wait_for_server_parameter(
                self.server, {'OS-EXT-STS:task_state': 'deleting'})
        with self.once_after('placement.PlacementClient.adopt', delete):
            self.switch()
            self.run_round()
        self._wait_until_deleted(self.server)
        self.assertNotIn('Took over', self.stdlog.logger.output)
        self.run_round()
        self.assertEqual({}, self.devices())
        self.assertEqual(set(self.ADDRESSES), self.free())

    def test_server_without_allocations_gets_none(self):
        """nova-api deletes a server while nova-compute seems to be down."""
        path = f'/allocations/{self.server["id"]}'
        with self.once_after('libvirt_domains.LibvirtDomains.set_aliases',
                             lambda: self.placement.delete(path)):
            self.take_over()
        self.assertEqual({}, self.placement.get(path).body['allocations'])
        self.assertEqual(_ALIAS, self.specs())
        self.assertNotIn('Took over', self.stdlog.logger.output)


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


def _machine():
    """Return a host with the four GPUs, as libvirt tells Nova."""
    machine = fakelibvirt.HostPCIDevicesInfo(num_pci=0, num_pfs=0, num_vfs=0)
    for number, bus in enumerate(_GPUS):
        machine.add_device('PCI', int(bus, 16), 0, 0, number, 0,
                           vend_id='10de', prod_id='2330')
    return machine

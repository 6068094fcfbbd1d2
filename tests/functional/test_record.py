# SPDX-License-Identifier: Apache-2.0
"""Operations and failures in which a server keeps its devices."""

import contextlib
from unittest import mock

import fixtures
from lxml import etree
from nova import context
from nova import exception
from nova import objects
from nova.compute import manager
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client
from nova.virt.libvirt import driver as libvirt_driver
import requests

from nova_accel.compute.state import libvirt_domains
from nova_accel.compute.state import local_host
from nova_accel.core import naming
from nova_accel.host import reader
from tests.functional import cloud

QAT = ('{"vendor_id": "8086", "product_id": "37c9", '
       '"resource_class": "CUSTOM_QAT"}')

REBOOT = {'reboot': {'type': 'HARD'}}


class RecordTest(cloud.Cloud):

    DEVICE_SPEC = (cloud.PAIR_SPEC,)

    def setUp(self):
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start_compute('compute1')
        self.gpu_profile('one')
        self.one = self.flavor('one')

    def pool(self):
        """Offer two VFs instead of the GPUs; return a flavor for one VF."""
        self.flags(sysfs_root=str(cloud.DATA / 'hosts' / 'l1.json'),
                   device_spec=[QAT], group='nova_accel')
        self.restart_compute_service('compute1')
        self.write_profile('vf', groups=[{'resources': {'CUSTOM_QAT': 1}}])
        return self.flavor('vf')

    def refused_by_this_process(self, server, action):
        """Perform an action that fails.

        The services share one process, so the error is also raised here.
        """
        self.assertRaises(
            client.OpenStackApiException, self.api.post_server_action,
            server['id'], action)

    def card_away(self):
        self.flags(sysfs_root=str(cloud.A100), group='nova_accel')
        self.restart_compute_service('compute1')

    def card_back(self):
        self.flags(sysfs_root=str(cloud.EIGHT_GPUS), group='nova_accel')
        self.restart_compute_service('compute1')

    def fault(self, server):
        [fault] = objects.InstanceFaultList.get_by_instance_uuids(
            context.get_admin_context(), [server['id']])
        return fault.message

    def assertApart(self):
        shared = {address: servers for address, servers in
                  self.held().items() if len(servers) > 1}
        self.assertEqual({}, shared)

    def test_rebuild(self):
        server = self.boot(self.one)
        held, allocated = self.hostdevs(server), self.allocated(server)
        self._rebuild_server(server, cloud.IMAGE)
        self.assertEqual(held, self.hostdevs(server))
        self.assertEqual(allocated, self.allocated(server))

    def test_rebuild_after_the_operator_took_the_entry_away(self):
        server = self.boot(self.one)
        held, allocated = self.hostdevs(server), self.allocated(server)
        self.flags(device_spec=['{"colour": 1}'], group='nova_accel')
        self.restart_compute_service('compute1')
        self._rebuild_server(server, cloud.IMAGE)
        self.assertEqual(held, self.hostdevs(server))
        self.assertEqual(allocated, self.allocated(server))

    def test_delete_after_a_rebuild_that_failed_half_way(self):
        server = self.boot(self.one)
        with mock.patch('nova.compute.manager.ComputeManager.'
                        '_prep_block_device', side_effect=RuntimeError('no')):
            self.refused_by_this_process(
                server, {'rebuild': {'imageRef': cloud.IMAGE}})
            self._wait_for_state_change(server, 'ERROR')
        self._delete_server(server)
        for _time in range(2):
            self.boot(self.one)
        self.assertApart()

    def fail_rebuild(self, server):
        with mock.patch('nova.compute.manager.ComputeManager.'
                        '_prep_block_device', side_effect=RuntimeError('no')):
            self.refused_by_this_process(
                server, {'rebuild': {'imageRef': cloud.IMAGE}})
            self._wait_for_state_change(server, 'ERROR')
        # The server keeps its device: Nova would remove its allocations.
        self.assertEqual(1, len(self.allocated(server)))

    def recover(self, server, action):
        """Recover a server by an action, and check its device.

        No other server gets the device.
        """
        self.api.post_server_action(server['id'], action)
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(
            {f'compute1_accel_{address}' for address in
             self.hostdevs(server)}, set(self.allocated(server)))
        self.assertEqual(1, len(self.hostdevs(server)))
        amounts = {name: amount for allocation in
                   self._get_allocations_by_server_uuid(server['id']).values()
                   for name, amount in allocation['resources'].items()}
        self.assertEqual((1, 1), (amounts['VCPU'], amounts[cloud.GPU]))
        self._run_periodics()
        for provider in self.providers().values():
            self.assertNotIn('CUSTOM_NOVA_ACCEL_DISPUTED',
                             self._get_provider_traits(provider['uuid']))
        self.boot(self.one)
        self.boot(self.one, state='ERROR')
        self.assertApart()

    def test_hard_reboot_after_a_rebuild_that_failed(self):
        server = self.boot(self.one)
        self.fail_rebuild(server)
        self.recover(server, REBOOT)

    def test_hard_reboot_long_after_a_rebuild_that_failed(self):
        server = self.boot(self.one)
        self.fail_rebuild(server)
        self._run_periodics()
        self.recover(server, REBOOT)

    def test_another_rebuild_after_one_that_failed(self):
        server = self.boot(self.one)
        self.fail_rebuild(server)
        self._run_periodics()
        self.recover(server, {'rebuild': {'imageRef': cloud.IMAGE}})

    def test_periodic_tasks_within_a_rebuild_after_one_that_failed(self):
        server = self.boot(self.one)
        held = self.hostdevs(server)
        self.fail_rebuild(server)
        prepare = manager.ComputeManager._prep_block_device

        def look_first(*args, **kwargs):
            self.computes['compute1'].manager.update_available_resource(
                context.get_admin_context())
            return prepare(*args, **kwargs)

        with mock.patch.object(manager.ComputeManager, '_prep_block_device',
                               look_first):
            self._rebuild_server(server, cloud.IMAGE)
        self.assertEqual(held, self.hostdevs(server))
        self.assertEqual(1, len(self.allocated(server)))

    def lose_allocations(self, server):
        """Give the allocations of a server to another; return their path."""
        [name] = self.allocated(server)
        self.placement.delete(f'/allocations/{server["id"]}')
        path = '/allocations/' + '1' * 8 + server['id'][8:]
        self.placement.put(path, {
            'allocations': {self.providers()[name]['uuid']: {
                'resources': {cloud.unit(cloud.GPU): 1}}},
            'project_id': 'x', 'user_id': 'x',
            'consumer_generation': None}, version='1.28')
        return path

    def test_placement_rejects_what_a_server_keeps(self):
        server = self.boot(self.one)
        held = self.hostdevs(server)
        self.fail_rebuild(server)
        other = self.lose_allocations(server)
        self.api.post_server_action(server['id'], REBOOT)
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(held, self.hostdevs(server))
        self.assertIn('Placement rejects new ones',
                      self.stdlog.logger.output)
        self.placement.delete(other)
        self.recover(server, REBOOT)

    def test_placement_rejects_a_server_without_devices(self):
        server = self.boot(self.one)
        held = self.hostdevs(server)
        self.undefine(server)
        root = self.compute_rp_uuids['compute1']
        self.placement.delete(f'/allocations/{server["id"]}')
        before = self._get_provider_inventory(root)['VCPU']
        self._change_inventory(root, {**before, 'reserved': before['total']})
        self.refused_by_this_process(server, REBOOT)
        self._wait_for_state_change(server, 'ERROR')
        self.assertIn('has no allocations, and Placement rejects new ones',
                      self.api.get_server(server['id'])['fault']['message'])
        self.assertIn('make room for it', self.stdlog.logger.output)
        self._change_inventory(root, before)
        self.recover(server, REBOOT)
        self.assertEqual(held, self.hostdevs(server))

    def _change_inventory(self, provider, record):
        url = f'/resource_providers/{provider}'
        generation = self.placement.get(url).body['generation']
        answer = self.placement.put(f'{url}/inventories/VCPU', {
            **record, 'resource_provider_generation': generation},
            version='1.26')
        self.assertEqual(200, answer.status, answer.body)

    def test_hard_reboot_after_one_that_failed_half_way(self):
        server = self.boot(self.one)
        held = self.hostdevs(server)
        self.flags(device_spec=['{"vendor_id": "1af4"}'], group='nova_accel')
        self.restart_compute_service('compute1')
        with mock.patch.object(libvirt_driver.LibvirtDriver, '_get_guest_xml',
                               side_effect=RuntimeError('no')):
            self.refused_by_this_process(server, REBOOT)
        self.assertEqual({}, self.hostdevs(server))
        self._run_periodics()
        self.api.post_server_action(server['id'], REBOOT)
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(held, self.hostdevs(server))

    def test_resize_to_nothing_on_one_host(self):
        server = self.boot(self.one)
        self._resize_server(server, self.flavor())
        self.assertEqual({}, self.hostdevs(server))
        self._confirm_resize(server)
        self.assertEqual({}, self.held())
        self.assertEqual({}, self.allocated(server))

    def test_device_of_a_revert_is_not_given_to_another_server(self):
        flavor = self.pool()
        server = self.boot(flavor)
        self._resize_server(server, self.flavor())
        create = libvirt_driver.LibvirtDriver._create_guest_with_network
        others = []

        def create_late(driver, *args, **kwargs):
            # Another server boots after the choice of the device, and before
            # the domain is defined.
            if not others:
                others.append(None)
                others[0] = self.boot(flavor)
            return create(driver, *args, **kwargs)

        with mock.patch.object(libvirt_driver.LibvirtDriver,
                               '_create_guest_with_network', create_late):
            self._revert_resize(server)
        self.assertEqual(1, len(self.hostdevs(server)))
        self.assertEqual(1, len(self.hostdevs(others[0])))
        self.assertApart()

    def test_domain_whose_xml_libvirt_does_not_return(self):
        flavor = self.pool()
        first = self.boot(flavor)
        describe = fakelibvirt.Domain.XMLDesc
        broken = fakelibvirt.make_libvirtError(
            fakelibvirt.libvirtError, 'broken',
            error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR)

        def fail(domain, flags):
            if domain.UUIDString() == first['id']:
                raise broken
            return describe(domain, flags)

        with mock.patch.object(fakelibvirt.Domain, 'XMLDesc', fail):
            self.boot(flavor, state='ERROR')
            # Servers without devices still boot.
            self.boot(self.flavor())
            self.boot(self.flavor(extra_spec={'resources:VCPU': '1'}))
        self.assertApart()

    def test_device_detached_before_a_crash_is_attached_again(self):
        server = self.boot(self.one)
        [element] = self.domain(server).plugged
        self.domain(server).detachDevice(
            etree.tostring(element, encoding='unicode'))
        self.assertEqual((), self.attached(server))
        self.restart_compute_service('compute1')
        self.assertEqual(
            set(self.hostdevs(server)),
            {str(device.address) for device in self.attached(server)})

    def test_device_detached_too_late_is_attached_again(self):
        """The guest completes a detachment after its suspend has failed."""
        server = self.boot(self.one)
        element = etree.tostring(self.domain(server).plugged[0],
                                 encoding='unicode')
        self.domain(server).detachDevice(element)
        self.assertEqual((), self.attached(server))
        self._run_periodics()
        self.assertEqual(
            set(self.hostdevs(server)),
            {str(device.address) for device in self.attached(server)})

    def test_guest_whose_card_is_missing_gets_no_other_device(self):
        server = self.boot(self.one)
        self.domain(server).detachDevice(etree.tostring(
            self.domain(server).plugged[0], encoding='unicode'))
        self.card_away()
        self._run_periodics()
        self._run_periodics()
        self.assertEqual([], self.domain(server).plugged)
        self.assertEqual(1, self.stdlog.logger.output.count(
            f'Guest {server["id"]} runs without a device that it holds: '
            f'device {min(self.hostdevs(server))}: is not there any more'))
        self.card_back()
        self.assertEqual(1, len(self.domain(server).plugged))

    def test_hard_reboot_with_a_missing_card_keeps_the_definition(self):
        server = self.boot(self.one)
        held = self.hostdevs(server)
        self.card_away()
        self.refused_by_this_process(server, REBOOT)
        server = self._wait_for_server_parameter(server, {
            'status': 'ERROR', 'OS-EXT-STS:task_state': None})
        self.assertIn('is not there any more', self.fault(server))
        self.assertEqual(held, self.hostdevs(server))
        self.assertFalse(self.domain(server).isActive())
        self.card_back()
        self.api.post_server_action(server['id'], REBOOT)
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(held, self.hostdevs(server))

    def test_resume_with_a_missing_card_keeps_the_saved_state(self):
        server = self.boot(self.one)
        held = self.hostdevs(server)
        self._suspend_server(server)
        self.card_away()
        self.refused_by_this_process(server, {'resume': None})
        server = self._wait_for_server_parameter(server, {
            'status': 'SUSPENDED', 'OS-EXT-STS:task_state': None})
        self.assertIn('is not there any more', self.fault(server))
        self.assertEqual(held, self.hostdevs(server))
        self.assertTrue(self.domain(server).hasManagedSaveImage(0))
        self.card_back()
        self._resume_server(server)
        self.assertEqual(held, self.hostdevs(server))

    def test_start_during_a_reboot_with_a_missing_card(self):
        server, other = self.boot(self.one), self.boot(self.flavor())
        held = self.hostdevs(server)
        self.domain(server).destroy()
        self.set_task_state(server, 'reboot_started_hard')
        self.domain(other).destroy()
        self.set_task_state(other, 'reboot_started_hard')
        self.card_away()
        server = self._wait_for_server_parameter(server, {
            'status': 'ERROR', 'OS-EXT-STS:task_state': None})
        self.assertIn('is not there any more', self.fault(server))
        self._wait_for_state_change(other, 'ACTIVE')
        self.assertEqual(held, self.hostdevs(server))
        self.assertIn(f'Reboot of server {server["id"]} failed, nova-compute '
                      'starts without it',
                      self.stdlog.logger.output)
        self.card_back()
        self.api.post_server_action(server['id'], REBOOT)
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(held, self.hostdevs(server))

    def test_start_during_a_reboot_that_fails_for_another_reason(self):
        """nova-compute does not start if a server without devices fails.

        nova_accel does not change how Nova treats these servers.
        """
        other = self.boot(self.flavor())
        self.domain(other).destroy()
        self.set_task_state(other, 'reboot_started_hard')
        with mock.patch.object(libvirt_driver.LibvirtDriver, '_get_guest_xml',
                               side_effect=RuntimeError('no')):
            self.assertRaises(RuntimeError, self.restart_compute_service,
                              'compute1')

    def test_start_during_a_reboot_that_nova_could_not_try(self):
        """nova-compute does not start if Neutron fails, as with Nova alone."""
        server = self.boot(self.one)
        self.domain(server).destroy()
        self.set_task_state(server, 'reboot_started_hard')
        with mock.patch('nova.network.neutron.API.get_instance_nw_info',
                        side_effect=RuntimeError('no')):
            self.assertRaises(RuntimeError, self.restart_compute_service,
                              'compute1')

    def test_server_does_not_start_with_another_card_at_its_address(self):
        machine = self.directory_host()
        self.restart_compute_service('compute1')
        server = self.boot(self.one)
        held = self.hostdevs(server)
        [address] = held
        self._stop_server(server)
        product = machine / 'sys/bus/pci/devices' / address / 'device'
        before = product.read_text()
        product.write_text('0x20b0\n')
        self.restart_compute_service('compute1')
        self._run_periodics()
        reason = 'is 10de:20b0 now, the server had 10de:2330; put the card'
        self.assertIn(f'device {address} of server {server["id"]}: {reason}',
                      self.stdlog.logger.output)
        self.refused_by_this_process(server, REBOOT)
        self._wait_for_state_change(server, 'ERROR')
        self.assertIn('device …: is 10de:20b0 now, the server had 10de:2330',
                      self.fault(server))
        self.assertIn(f'Server does not start: device {address}: {reason}',
                      self.stdlog.logger.output)
        product.write_text(before)
        self.api.post_server_action(server['id'], REBOOT)
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(held, self.hostdevs(server))

    def away_with_the_guest(self):
        """Return a server whose card disappears when its guest stops."""
        machine = self.directory_host()
        self.restart_compute_service('compute1')
        server = self.boot(self.one)
        [address] = self.hostdevs(server)
        destroy = libvirt_driver.LibvirtDriver._destroy

        def take_away(driver, instance):
            destroy(driver, instance)
            (machine / 'sys/bus/pci/devices' / address).unlink(
                missing_ok=True)

        self.useFixture(fixtures.MockPatchObject(
            libvirt_driver.LibvirtDriver, '_destroy', take_away))
        return server

    def test_start_with_part_of_an_iommu_group(self):
        """A server does not start if it has part of an IOMMU group only.

        After a boot with other ACS settings the IOMMU groups differ.
        """
        machine = self.directory_host()
        self.restart_compute_service('compute1')
        server = self.boot(self.one)
        held = self.hostdevs(server)
        self._stop_server(server)
        groups = [machine / 'sys/bus/pci/devices' / address / 'iommu_group'
                  for address in ('0000:43:00.0', '0000:44:00.0')]
        target = groups[0].readlink()
        groups[1].unlink()
        groups[1].symlink_to(target)
        self.restart_compute_service('compute1')
        self.refused_by_this_process(server, {'os-start': None})
        self.assertIn('IOMMU group', self.fault(server))
        self.assertEqual('SHUTOFF', self.api.get_server(server['id'])[
            'status'])
        self.assertEqual(held, self.hostdevs(server))

    def test_hard_reboot_reads_the_host_after_the_guest_stops(self):
        server = self.away_with_the_guest()
        self.refused_by_this_process(server, REBOOT)
        self._wait_for_state_change(server, 'ERROR')
        self.assertIn('is not there any more', self.fault(server))

    def test_rebuild_reads_the_host_after_the_guest_stops(self):
        server = self.away_with_the_guest()
        self.refused_by_this_process(
            server, {'rebuild': {'imageRef': cloud.IMAGE}})
        self._wait_for_state_change(server, 'ERROR')
        self.assertIn('is not there any more', self.fault(server))

    def test_resume_reads_the_host_again(self):
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.compute.state.local_host.CACHE_SECONDS', 600))
        machine = self.directory_host()
        self.restart_compute_service('compute1')
        server = self.boot(self.one)
        [address] = self.hostdevs(server)
        self._run_periodics()
        self._suspend_server(server)
        (machine / 'sys/bus/pci/devices' / address).unlink()
        self.refused_by_this_process(server, {'resume': None})
        self._wait_for_server_parameter(server, {
            'status': 'SUSPENDED', 'OS-EXT-STS:task_state': None})
        self.assertIn('is not there any more', self.fault(server))

    def test_host_invalidated_during_a_read_is_not_cached(self):
        machine = local_host.LocalHost()
        self.assertEqual(machine.read(), machine.cached())
        read = reader.read

        def change(*args, **kwargs):
            answer = read(*args, **kwargs)
            machine.invalidate()
            return answer

        with mock.patch.object(reader, 'read', change):
            machine.read()
        self.assertIsNone(machine.cached())

    def swap_volume(self, server):
        """Swap a volume in the driver, without data to copy."""
        driver = self.computes['compute1'].driver
        guest = driver._host.get_guest(objects.Instance.get_by_uuid(
            context.get_admin_context(), server['id']))
        domain = guest._domain
        copied = mock.Mock()
        copied.is_job_complete.return_value = True
        with (mock.patch.object(guest, 'get_block_device',
                                return_value=copied),
              mock.patch.object(driver, '_delete_guest_configuration')):
            driver._swap_volume(guest, 'vdb', mock.Mock(), 0)
        # The fake creates a new domain object for a new definition.
        again = self.domain(server)
        again._state, again.plugged = domain._state, domain.plugged

    def test_volume_swap_keeps_all_devices(self):
        server = self.boot(self.one)
        held = self.hostdevs(server)
        domain = self.domain(server)
        domain.detachDevice(etree.tostring(domain.plugged[0],
                                           encoding='unicode'))
        with mock.patch.object(
                type(domain), 'attachDevice',
                side_effect=fakelibvirt.make_libvirtError(
                    fakelibvirt.libvirtError, 'no')):
            self.assertRaises(exception.VolumeRebaseFailed, self.swap_volume,
                              server)
        self.assertEqual(held, self.hostdevs(server))
        self.swap_volume(server)
        self.assertEqual(held, self.hostdevs(server))
        self.assertEqual(1, len(self.domain(server).plugged))

    def test_snapshot_of_a_paused_guest_keeps_its_devices(self):
        self.flags(disable_libvirt_livesnapshot=True, group='workarounds')
        self.flags(device_detach_timeout=1, group='libvirt')
        server = self.boot(self.one)
        held = self.hostdevs(server)
        self.api.post_server_action(server['id'], {'pause': None})
        self._wait_for_state_change(server, 'PAUSED')
        self.api.post_server_action(server['id'],
                                    {'createImage': {'name': 'x'}})
        self._wait_for_server_parameter(server, {
            'status': 'PAUSED', 'OS-EXT-STS:task_state': None})
        self.api.post_server_action(server['id'], {'unpause': None})
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(len(held), len(self.domain(server).plugged))

    def test_unreadable_sysfs_root_keeps_servers_running(self):
        server = self.boot(self.one)
        held = self.hostdevs(server)
        self.flags(sysfs_root='/nowhere', group='nova_accel')
        self.restart_compute_service('compute1')
        # A server keeps its device; servers without devices are not affected.
        self._reboot_server(server, hard=True)
        self.assertEqual(held, self.hostdevs(server))
        self.boot(self.flavor(extra_spec={'resources:VCPU': '1'}))
        failed = self.boot(self.one, state='ERROR', az='nova:compute1')
        self.assertIn('sysfs_root …: cannot be read',
                      failed['fault']['message'])

    def test_hard_reboot_after_a_failed_resize(self):
        server = self.boot(self.one)
        with mock.patch.object(libvirt_driver.LibvirtDriver, '_get_guest_xml',
                               side_effect=RuntimeError('no')):
            self.refused_by_this_process(
                server, {'resize': {'flavorRef': self.flavor('one')}})
            self._wait_for_state_change(server, 'ERROR')
        self.api.post_server_action(server['id'], REBOOT)
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(
            {f'compute1_accel_{address}' for address in
             self.hostdevs(server)}, set(self.allocated(server)))

    def undefine(self, server):
        domain = self.domain(server)
        if domain.isActive():
            domain.destroy()
        domain.undefine()

    def test_resume_without_a_definition(self):
        server = self.boot(self.one)
        held = self.hostdevs(server)
        self._suspend_server(server)
        self.undefine(server)
        self._resume_server(server)
        self.assertEqual(held, self.hostdevs(server))

    @contextlib.contextmanager
    def silent(self, server):
        """Make Placement fail requests for the allocations of a server."""
        get = report.SchedulerReportClient.get

        def answer(client, url, *args, **kwargs):
            if url != f'/allocations/{server["id"]}':
                return get(client, url, *args, **kwargs)
            answered = requests.Response()
            answered.status_code = 503
            return answered

        with mock.patch.object(report.SchedulerReportClient, 'get', answer):
            yield

    def class_alone(self, **more):
        server = self.boot(self.flavor(extra_spec={
            f'resources:{cloud.GPU}': '1'}), **more)
        return server, self.hostdevs(server)

    def test_class_on_the_flavor_and_placement_does_not_answer(self):
        server, held = self.class_alone()
        with self.silent(server):
            self._reboot_server(server, hard=True)
            self.assertEqual(held, self.hostdevs(server))
            # Without a domain nova-compute does not know the devices.
            self.undefine(server)
            self.refused_by_this_process(server, REBOOT)
            self._wait_for_state_change(server, 'ERROR')
        self.assertEqual({}, self.held())
        self._reboot_server(server, hard=True)
        self.assertEqual(held, self.hostdevs(server))

    def host_boots(self, server):
        self.flags(resume_guests_state_on_host_boot=True)
        self.domain(server).destroy()
        self.restart_compute_service('compute1')

    def test_class_on_the_flavor_and_the_host_boots(self):
        """A server is in ERROR if its card appears later than nova-compute.

        A hard reboot then starts it with the same device.
        """
        machine = self.directory_host()
        self.restart_compute_service('compute1')
        server, held = self.class_alone()
        [address] = held
        self.host_boots(server)
        self.assertEqual(held, self.hostdevs(server))
        self._wait_for_state_change(server, 'ACTIVE')
        link = machine / 'sys/bus/pci/devices' / address
        place = link.readlink()
        link.unlink()
        self.host_boots(server)
        self.assertEqual('ERROR', self.api.get_server(server['id'])['status'])
        self.assertEqual(held, self.hostdevs(server))
        link.symlink_to(place)
        self.api.post_server_action(server['id'], REBOOT)
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(held, self.hostdevs(server))

    def test_nova_allocates_no_mdev_of_nova_accels_class(self):
        """Nova allocates no mdev for nova_accel's VGPU class.

        When the host boots, Nova has no copy of its provider tree.
        """
        driver = self.computes['compute1'].driver
        root = self.compute_rp_uuids['compute1']
        driver.mdev_classes = {'VGPU'}
        driver.provider_tree = None
        self.assertEqual([], driver._allocate_mdevs({
            naming.class_provider_uuid(root, 'VGPU'): {
                'resources': {'VGPU': 1}}}))

    def test_class_on_the_flavor_and_an_interrupted_move(self):
        """A server keeps its device if its allocations are of another host.

        Without its domain it does not start.
        """
        self.start_compute('compute2')
        server, held = self.class_alone(host='compute1')
        self.promise_elsewhere(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(held, self.hostdevs(server))
        self.undefine(server)
        self.refused_by_this_process(server, REBOOT)
        self._wait_for_state_change(server, 'ERROR')
        self.assertIn('none of this host', self.api.get_server(
            server['id'])['fault']['message'])
        self.assertEqual({}, self.held())

    def promise_elsewhere(self, server):
        """Move a server's allocations to compute2's providers."""
        there = self._providers('compute2')
        twins = {provider['uuid']: there[name.replace('1_', '2_', 1)]['uuid']
                 for name, provider in self._providers('compute1').items()}
        twins[self.compute_rp_uuids['compute1']] = self.compute_rp_uuids[
            'compute2']
        url = f'/allocations/{server["id"]}'
        known = self.placement.get(url, version='1.28').body
        self.placement.put(url, {**known, 'allocations': {
            twins[uuid]: {'resources': allocation['resources']}
            for uuid, allocation in known['allocations'].items()}},
            version='1.28')

    def test_claim_is_kept_while_placement_does_not_answer(self):
        self.start_compute('compute2')
        server = self.boot(self.one, host='compute1')
        with mock.patch.object(libvirt_driver.LibvirtDriver, '_get_guest_xml',
                               side_effect=RuntimeError('no')):
            self.refused_by_this_process(server, REBOOT)
        # The server has no domain, so only the claim keeps its device.
        self.assertEqual({}, self.hostdevs(server))
        self.promise_elsewhere(server)
        ended = f'Ended the claim of server {server["id"]}'
        with self.silent(server):
            self._run_periodics()
        self.assertNotIn(ended, self.stdlog.logger.output)
        self._run_periodics()
        self.assertEqual(1, self.stdlog.logger.output.count(ended))

    def test_failed_spawn_releases_its_devices(self):
        with mock.patch.object(libvirt_driver.LibvirtDriver,
                               '_create_guest_with_network',
                               side_effect=RuntimeError('no')):
            self.boot(self.one, state='ERROR')
        self.assertEqual({}, self.held())
        flavor = self.one
        for _time in range(2):
            self.boot(flavor)
        self.assertApart()

    def test_domains_are_not_read_for_servers_without_devices(self):
        self.boot(self.one)
        plain = self.flavor()
        with mock.patch.object(
                libvirt_domains.LibvirtDomains, 'read',
                side_effect=AssertionError('domains are read')):
            server = self.boot(plain)
            self._reboot_server(server, hard=True)

    def test_nova_accel_trait_on_the_compute_node(self):
        root = self.compute_rp_uuids['compute1']
        self._set_provider_traits(root, [
            *self._get_provider_traits(root), 'CUSTOM_NOVA_ACCEL'])
        self.restart_compute_service('compute1')
        self._run_periodics()
        inventory = self._get_provider_inventory(root)
        self.assertLess(inventory['VCPU']['reserved'],
                        inventory['VCPU']['total'])
        self.boot(self.one)

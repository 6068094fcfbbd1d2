# SPDX-License-Identifier: Apache-2.0
"""Versioned notifications of each change of a device."""

from tests.functional import cloud
from tests.functional import openstack
from tests.functional import test_live_migration
from tests.functional import test_reset


class Listener:
    """Mixin for test cases that read the notifications about devices."""

    def setUp(self):
        super().setUp()
        self.told()

    def told(self):
        """Return type and payload of the notifications since the last call."""
        found = [(one['event_type'], one)
                 for one in self.notifier.versioned_notifications
                 if one['event_type'].startswith('accel_')]
        self.notifier.fake_versioned_notifier.versioned_notifications.clear()
        for _event_type, one in found:
            self.assertEqual(
                'nova_accel', one['payload']['nova_object.namespace'])
        return [(event_type, one['payload']['nova_object.data'])
                for event_type, one in found]

    def types(self):
        return [event_type for event_type, _payload in self.told()]


class DeviceTest(Listener, test_reset.Reset):
    """One GPU on compute1, whose resets the tests can make fail."""

    entries = [cloud.GPU_SPEC[:-1] + f', "address": "{test_reset.ONE}"}}']
    functions = [test_reset.ONE]

    def fail(self):
        """Delete a server whose GPU then fails its reset."""
        self.start_compute('compute1')
        server = self.boot(self.gpu)
        self.kernel.broken = {test_reset.ONE}
        self._delete_server(server)
        self._run_periodics()

    def test_reset_that_fails_and_works_again(self):
        self.fail()
        events = [(event_type, payload) for event_type, payload in self.told()
                  if event_type.startswith('accel_device')]
        [(event_type, payload)] = events
        self.assertEqual('accel_device.reset.error', event_type)
        self.assertEqual(
            ('compute1', test_reset.PROVIDER, test_reset.ONE, '10de:2330',
             cloud.GPU, 'reset_failed', [test_reset.ONE], 1, 0, []),
            tuple(payload[name] for name in (
                'host', 'name', 'address', 'pci_ids', 'resource_class',
                'state', 'units', 'units_total', 'units_available',
                'servers')))
        self.assertIn('its reset failed', payload['reason'])
        self.later()
        self._run_periodics()
        self.assertEqual([], self.told())
        self.kernel.broken = set()
        self.later()
        [(event_type, payload)] = self.told()
        self.assertEqual('accel_device.recover', event_type)
        self.assertEqual(('reset_failed', 1, None), tuple(
            payload[name] for name in ('state', 'units_available', 'reason')))
        self._run_periodics()
        self.assertEqual([], self.told())

    def test_restart_sends_no_notification_again(self):
        self.fail()
        self.assertIn('accel_device.reset.error', self.types())
        self.restart_compute_service('compute1')
        self._run_periodics()
        self.assertEqual([], self.types())

    def test_recovery_during_a_restart(self):
        self.fail()
        self.told()
        self.kernel.broken = set()
        self.restart_compute_service('compute1')
        self._run_periodics()
        self.assertEqual(['accel_device.recover'], self.types())

    def test_device_that_disappears_has_not_recovered(self):
        self.fail()
        self.told()
        self.flags(device_spec=[], group='nova_accel')
        self._run_periodics()
        self.flags(device_spec=self.entries, group='nova_accel')
        self._run_periodics()
        self.assertEqual([], self.types())


class ServerTest(Listener, cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')
        self.gpu_profile('pair', 2)
        self.pair = self.flavor('pair')
        self.told()

    def test_create_and_delete(self):
        server = self.boot(self.pair)
        [(event_type, payload)] = self.told()
        self.assertEqual('accel_instance.attach', event_type)
        devices = [device['nova_object.data']
                   for device in payload.pop('devices')]
        self.assertEqual(
            {'host': 'compute1', 'node': 'compute1', 'uuid': server['id'],
             'tenant_id': server['tenant_id'], 'user_id': server['user_id'],
             'display_name': server['name'], 'device_profile': 'pair',
             'devices_held': 2}, payload)
        self.assertEqual(
            {(address, alias.split('-')[2], cloud.GPU, '10de:2330')
             for address, alias in self.hostdevs(server).items()},
            {(device['address'], device['group'], device['resource_class'],
              device['pci_ids']) for device in devices})
        self.assertEqual(
            {provider['uuid'] for name, provider in self.providers().items()
             if name in self.allocated(server)},
            {device['uuid'] for device in devices})
        self._delete_server(server)
        [(event_type, payload)] = self.told()
        self.assertEqual(('accel_instance.detach', server['id'], 0), (
            event_type, payload['uuid'], payload['devices_held']))
        self.assertEqual(devices, [device['nova_object.data']
                                   for device in payload['devices']])
        self._run_periodics()
        self.assertEqual([], self.types())

    def test_server_without_devices(self):
        self._delete_server(self.boot(self.flavor()))
        self._run_periodics()
        self.assertEqual([], self.types())

    def test_operations_that_change_nothing(self):
        server = self.boot(self.pair)
        self.told()
        self._reboot_server(server, hard=True)
        self._stop_server(server)
        self._run_periodics()
        self._start_server(server)
        self._suspend_server(server)
        self._run_periodics()
        self._resume_server(server)
        self._rebuild_server(server, cloud.IMAGE)
        self.restart_compute_service('compute1')
        self._run_periodics()
        self.assertEqual([], self.types())

    def test_shelve_offload_and_unshelve(self):
        server = self.boot(self.pair)
        self._shelve_server(server)
        self.assertEqual(['accel_instance.attach', 'accel_instance.detach'],
                         self.types())
        self._unshelve_server(server)
        self.assertEqual(['accel_instance.attach'], self.types())

    def test_resize_to_another_host(self):
        self.start_compute('compute2')
        server = self.boot(self.pair, host='compute1')
        self.told()
        self.gpu_profile('one')
        self._resize_server(server, self.flavor('one'))
        [(event_type, payload)] = self.told()
        self.assertEqual(('accel_instance.attach', 'compute2', 1), (
            event_type, payload['host'], payload['devices_held']))
        self.flags(host='compute1')
        self._confirm_resize(server)
        self._run_periodics()
        [(event_type, payload)] = self.told()
        self.assertEqual(
            ('accel_instance.detach', 2, server['tenant_id']),
            (event_type, len(payload['devices']), payload['tenant_id']))

    def test_failed_boot_sends_no_notifications(self):
        self.boot(self.pair)
        self.boot(self.pair)
        self.told()
        self.boot(self.pair, state='ERROR')
        self._run_periodics()
        self.assertEqual([], self.types())


class MoveTest(Listener, test_live_migration.MovingTest):

    def setUp(self):
        super().setUp()
        self.server = self.boot(self.two, host='compute1')
        self.told()

    def nodes(self):
        """Return the type and compute node of new notifications, sorted."""
        return sorted((event_type, payload['node'])
                      for event_type, payload in self.told())

    def test_live_migration(self):
        self._live_migrate(self.server)
        self._run_periodics()
        self.assertEqual([('accel_instance.attach', 'compute2'),
                          ('accel_instance.detach', 'compute1')],
                         self.nodes())
        self._run_periodics()
        self.assertEqual([], self.types())

    def test_evacuation(self):
        self.take_down('compute1')
        self._evacuate_server(self.server, {'host': 'compute2'},
                              expected_host='compute2')
        self.assertEqual([('accel_instance.attach', 'compute2')],
                         self.nodes())

    def test_revert_of_a_resize(self):
        self.gpu_profile('one')
        self._resize_server(self.server, self.flavor('one'))
        self.assertEqual([('accel_instance.attach', 'compute2')],
                         self.nodes())
        self.flags(host='compute1')
        self._revert_resize(self.server)
        self._run_periodics()
        self.assertEqual(['accel_instance.detach'], self.types())


class OffTest(Listener, cloud.Cloud):

    def test_no_notifications_if_unversioned(self):
        self.flags(notification_format='unversioned', group='notifications')
        self.start_compute('compute1')
        self.gpu_profile('one')
        self._delete_server(self.boot(self.flavor('one')))
        self.assertEqual([], self.types())


class DrainTest(Listener, cloud.Cloud):

    def test_drain_and_undrain(self):
        self.start_compute('compute1')
        self.gpu_profile('one')
        server = self.boot(self.flavor('one'))
        [address] = self.hostdevs(server)
        self.told()
        admin = openstack.Openstack(
            self.api.base_url, self.placement_fixture.endpoint, 'admin')
        admin.run('accel device set', f'compute1/{address}', '--drain',
                  'fan is loud')
        self._run_periodics()
        self._run_periodics()
        [(event_type, payload)] = self.told()
        self.assertEqual(
            ('accel_device.drain', 'drained', address, [server['id']]),
            (event_type, payload['state'], payload['address'],
             payload['servers']))
        self.assertIn('fan is loud', payload['reason'])
        self.restart_compute_service('compute1')
        self._run_periodics()
        self.assertEqual([], self.types())
        admin.run('accel device set', f'compute1/{address}', '--undrain')
        self._run_periodics()
        self._run_periodics()
        self.assertEqual(['accel_device.undrain'], self.types())

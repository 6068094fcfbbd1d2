# SPDX-License-Identifier: Apache-2.0
"""Operations that do not move a server."""

import contextlib
import threading
from unittest import mock

import fixtures
from nova import context
from nova import objects
from nova.tests.functional.api import client
from nova.virt.libvirt import driver as libvirt_driver

from tests.functional import cloud
from tests.functional import hypervisor
from tests.functional.matrix import base

OTHER_IMAGE = 'a2459075-d96c-40d5-893e-577ff92e721c'


#: Methods of the driver that a deletion interrupts, and the action that calls
#: each. Rebuild, rescue and moves are not here, as Nova continues them after
#: the deletion.
INTERRUPTED = (
    ('_hard_reboot', {'reboot': {'type': 'HARD'}}),
    ('power_off', {'os-stop': None}),
    ('suspend', {'suspend': None}),
    ('snapshot', {'shelve': None}),
)

#: Task states in which a crash of nova-compute leaves a server.
STUCK = ('rebuilding', 'resize_migrating', 'resize_finish', 'migrating')


class Lifecycle(base.Matrix):

    def keeps(self, server, *actions, status='ACTIVE'):
        """Perform actions on a server, and check that it keeps its devices."""
        before = self.taken('compute1')
        *first, last = actions
        for action in first:
            self.api.post_server_action(server['id'], action)
        self.act(server, last, status)
        self.assertEqual(before, self.taken('compute1'))
        self.assertHas(server, 'small', 'compute1')

    @base.operation('Create', 'Delete')
    def test_create_and_delete(self):
        server = self.server()
        self.assertTaken('compute1')
        self._delete_server(server)
        self.assertFree('compute1')

    @base.operation('Create several at once')
    def test_multi_create(self):
        for wanted, state in ((4, 'ACTIVE'), (5, 'ERROR')):
            servers = self.boot_at_once(wanted, state)
            for server in servers:
                if state == 'ACTIVE':
                    self.assertHas(server, 'small', self.host_of(server))
                self._delete_server(server)
            self.assertNothingOn(*base.HOSTS)

    @base.operation('Create on a named host')
    def test_create_on_a_named_host(self):
        for where in ({'host': 'compute2'},
                      {'hypervisor_hostname': 'compute2'},
                      {'availability_zone': 'nova:compute2'}):
            server = self.api.post_server({'server': {
                **self.small(), **where}})
            self._wait_for_state_change(server, 'ACTIVE')
            self.assertHas(server, 'small', 'compute2')
            self._delete_server(server)
        # Nova skips its filters for an availability zone with a host. The
        # driver refuses the server.
        for where, reason in (({'host': 'compute1'}, 'No valid host'),
                              ({'az': 'nova:compute1'},
                               'on one NUMA node')):
            failed = self.boot(self.flavors['apart'], state='ERROR', **where)
            self.assertIn(reason, failed['fault']['message'])
            self.assertNothingOn(*base.HOSTS)

    def small(self):
        return self._build_server(
            image_uuid=cloud.IMAGE, flavor_id=self.flavors['small'],
            networks='none')

    def boot_at_once(self, number, state):
        self.api.post_server({'server': {
            **self.small(), 'min_count': number,
            'return_reservation_id': True}})
        servers = self.api.get_servers()
        self.assertEqual(number, len(servers))
        return [self._wait_for_state_change(server, state)
                for server in servers]

    @base.operation('Delete a server in ERROR')
    def test_delete_in_error(self):
        with hypervisor.without_guests():
            failed = self.boot(self.flavors['small'], host='compute1',
                               state='ERROR')
        self.assertNothingOn('compute1')
        server = self.server()
        self.api.post_server_action(
            server['id'], {'os-resetState': {'state': 'error'}})
        self.assertHas(server, 'small', 'compute1')
        self._delete_server(failed)
        self._delete_server(self.api.get_server(server['id']))
        self.assertFree('compute1')

    @base.operation('Delete during another operation')
    def test_delete_meanwhile(self):
        with self.deleted_during('spawn') as deleted:
            with contextlib.suppress(client.OpenStackApiException):
                self.boot(self.flavors['small'], host='compute1')
        self.assertEqual(1, len(deleted))
        for method, action in INTERRUPTED:
            server = self.server()
            with self.deleted_during(method) as deleted:
                with contextlib.suppress(client.OpenStackApiException):
                    self.api.post_server_action(server['id'], action)
            self.assertEqual([server['id']], deleted)
            # It may be in ERROR before it is deleted.
            self._wait_until_deleted({**server, 'status': 'ERROR'})
            self.assertNothingOn('compute1')
        for state in STUCK:
            server = self.server()
            self.set_task_state(server, state)
            self._delete_server(server)
            self.assertNothingOn('compute1')
        self.assertFree('compute1')

    @contextlib.contextmanager
    def deleted_during(self, method):
        """Delete a server when Nova's driver begins an operation."""
        begin = getattr(libvirt_driver.LibvirtDriver, method)
        deleted = []

        def begin_late(driver, *args, **kwargs):
            [instance] = [value for value in args
                          if isinstance(value, objects.Instance)]
            thread = threading.Thread(target=self.api.delete_server,
                                      args=[instance.uuid])
            thread.start()
            self.addCleanup(thread.join)
            deleted.append(instance.uuid)
            self._wait_for_assert(lambda: self.assertIn(
                self.task_state(instance.uuid), ('deleting', 'deleted')),
                max_retries=200, sleep=0.05)
            return begin(driver, *args, **kwargs)

        with mock.patch.object(libvirt_driver.LibvirtDriver, method,
                               begin_late):
            yield deleted

    def task_state(self, uuid):
        try:
            return self.api.get_server(uuid)['OS-EXT-STS:task_state']
        except client.OpenStackApiNotFoundException:
            return 'deleted'

    def reap(self):
        """Run the periodic task that deletes domains of deleted servers."""
        for compute in self.computes.values():
            compute.manager._cleanup_running_deleted_instances(
                context.get_admin_context())

    @base.operation('Delete while the host is down')
    def test_delete_while_the_host_is_down(self):
        server = self.server()
        self.down('compute1')
        self._delete_server(server)
        self.assertEqual({}, self.allocated(server))
        self.up('compute1')
        # Its domain still has the devices, though Placement has no allocation.
        self.assertTaken('compute1')
        self.reap()
        self._run_periodics()
        self.assertFree('compute1')

    @base.operation('Soft delete, restore, force delete')
    def test_soft_delete(self):
        self.flags(reclaim_instance_interval=3600)
        server = self.server()
        before = self.taken('compute1')
        self.api.delete_server(server['id'])
        self._wait_for_state_change(server, 'SOFT_DELETED')
        self.assertEqual(before, self.taken('compute1'))
        self.assertTaken('compute1')
        self.keeps(server, {'restore': None})
        self.api.delete_server(server['id'])
        self.api.post_server_action(server['id'], {'forceDelete': None})
        self._wait_until_deleted(server)
        self.flags(reclaim_instance_interval=0)
        self.assertFree('compute1')

    @base.operation('Stop, start', 'Reboot, soft or hard', 'Pause, unpause',
                    'Lock, unlock')
    def test_power(self):
        server = self.second_server()
        for kind in ('SOFT', 'HARD'):
            self.keeps(server, {'reboot': {'type': kind}})
        for off, on, status in (('os-stop', 'os-start', 'SHUTOFF'),
                                ('pause', 'unpause', 'PAUSED')):
            self.keeps(server, {off: None}, {'lock': None}, status=status)
            self.assertTaken('compute1')
            self.keeps(server, {'unlock': None}, {on: None})

    @base.operation('Suspend, resume')
    def test_suspend(self):
        server = self.second_server()
        before = self.taken('compute1')
        self.act(server, {'suspend': None}, 'SUSPENDED')
        self.assertTaken('compute1')
        self.act(server, {'resume': None})
        self.assertEqual(before, self.taken('compute1'))

    @base.operation('Snapshot', 'Backup')
    def test_snapshot(self):
        # A live snapshot copies the disk, which does not exist here.
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.LibvirtDriver._live_snapshot'))
        server = self.server()
        self.keeps(server, {'createImage': {'name': 'one'}})
        self.keeps(server, {'createBackup': {
            'name': 'two', 'backup_type': 'daily', 'rotation': 1}})

    @base.operation('Snapshot with disable_libvirt_livesnapshot')
    def test_cold_snapshot(self):
        # Nova suspends the guest during a cold snapshot.
        self.flags(disable_libvirt_livesnapshot=True, group='workarounds')
        server = self.server()
        self.keeps(server, {'createImage': {'name': 'cold'}})

    @base.operation('Rebuild, same or new image')
    def test_rebuild(self):
        server = self.second_server()
        for image in (cloud.IMAGE, OTHER_IMAGE):
            self.keeps(server, {'rebuild': {'imageRef': image}})

    @base.operation('Rescue, unrescue')
    def test_rescue(self):
        server = self.second_server()
        self.keeps(server, {'rescue': None}, status='RESCUE')
        self.assertTaken('compute1')
        self.keeps(server, {'unrescue': None})

# SPDX-License-Identifier: Apache-2.0
"""Nova's tests of servers with accelerators of Cyborg, with nova_accel.

The flows are the ones of ``AcceleratorServer*`` in
nova.tests.functional.test_servers. As there, each step is followed by a check
of the allocations of all hosts. These tests also check libvirt's hostdevs, in
place of accelerator requests. Operations that Nova refuses with Cyborg succeed
here.
"""

import contextlib
import pathlib
from unittest import mock

from lxml import etree
from nova import context
from nova import exception
from nova.compute import rpcapi
from nova.tests.functional.libvirt import base
from nova.virt.libvirt import driver as libvirt_driver
from oslo_utils import versionutils

from tests.functional import cloud

CONF = cloud.CONF


class Flow(cloud.Cloud):

    HOSTS = ('compute1', 'compute2')
    NODE = {'VCPU': 1, 'MEMORY_MB': 256, 'DISK_GB': 1}

    def setUp(self):
        super().setUp()
        for host in self.HOSTS:
            self.start_compute(host)
        self.gpu_profile('pair', count=2)
        self.pair = self.flavor('pair')

    def ledger(self, host):
        """Return the allocations of a host, by provider and consumer."""
        uuids = {host: self.compute_rp_uuids[host], **{
            name: provider['uuid']
            for name, provider in self.providers(host).items()}}
        allocations = {name: self._get_allocations_by_provider_uuid(uuid)
                       for name, uuid in uuids.items()}
        return {name: {consumer: allocation['resources']
                       for consumer, allocation in consumers.items()}
                for name, consumers in allocations.items() if consumers}

    def plugged(self, server, host):
        """Return the PCI addresses in a guest's current XML."""
        domain = etree.fromstring(self.domain(server, host).XMLDesc(0))
        return ['{domain}:{bus}:{slot}.{function}'.format(**{
            part: digits.removeprefix('0x')
            for part, digits in address.attrib.items()})
            for address in domain.findall('./devices/hostdev/source/address')]

    def assertHas(self, server, devices=2, host='compute1'):
        """Check that a server has devices on one host only.

        Check this in Placement and in libvirt.
        """
        self.assertEqual(host, self._show_server(server)[
            'OS-EXT-SRV-ATTR:host'])
        held = self.held(host)
        self.assertEqual([[server['id']]] * devices, list(held.values()))
        self.assertEqual(sorted(held), sorted(self.plugged(server, host)))
        granted = {f'{host}_accel_{address}': {server['id']: {cloud.GPU: 1}}
                   for address in held}
        self.assertEqual({host: {server['id']: self.NODE}, **granted},
                         self.ledger(host))
        self.assertNothingOn(*set(self.HOSTS) - {host})

    def assertNothingOn(self, *hosts):
        for host in hosts:
            self.assertEqual({}, self.ledger(host))
            self.assertEqual({}, self.held(host))

    def assertNothingLeft(self):
        # Nova sets a server to ERROR before it has cleaned up.
        self._wait_for_assert(lambda: self.assertNothingOn(*self.HOSTS))

    @contextlib.contextmanager
    def failing(self, *errors):
        """Make the next starts of guests fail, each with one of the errors."""
        start = libvirt_driver.LibvirtDriver._create_guest_with_network
        remaining = list(errors)

        def start_or_fail(driver, *args, **kwargs):
            if remaining:
                raise remaining.pop(0)
            return start(driver, *args, **kwargs)

        with mock.patch.object(libvirt_driver.LibvirtDriver,
                               '_create_guest_with_network', start_or_fail):
            yield
        self.assertEqual([], remaining)


class CreateTest(Flow):
    """The tests of AcceleratorServerTest."""

    HOSTS = ('compute1',)

    def test_create_and_delete(self):
        server = self.boot(self.pair)
        self.assertHas(server)
        self._delete_server(server)
        self.assertNothingLeft()

    def test_create_with_error(self):
        error = exception.BuildAbortException(instance_uuid='', reason='no')
        with self.failing(error):
            server = self.boot(self.pair, state='ERROR')
        self.assertNothingLeft()
        self._delete_server(server)
        self.assertNothingLeft()
        self.assertHas(self.boot(self.pair))

    def test_delete_while_the_host_is_down(self):
        server = self.boot(self.pair)
        self._stop_server(server)
        self.assertHas(server)
        self.take_down('compute1')
        self._delete_server(server)
        self.assertEqual({}, self.ledger('compute1'))
        # Its domain still exists, so no other server gets its devices.
        self.bring_back('compute1')
        self.assertEqual([[server['id']]] * 2,
                         list(self.held('compute1').values()))
        # A periodic task of Nova, which runs every half an hour.
        self.computes['compute1'].manager._cleanup_running_deleted_instances(
            context.get_admin_context())
        self.assertNothingLeft()
        self.assertHas(self.boot(self.pair))


class RescheduleTest(Flow):
    """The tests of AcceleratorServerReschedTest."""

    def no_devices(self):
        return exception.ComputeResourcesUnavailable(reason='no')

    def test_next_host(self):
        with self.failing(self.no_devices()):
            server = self.boot(self.pair)
        self.assertHas(server, host=server['OS-EXT-SRV-ATTR:host'])

    def test_no_next_host(self):
        with self.failing(self.no_devices(), self.no_devices()):
            self.boot(self.pair, state='ERROR')
        self.assertNothingLeft()


class Operation(Flow):

    DEVICE_SPEC = (cloud.PAIR_SPEC,)

    def setUp(self):
        super().setUp()
        self.server = self.boot(self.pair, host='compute1')
        self.devices = self.hostdevs(self.server)

    def assertKept(self):
        """Check that the server still has the same devices."""
        self.assertHas(self.server)
        self.assertEqual(self.devices, self.hostdevs(self.server))

    def confirm(self):
        # The computes share CONF.host. The driver compares it with the host
        # to clean up.
        self.flags(host='compute1')
        self._confirm_resize(self.server)


class OperationTest(Operation):
    """The tests of AcceleratorServerOpsTest."""

    def assertUnshelved(self):
        server = self._unshelve_server(self.server)
        self.assertHas(server, host=server['OS-EXT-SRV-ATTR:host'])

    def test_soft_reboot(self):
        self._reboot_server(self.server)
        self.assertKept()

    def test_hard_reboot(self):
        self._reboot_server(self.server, hard=True)
        self.assertKept()

    def test_pause_and_unpause(self):
        self.api.post_server_action(self.server['id'], {'pause': {}})
        self._wait_for_state_change(self.server, 'PAUSED')
        self.assertKept()
        self.api.post_server_action(self.server['id'], {'unpause': {}})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertKept()

    def test_stop_and_start(self):
        self._stop_server(self.server)
        self.assertKept()
        self._start_server(self.server)
        self.assertKept()

    def test_lock_and_unlock(self):
        self.api.post_server_action(self.server['id'], {'lock': {}})
        self.assertTrue(self._show_server(self.server)['locked'])
        self.assertKept()
        self.api.post_server_action(self.server['id'], {'unlock': {}})
        self.assertFalse(self._show_server(self.server)['locked'])
        self.assertKept()

    @mock.patch('nova.virt.libvirt.LibvirtDriver._live_snapshot', mock.Mock())
    def test_backup(self):
        self.api.post_server_action(self.server['id'], {'createBackup': {
            'name': 'backup', 'backup_type': 'daily', 'rotation': 1}})
        self.notifier.wait_for_versioned_notifications('instance.snapshot.end')
        self.assertKept()

    @mock.patch('nova.virt.libvirt.LibvirtDriver._live_snapshot', mock.Mock())
    def test_create_image(self):
        self.create_image()

    def test_create_image_with_cold_snapshot(self):
        self.flags(disable_libvirt_livesnapshot=True, group='workarounds')
        self.create_image()
        self._wait_for_log('Beginning cold snapshot process')

    def create_image(self):
        self._snapshot_server(self.server, 'image')
        self.notifier.wait_for_versioned_notifications('instance.snapshot.end')
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertKept()

    def test_rescue_and_unrescue(self):
        # nova-compute stores the domain XML in this directory, which the
        # harness does not create.
        pathlib.Path(CONF.instances_path, self.server['id']).mkdir()
        self._rescue_server(self.server)
        self.assertKept()
        self._unrescue_server(self.server)
        self.assertKept()

    def test_rebuild(self):
        image = self.glance.auto_disk_config_enabled_image['id']
        self._rebuild_server(self.server, image)
        self.assertKept()

    def test_evacuate(self):
        self.take_down('compute1')
        self._evacuate_server(self.server, {'host': 'compute2'},
                              expected_host='compute2')
        self.bring_back('compute1')
        self.assertHas(self.server, host='compute2')

    def test_devices_of_an_evacuated_server_are_free(self):
        """The source frees devices, even during a rebuild on the new host."""
        self.take_down('compute1')
        self._evacuate_server(self.server, {'host': 'compute2'},
                              expected_host='compute2')
        self.set_task_state(self.server, 'rebuilding')
        self.bring_back('compute1')
        self._run_periodics()
        self.assertEqual({}, self.held('compute1'))
        self.boot(self.pair, host='compute1')

    def test_evacuated_server_keeps_its_devices(self):
        """A hard reboot after an evacuation keeps the devices of the new host.

        Placement also has allocations of the old host until that is up again.
        """
        self.take_down('compute1')
        self._evacuate_server(self.server, {'host': 'compute2'},
                              expected_host='compute2')
        held = self.held('compute2')
        self.flags(device_spec=['{"colour": 1}'], group='nova_accel')
        self.restart_compute_service('compute2')
        self._reboot_server(self.server, hard=True)
        self.assertEqual(2, len(held))
        self.assertEqual(held, self.held('compute2'))

    def test_shelve_and_unshelve(self):
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, 'SHELVED')
        self.assertKept()
        self._unshelve_server(self.server)
        self.assertKept()

    def test_shelve_offload_and_unshelve(self):
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, 'SHELVED')
        self._shelve_offload_server(self.server)
        self.assertNothingLeft()
        self.assertUnshelved()

    def test_shelve_and_unshelve_with_old_computes(self):
        # nova_accel adds nothing to Nova's RPC messages, so old versions work.
        self.flags(compute='5.0', group='upgrade_levels')
        rpcapi.reset_globals()
        self._shelve_server(self.server)
        self.assertNothingLeft()
        self.assertUnshelved()


class RefusedWithCyborgTest(Operation):
    """Operations that Nova refuses for servers with devices of Cyborg."""

    def test_resize(self):
        self.gpu_profile('one')
        self._resize_server(self.server, self.flavor('one'))
        self.confirm()
        self.assertHas(self.server, devices=1, host='compute2')

    def test_suspend_and_resume(self):
        before = self.ledger('compute1')
        self._suspend_server(self.server)
        self.assertEqual(before, self.ledger('compute1'))
        self._resume_server(self.server)
        self.assertKept()

    def test_migrate(self):
        self._migrate_server(self.server)
        self.confirm()
        self.assertHas(self.server, host='compute2')


class LiveMigrationTest(base.LibvirtMigrationMixin, Operation):
    """Live migration with versions and devices that support it."""

    DEVICE_SPEC = (cloud.migratable(cloud.PAIR_SPEC),)
    VERSIONS = {
        'libvirt_version': libvirt_driver.MIN_VFIO_PCI_VARIANT_LIBVIRT_VERSION,
        'qemu_version': libvirt_driver.MIN_VFIO_PCI_VARIANT_QEMU_VERSION}

    def setUp(self):
        super().setUp()
        self.src, self.dest = (self.computes[host] for host in self.HOSTS)

    def start_compute(self, hostname):
        return super().start_compute(hostname, **{
            what: versionutils.convert_version_to_int(version)
            for what, version in self.VERSIONS.items()})

    def test_live_migrate(self):
        self._live_migrate(self.server, host='compute2')
        self.assertHas(self.server, host='compute2')

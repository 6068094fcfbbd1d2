# SPDX-License-Identifier: Apache-2.0
"""Live migration of servers with devices."""

import fixtures
from lxml import etree
from nova import objects
from nova.compute import manager
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client

from nova_accel.compute.state import device_claims
from nova_accel.host import tree
from tests.functional import cloud


class MovingTest(cloud.Cloud):
    """Base of test cases with two hosts of four GPUs each."""

    DEVICE_SPEC = (cloud.migratable(cloud.FOUR_SPEC),)

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')
        self.start_compute('compute2')
        self.gpu_profile('two', count=2)
        self.two = self.flavor('two')

    def addresses(self, host):
        """Return the PCI addresses of the devices that a host offers."""
        return sorted(name.removeprefix(f'{host}_accel_')
                      for name in self.providers(host))

    def host_of(self, server):
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']

    def assertHas(self, server, host, count):
        """Check that a server has devices of one host, and of no other.

        Check this in Placement and in libvirt.
        """
        self.assertEqual(host, self.host_of(server))
        held = self.hostdevs(server, host)
        self.assertEqual(count, len(held))
        names = {provider['uuid']: name for name, provider
                 in self.providers(host).items()}
        for alias in held.values():
            self.assertIn(alias.split('-', 3)[3][:36], names)
        self.assertEqual(
            {f'{host}_accel_{address}': {cloud.GPU: 1} for address in held},
            self.allocated(server))
        for other in set(self.computes) - {host}:
            self.assertEqual({}, self.hostdevs(server, other))

    def assertAllFree(self, host):
        """Check that one server can get all devices that a host offers."""
        count = len(self.providers(host))
        self.gpu_profile('all', count, numa='off')
        self._delete_server(self.boot(self.flavor('all'), host=host))

    def replace_machine(self, host):
        """Restart a nova-compute with a sysfs that the test can change."""
        path = self.directory_host()
        self.restart_compute_service(host)
        return path

    def fail_to_move(self, server, reason, migration='error'):
        """Try a live migration that fails; check that all devices stay.

        The status of the server is then ACTIVE or ERROR. It depends on which
        of Nova's threads writes it last.
        """
        before = self.hostdevs(server), self.allocated(server)
        try:
            self.api.post_server_action(server['id'], {'os-migrateLive': {
                'host': None, 'block_migration': 'auto'}})
        except client.OpenStackApiException:
            # In the harness the API call waits for the conductor, and fails
            # if the migration does.
            pass
        else:
            self._wait_for_migration_status(server, [migration])
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None})
        self.assertEqual('compute1', self.host_of(server))
        self.assertEqual(before,
                         (self.hostdevs(server), self.allocated(server)))
        self.assertEqual({}, self.held('compute2'))
        self._run_periodics()
        if self.providers('compute2'):
            self.assertAllFree('compute2')
        self.assertIn(reason, self.stdlog.logger.output)


class ChoiceTest(MovingTest):
    """Choice of devices on a destination with eight devices."""

    DEVICE_SPEC = (cloud.migratable(cloud.GPU_SPEC),)

    def test_alike_devices_are_chosen_among_others(self):
        """The server gets devices like its own; the scheduler cannot tell."""
        path = self.replace_machine('compute2')
        there = self.addresses('compute2')
        for address in there[:4]:
            (path / 'sys/bus/pci/devices' / address / 'revision').write_text(
                '0x42\n')
        server = self.boot(self.two, host='compute1')
        self._live_migrate(server)
        self.assertHas(server, 'compute2', 2)
        self.assertLessEqual(set(self.hostdevs(server, 'compute2')),
                             set(there[4:]))

    def test_numa_rule_ignores_ports_of_the_source_host(self):
        """Ports of the source do not restrict the devices of the destination.

        Nova knows only the ports of the source until the server has moved.
        """
        self.gpu_profile('four', count=4)
        full = self.boot(self.flavor('four'), host='compute2')
        address = min(self.hostdevs(full, 'compute2'))
        machine = tree.open_tree(cloud.EIGHT_GPUS)
        node = int(machine.text(tree.follow(
            machine, f'sys/bus/pci/devices/{address}') + '/numa_node'))
        get, ports = (objects.Instance.get_pci_devices,
                      objects.InstancePCIRequest.NEUTRON_PORT)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.objects.Instance.get_pci_devices',
            lambda instance, source=None, request_id=None: (
                [objects.PciDevice(numa_node=node)] if source == ports
                else get(instance, source, request_id))))
        self.write_profile('near', groups=[
            {'name': 'gpu', 'resources': {cloud.GPU: 1}, 'numa': 'off'}],
            affinity=[{'same': 'numa_node', 'groups': ['gpu', 'network']}])
        server = self.boot(self.flavor('near'), host='compute1')
        self._live_migrate(server)
        self.assertHas(server, 'compute2', 1)


class LiveMigrationTest(MovingTest):

    def test_server_gets_alike_devices(self):
        server = self.boot(self.two, host='compute1')
        self._live_migrate(server)
        self.assertHas(server, 'compute2', 2)
        self.assertEqual({}, self.held('compute1'))
        self._delete_server(server)
        self.assertAllFree('compute2')

    def test_server_without_devices(self):
        """A server without devices migrates as with Nova alone."""
        server = self.boot(self.flavor(), host='compute1')
        self._live_migrate(server)
        self.assertHas(server, 'compute2', 0)

    def test_migration_there_and_back(self):
        server = self.boot(self.two, host='compute1')
        self._live_migrate(server)
        self._live_migrate(server)
        self.assertHas(server, 'compute1', 2)

    def test_hard_reboot_after_live_migration(self):
        server = self.boot(self.two, host='compute1')
        self._live_migrate(server)
        before = self.hostdevs(server, 'compute2')
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.hostdevs(server, 'compute2'))

    def test_claimed_device_is_not_given_to_another_server(self):
        """A server that boots during the move does not get the devices."""
        server = self.boot(self.two, host='compute1')
        three = self.flavor(self.gpu_profile('three', 3, 'off').stem)
        other = {}

        def boot_another(domain, xml):
            other.update(self.boot(three, state='ERROR', host='compute2'))

        self.migration.on_move = boot_another
        self._live_migrate(server)
        self.assertTrue(other)
        self.assertHas(server, 'compute2', 2)

    def test_restart_of_the_destination_before_migration(self):
        server = self.boot(self.two, host='compute1')
        manager = type(self.computes['compute1'].manager)
        live_migrate = manager.live_migration

        def restart_first(*args, **kwargs):
            self.restart_compute_service('compute2')
            return live_migrate(*args, **kwargs)

        with fixtures.MonkeyPatch(
                'nova.compute.manager.ComputeManager.live_migration',
                restart_first):
            self._live_migrate(server)
        self.assertHas(server, 'compute2', 2)


class LiveMigrationThatFailsTest(MovingTest):

    def setUp(self):
        super().setUp()
        self.server = self.boot(self.two, host='compute1')

    def test_firmware_differs(self):
        path = self.replace_machine('compute2')
        for revision in path.glob('sys/devices/**/revision'):
            revision.write_text('0x42\n')
        self.fail_to_move(self.server, 'revision')

    def test_guest_runs_without_one_of_its_devices(self):
        domain = self.domain(self.server)
        domain.detachDevice(etree.tostring(domain.plugged[0],
                                           encoding='unicode'))
        self.fail_to_move(self.server, 'the guest runs without it')

    def test_guest_fails_to_move(self):
        def fail(domain, xml):
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError, 'no', error_code=1)
        self.migration.on_move = fail
        self.fail_to_move(self.server, 'Live Migration failure')

    def test_preparation_fails(self):
        with fixtures.MockPatch(
                'nova.virt.libvirt.driver.LibvirtDriver.'
                '_pre_live_migration_plug_vifs',
                side_effect=Exception('no network')):
            self.fail_to_move(self.server, 'no network', 'failed')

    def test_destination_cannot_read_held_devices(self):
        choose = device_claims.DeviceClaims.choose
        failures = [Exception('no libvirt')]

        def fail_once(*args, **kwargs):
            if failures:
                raise failures.pop()
            return choose(*args, **kwargs)

        with fixtures.MockPatchObject(device_claims.DeviceClaims, 'choose',
                                      fail_once):
            self.fail_to_move(self.server, 'no libvirt')
        self.assertEqual('ACTIVE', self.api.get_server(
            self.server['id'])['status'])

    def test_destination_is_too_old(self):
        with fixtures.MockPatchObject(
                self.computes['compute2'].driver._host, 'has_min_version',
                return_value=False):
            self.fail_to_move(self.server, 'the destination: its libvirt or '
                              'QEMU is too old')

    def lie(self, restart=False):
        """Make the source name a device that was not chosen for the server.

        :param restart: whether the destination restarts, and so forgets its
            choice
        """
        live_migrate = manager.ComputeManager.live_migration

        def migrate(*args, **kwargs):
            [data] = [value for value in (*args, *kwargs.values()) if
                      isinstance(value, objects.LibvirtLiveMigrateData)]
            free = set(self.addresses('compute2'))
            free -= set(data.pci_dev_map_src_dst.values())
            alias = next(alias for alias, value in data.target_mdevs.items()
                         if value.endswith(' yes'))
            data.target_mdevs = {**data.target_mdevs,
                                 alias: f'{min(free)} yes'}
            if restart:
                self.restart_compute_service('compute2')
            return live_migrate(*args, **kwargs)

        return fixtures.MonkeyPatch(
            'nova.compute.manager.ComputeManager.live_migration', migrate)

    def test_source_names_a_device_that_was_not_chosen(self):
        for restart in (False, True):
            with self.lie(restart):
                self.fail_to_move(self.server, 'that were not chosen for it',
                                  'failed')

    def test_device_of_the_destination_has_disappeared(self):
        machine = self.replace_machine('compute2')
        for path in (machine / 'sys/bus/pci/devices').iterdir():
            path.unlink()
        self.fail_to_move(self.server, 'its device is not there')


class PostCopyTest(MovingTest):
    """Hosts with [libvirt] live_migration_permit_post_copy.

    QEMU refuses post-copy for guests with VFIO devices.
    """

    def setUp(self):
        self.flags(live_migration_permit_post_copy=True, group='libvirt')
        super().setUp()
        migrate = fakelibvirt.Domain.migrateToURI3

        def note(domain, uri, params, flags):
            self.moved_by = flags & fakelibvirt.VIR_MIGRATE_POSTCOPY
            return migrate(domain, uri, params, flags)

        def ask(driver, *_arguments):
            # Nova calls this where it checks whether it can switch to
            # post-copy.
            self.can_switch = driver._is_post_copy_enabled(
                fakelibvirt.VIR_MIGRATE_POSTCOPY)
            return []

        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.migrateToURI3', note))
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.driver.LibvirtDriver._get_vpmems', ask))

    def test_post_copy_is_not_used_with_devices(self):
        for flavor, wanted in (self.two, False), (self.flavor(), True):
            server = self.boot(flavor, host='compute1')
            self._live_migrate(server)
            self.assertEqual((wanted, wanted),
                             (bool(self.moved_by), self.can_switch))


class NotMigratableTest(MovingTest):

    DEVICE_SPEC = (cloud.FOUR_SPEC,)

    def test_device_that_is_not_live_migratable_is_refused(self):
        server = self.boot(self.two, host='compute1')
        self.fail_to_move(server, 'does not say that it is live_migratable')

# SPDX-License-Identifier: Apache-2.0
"""A server keeps what its allocations name, whatever is withheld."""

import contextlib

import ddt
import fixtures
from nova import context
from nova import objects
from nova.policies import base as policies
from nova.policies import servers as server_policies
from nova.virt.libvirt import driver as libvirt_driver

from nova_accel.compute.state import placement
from tests.functional import cloud
from tests.functional import hypervisor
from tests.functional import test_health
from tests.functional import withheld

_CHANGES = ('drain_devices', 'drain_host', 'remove_entries', 'change_class')


@ddt.ddt
class OneHostTest(withheld.WithheldCase):

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')

    @ddt.data(*_CHANGES)
    def test_reverted_resize_to_none(self, change):
        server = self.boot(self.two)
        had = self.hostdevs(server)
        self._resize_server(server, self.plain)
        getattr(self, change)()
        self.revert(server)
        self.assertKeeps(server, had)

    @ddt.data(*_CHANGES)
    def test_reverted_resize_to_another_device(self, change):
        server = self.boot(self.one)
        had = self.hostdevs(server)
        self._resize_server(server, self.flavor('one'))
        getattr(self, change)()
        self.revert(server)
        self.assertKeeps(server, had)

    @contextlib.contextmanager
    def unmoved(self):
        """Nova cannot move the allocations of a reverted migration."""
        with fixtures.MockPatchObject(
                self.computes['compute1'].manager.reportclient,
                'get_allocations_for_consumer', return_value={}):
            yield

    @ddt.data('one', None)
    def test_placement_was_down_during_a_revert(self, profile):
        server = self.boot(self.flavor(
            extra_spec={f'resources:{cloud.GPU}': '1'}))
        had, allocated = self.hostdevs(server), self.allocated(server)
        self._resize_server(server, self.flavor(profile))
        with self.unmoved():
            self.revert(server)
        self.assertKeeps(server, had)
        self.assertEqual(allocated, self.allocated(server))
        self.assertEqual('ACTIVE', self.outcome(self.one))

    @ddt.data('audit', 'reboot')
    def test_placement_is_down_during_a_revert(self, repair):
        server = self.boot(self.one)
        had, allocated = self.hostdevs(server), self.allocated(server)
        self._resize_server(server, self.flavor('one'))
        with self.unmoved(), fixtures.MockPatchObject(
                placement.PlacementClient, 'allocations_of_consumer',
                return_value=None):
            self.revert(server)
        self.assertKeeps(server, had)
        self.assertNotEqual(allocated, self.allocated(server))
        if repair == 'audit':
            self.useFixture(cloud.AuditClock()).skip_interval()
            self.rounds()
        else:
            self.reboot(server)
        self.assertKeeps(server, had)
        self.assertEqual(allocated, self.allocated(server))
        self.assertEqual('ACTIVE', self.outcome(self.one))

    def test_allocations_of_an_unconfirmed_resize_are_lost(self):
        server = self.boot(self.one)
        had = self.hostdevs(server)
        self._resize_server(server, self.plain)
        [move] = objects.MigrationList.get_by_filters(
            context.get_admin_context(), {'instance_uuid': server['id']})
        self.placement.delete(f'/allocations/{move.uuid}')
        self.rounds()
        self.assertEqual(['ACTIVE', 'ERROR'], [
            self.outcome(self.one) for _server in range(2)])
        self.revert(server)
        self.assertKeeps(server, had)

    @ddt.data('drain', 'one_time_use')
    def test_other_device_is_free(self, withheld):
        """A unit that is withheld and allocated counts once in its class."""
        if withheld == 'one_time_use':
            self.change_entries(cloud.PAIR_SPEC[:-1]
                                + ', "one_time_use": "yes"}')
        server = self.boot(self.one)
        [address] = self.hostdevs(server)
        if withheld == 'drain':
            self.set_drained(True, self.providers()[
                f'compute1_accel_{address}']['uuid'])
        else:
            self.rounds()
            self.undefine(server)
        self.rounds()
        self.assertEqual(['ACTIVE', 'ERROR'], [
            self.outcome(self.one) for _server in range(2)])

    def test_device_is_free_after_the_confirm(self):
        server = self.boot(self.one)
        self._resize_server(server, self.flavor('one'))
        self._confirm_resize(server)
        self.assertEqual('ACTIVE', self.outcome(self.one))

    @ddt.data('drain_devices', 'drain_host')
    def test_domain_is_gone(self, change):
        server = self.boot(self.two)
        had = self.hostdevs(server)
        getattr(self, change)()
        self.undefine(server)
        self.rounds(1)
        self.reboot(server)
        self.assertKeeps(server, had)

    @ddt.data(*_CHANGES)
    def test_failed_rebuild(self, change):
        server = self.boot(self.two)
        had = self.hostdevs(server)
        self.fail_rebuild(server)
        getattr(self, change)()
        self.restart_compute_service('compute1')
        self.rounds(1)
        self.reboot(server)
        self.assertKeeps(server, had)

    @ddt.data('drain_host', 'remove_entries')
    def test_rebuild_that_fails_after_the_change(self, change):
        server = self.boot(self.two)
        had = self.hostdevs(server)
        getattr(self, change)()
        self.fail_rebuild(server, self.glance.auto_disk_config_enabled_image[
            'id'])
        self.rounds()
        self.reboot(server)
        self.assertKeeps(server, had)

    def test_deleted_server_keeps_nothing(self):
        server = self.boot(self.two)
        self.fail_rebuild(server)
        self._delete_server(server)
        self.assertEqual('ACTIVE', self.outcome(self.two))

    def test_libvirt_is_down_while_the_domain_is_undefined(self):
        server = self.boot(self.two)
        had = self.hostdevs(server)
        self.remove_entries()
        self.restart_compute_service('compute1')
        self.fail_definition(server)
        self.assertEqual({}, self.held())
        self.rounds(1)
        self.reboot(server)
        self.assertKeeps(server, had)


class CellsTest(withheld.WithheldCase):

    NUMBER_OF_CELLS = 2

    def setUp(self):
        super().setUp()
        self.policy.set_rules({
            server_policies.CROSS_CELL_RESIZE: policies.RULE_ADMIN_API},
            overwrite=False)
        for number in (1, 2):
            self.start_compute(f'compute{number}', cell_name=f'cell{number}')

    def test_reverted_resize_to_another_cell(self):
        for change in (self.drain_host, self.remove_entries):
            server = self.boot(self.two, host='compute1')
            had = self.hostdevs(server)
            self._resize_server(server, self.flavor('two'))
            # Both computes share one CONF.host.
            self.flags(host='compute1')
            change()
            self.revert(server)
            self.assertKeeps(server, had)
            self.change_entries(*self.DEVICE_SPEC)
            self._delete_server(server)
            # The next drain begins with an undrained host.
            self.set_drained(False, self.compute_rp_uuids['compute1'])
            self.rounds()

    def test_devices_are_free_after_a_confirmed_resize_to_another_cell(self):
        server = self.boot(self.two, host='compute1')
        self.flags(host='compute1')
        self._resize_server(server, self.flavor('two'))
        self._confirm_resize(server, cross_cell=True)
        self.assertEqual('ACTIVE', self.outcome(self.two, 'compute1'))


@ddt.ddt
class TwoHostsTest(withheld.WithheldCase):
    """Moves of servers that have no domain, or are to get none."""

    def setUp(self):
        super().setUp()
        for host in ('compute1', 'compute2'):
            self.start_compute(host)
        # Both computes share one CONF.host.
        self.flags(host='compute1')
        self.server = self.boot(self.two, host='compute1')
        self.had = self.hostdevs(self.server)

    def assertFree(self, host):
        self.assertEqual('ACTIVE', self.outcome(self.two, host))

    @contextlib.contextmanager
    def down(self):
        """Stop the first compute, and start it again."""
        self.take_down('compute1')
        self.flags(host='compute2')
        yield
        self.flags(host='compute1')
        self.bring_back('compute1')

    def migrate_without_domain(self):
        self.fail_rebuild(self.server)
        self.set_active(self.server)
        self._migrate_server(self.server)

    def test_confirmed_migration(self):
        self.migrate_without_domain()
        self._confirm_resize(self.server)
        self.assertFree('compute1')

    def test_reverted_migration(self):
        self.migrate_without_domain()
        self.rounds()
        self.restart_compute_service('compute1')
        self.drain_host()
        self.revert(self.server)
        self.assertKeeps(self.server, self.had)

    def test_failed_migration(self):
        with hypervisor.without_guests():
            self.attempt(self._migrate_server, self.server)
        self.flags(host='compute2')
        self.rounds()
        self.set_active(self.server)
        self._migrate_server(self.server)
        self._confirm_resize(self.server)
        self.rounds()
        self.assertEqual(2, len(self.hostdevs(self.server, 'compute1')))
        self.assertFree('compute2')

    def test_evacuation(self):
        self.fail_rebuild(self.server)
        with self.down():
            self._evacuate_server(self.server, expected_host='compute2',
                                  expected_state='ACTIVE')
        self.rounds()
        self.assertEqual(2, len(self.hostdevs(self.server, 'compute2')))
        self.assertFree('compute1')

    def test_failed_evacuation(self):
        with self.down():
            with hypervisor.without_guests():
                self.attempt(self._evacuate_server, self.server)
            self._wait_for_state_change(self.server, 'ERROR')
            self.rounds()
            self.assertFree('compute2')
        self.drain_devices()
        self.reboot(self.server)
        self.assertKeeps(self.server, self.had)

    def test_source_returns_during_an_evacuation(self):
        create = libvirt_driver.LibvirtDriver._create_guest_with_network

        def create_after_the_return(*args, **kwargs):
            self.flags(host='compute1')
            self.restart_compute_service('compute1')
            self.flags(host='compute2')
            return create(*args, **kwargs)

        with self.down(), fixtures.MonkeyPatch(
                'nova.virt.libvirt.driver.LibvirtDriver.'
                '_create_guest_with_network', create_after_the_return):
            self._evacuate_server(self.server, expected_host='compute2')
        self.rounds()
        self.assertEqual(2, len(self.hostdevs(self.server, 'compute2')))
        self.assertFree('compute1')

    def test_server_is_deleted_while_its_host_is_down(self):
        self.fail_rebuild(self.server)
        with self.down():
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)
        self.rounds()
        self.assertFree('compute1')

    def test_server_is_soft_deleted(self):
        self.flags(reclaim_instance_interval=3600)
        self.fail_rebuild(self.server)
        self.api.delete_server(self.server['id'])
        self._wait_for_state_change(self.server, 'SOFT_DELETED')
        self.rounds()
        self.restart_compute_service('compute1')
        self.rounds()
        self.assertEqual('ERROR', self.outcome(self.one, 'compute1'))
        self.api.post_server_action(self.server['id'], {'restore': {}})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.reboot(self.server)
        self.assertKeeps(self.server, self.had)


@ddt.ddt
class UnhealthyTest(test_health.HealthCase):

    def setUp(self):
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start_compute('compute1')
        self.gpu_profile('four', count=4, numa='off')
        self.server = self.boot(self.flavor('four'))
        self.had = self.hostdevs(self.server)

    def test_reverted_resize(self):
        self._resize_server(self.server, self.flavor())
        self.break_it()
        self._revert_resize(self.server)
        self.assertEqual(self.had.keys(), self.hostdevs(self.server).keys())

    def break_it(self):
        self.write(test_health.ONE, 'current_link_width', '4\n')
        for _round in range(2):
            self._run_periodics()


@ddt.ddt
class LostAllocationsTest(withheld.WithheldCase):
    """Somebody deletes the allocations of a server."""

    def setUp(self):
        super().setUp()
        self.clock = self.useFixture(cloud.AuditClock())
        self.start_compute('compute1')

    @ddt.data('rounds', 'drain_host', 'skip_to_audit')
    def test_reboot_restores_them(self, change):
        server = self.boot(self.two)
        had = self.hostdevs(server)
        self.placement.delete(f'/allocations/{server["id"]}')
        getattr(self, change)()
        self.reboot(server)
        self.assertKeeps(server, had)
        self.assertEqual({f'compute1_accel_{address}': {cloud.GPU: 1}
                          for address in had}, self.allocated(server))

    def skip_to_audit(self):
        self.rounds(1)
        self.clock.skip_interval()
        self.rounds(1)


class ClassOnlyTest(withheld.WithheldCase):
    """A flavor asks for a class, and nothing tells whose class it is."""

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')
        self.server = self.boot(self.flavor(extra_spec={
            f'resources:{cloud.GPU}': '1'}))
        self.had = self.hostdevs(self.server)

    def test_failed_rebuild_while_placement_is_down(self):
        self.fail_rebuild(self.server)
        self.remove_entries()
        with fixtures.MockPatchObject(placement.PlacementClient,
                                      'allocations_of_consumer',
                                      return_value=None):
            self.reboot(self.server)
        self.assertKeeps(self.server, self.had)

    def test_unknown_is_not_none(self):
        self.remove_entries()
        self.undefine(self.server)
        self.computes['compute1'].driver.provider_tree = None
        with fixtures.MockPatchObject(placement.PlacementClient,
                                      'allocations_of_consumer',
                                      return_value=None):
            self.reboot(self.server)
        server = self.api.get_server(self.server['id'])
        self.assertEqual('ERROR', server['status'])
        self.assertIn('Placement', server['fault']['message'])

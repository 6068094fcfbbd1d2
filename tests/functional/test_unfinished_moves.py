# SPDX-License-Identifier: Apache-2.0
"""Moves that Nova does not finish in Placement, which does not answer.

The migration keeps the allocations that are the server's, or nobody's.
"""

import contextlib

import fixtures
from nova import exception
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.compute.state import placement
from tests.functional import cloud
from tests.functional import withheld


class UnfinishedMoveCase(withheld.WithheldCase):

    def setUp(self):
        super().setUp()
        self.clock = self.useFixture(cloud.AuditClock())
        self.start_compute('compute1')

    @contextlib.contextmanager
    def silent_placement(self):
        """Placement tells nobody what consumers have."""
        with (fixtures.MockPatchObject(
                self.computes['compute1'].manager.reportclient,
                'get_allocations_for_consumer', return_value={}),
              fixtures.MockPatchObject(
                  placement.PlacementClient, 'allocations_of_consumer',
                  return_value=None)):
            yield

    def audit(self):
        for _audit in range(3):
            self.clock.skip_interval()
            self.rounds(1)

    def consumers(self, host='compute1'):
        """Return the consumers of all devices."""
        return {consumer for provider in self.providers(host).values()
                for consumer in self._get_allocations_by_provider_uuid(
                    provider['uuid'])}


class RevertTest(UnfinishedMoveCase):
    """The server goes on before the audit, and moves again."""

    DEVICE_SPEC = (cloud.FOUR_SPEC,)

    def setUp(self):
        super().setUp()
        self.server = self.boot(self.one)
        self.had = self.hostdevs(self.server)
        self._resize_server(self.server, self.flavor('one'))
        with self.silent_placement():
            self.revert(self.server)
        self.assertKeeps(self.server, self.had)

    def assertSettles(self, had):
        allocated = {f'compute1_accel_{address}': {cloud.GPU: 1}
                     for address in had}
        self.audit()
        self.assertKeeps(self.server, had)
        self.assertEqual(allocated, self.allocated(self.server))
        self.assertEqual({self.server['id']}, self.consumers())
        self.reboot(self.server)
        self.assertKeeps(self.server, had)

    def test_audit(self):
        self.assertSettles(self.had)

    def test_rebuild(self):
        self._rebuild_server(self.server, cloud.IMAGE)
        self.assertSettles(self.had)

    def test_suspended_server(self):
        self._suspend_server(self.server)
        self.audit()
        self._resume_server(self.server)
        self.assertSettles(self.had)

    def test_confirmed_resize(self):
        self._resize_server(self.server, self.flavor('one'))
        has = self.hostdevs(self.server)
        self._confirm_resize(self.server)
        self.assertSettles(has)

    def test_reverted_resize(self):
        self._resize_server(self.server, self.flavor('one'))
        self._revert_resize(self.server)
        self.assertSettles(self.had)

    def test_unshelved_server(self):
        self.flags(shelved_offload_time=0)
        self._shelve_server(self.server, expected_state='SHELVED_OFFLOADED')
        self._unshelve_server(self.server)
        self.assertSettles(self.hostdevs(self.server))


class ConfirmTest(UnfinishedMoveCase):

    def test_devices_are_free_after_the_audit(self):
        server = self.boot(self.one)
        self._resize_server(server, self.flavor('one'))
        with fixtures.MockPatchObject(
                self.computes['compute1'].manager.reportclient,
                'delete_allocation_for_instance',
                side_effect=exception.AllocationDeleteFailed(
                    consumer_uuid='x', error='503')):
            self.attempt(self._confirm_resize, server)
        self.audit()
        self.assertEqual({server['id']}, self.consumers())
        self.assertEqual('ACTIVE', self.outcome(self.one))


class RollbackTest(UnfinishedMoveCase):

    DEVICE_SPEC = (cloud.migratable(cloud.PAIR_SPEC),)

    def test_devices_of_the_destination_are_free_after_the_audit(self):
        self.start_compute('compute2')
        server = self.boot(self.one, host='compute1')
        had = self.hostdevs(server)

        def fail(_domain, _xml):
            raise fakelibvirt.make_libvirtError(fakelibvirt.libvirtError,
                                                'no')

        self.migration.on_move = fail
        with fixtures.MockPatchObject(
                self.computes['compute1'].manager.reportclient,
                'get_allocations_for_consumer', return_value={}):
            self.attempt_live_migration(server)
        self.set_active(server)
        self.audit()
        self.reboot(server)
        self.assertKeeps(server, had)
        self.assertEqual(set(), self.consumers('compute2'))

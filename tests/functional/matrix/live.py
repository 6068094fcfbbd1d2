# SPDX-License-Identifier: Apache-2.0
"""A server that goes elsewhere while it runs."""

import contextlib

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client

from tests.functional.matrix import base

#: Steps of Nova's driver, in the order of a migration.
STEPS = ('check_can_live_migrate_destination', 'check_can_live_migrate_source',
         'pre_live_migration')


class LiveMigration(base.Matrix):

    def movable(self):
        """Say of all devices that their drivers can do it."""
        self.flags(device_spec=self.kind.entries(live_migratable='yes'),
                   group='nova_accel')
        self.restart()

    def live_migrate(self, server, status='completed'):
        # The harness has the API wait for the conductor's answer.
        with contextlib.suppress(client.OpenStackApiException):
            self.api.post_server_action(server['id'], {'os-migrateLive': {
                'host': 'compute2', 'block_migration': 'auto'}})
        self._wait_for_migration_status(server, [status])

    @base.operation('Live migrate')
    def test_live_migrate(self):
        self.movable()
        server = self.server()
        # It cannot have there what it has here.
        other = self.server('small', 'compute2')
        self.live_migrate(server)
        self.assertHas(server, 'small', 'compute2')
        self.assertHas(other, 'small', 'compute2')
        self.assertFree('compute1')
        self.assertTaken('compute2', 'small')
        self._delete_server(server)
        self._delete_server(other)
        self.assertFree('compute2')

    def stays(self, server, status):
        was = self.taken('compute1')
        self.live_migrate(server, status)
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None})
        self.assertHas(server, 'small', 'compute1')
        self.assertEqual(was, self.taken('compute1'))
        self.assertFree('compute2')

    @base.operation('Live migration that fails')
    def test_live_migration_that_fails(self):
        self.movable()
        server = self.server()
        for step in STEPS:
            with fixtures.MockPatch(
                    f'nova.virt.libvirt.LibvirtDriver.{step}',
                    side_effect=RuntimeError('no')):
                self.stays(server, 'error')

        def fail(_domain, _xml):
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError, 'no',
                error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR)

        self.migration.on_move = fail
        self.stays(server, 'error')

    @base.operation('Live migrate what is not live_migratable',
                    outcome='refused')
    def test_live_migration_that_is_refused(self):
        server = self.server()
        self.stays(server, 'error')
        self.assertEqual('ACTIVE', self.api.get_server(server['id'])['status'])
        self.assertIn('is live_migratable', self.stdlog.logger.output)

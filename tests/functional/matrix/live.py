# SPDX-License-Identifier: Apache-2.0
"""Live migration of servers."""

import contextlib

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client

from tests.functional.matrix import base

#: Methods of Nova's driver, in the order in which a migration calls them.
STEPS = ('check_can_live_migrate_destination', 'check_can_live_migrate_source',
         'pre_live_migration')

#: Statuses of a migration that failed.
OVER = ('error', 'failed', 'cancelled')


class LiveMigration(base.Matrix):

    def movable(self):
        """Declare all devices live migratable."""
        self.flags(device_spec=self.kind.entries(live_migratable='yes'),
                   group='nova_accel')
        self.restart()

    def live_migrate(self, server, *ends):
        before = self.migrations(server)
        # In the harness the API call waits for the conductor, and fails if
        # the migration does.
        with contextlib.suppress(client.OpenStackApiException):
            self.api.post_server_action(server['id'], {'os-migrateLive': {
                'host': 'compute2', 'block_migration': 'auto'}})
        self._wait_for_assert(lambda: self.assertIn(
            self.latest(server, before), ends))

    def latest(self, server, before):
        [status] = [status for number, status
                    in self.migrations(server).items()
                    if number not in before]
        return status

    def migrations(self, server):
        """Return the statuses of a server's migrations, by id."""
        return {migration['id']: migration['status'] for migration
                in self.api.api_get('/os-migrations?instance_uuid='
                                    + server['id']).body['migrations']}

    @base.operation('Live migrate')
    def test_live_migrate(self):
        self.movable()
        server = self.server()
        # This server has the devices that the migration would choose first.
        other = self.server('small', 'compute2')
        self.live_migrate(server, 'completed')
        self.assertHas(server, 'small', 'compute2')
        self.assertHas(other, 'small', 'compute2')
        self.assertFree('compute1')
        self.assertTaken('compute2', 'small')
        self._delete_server(server)
        self._delete_server(other)
        self.assertFree('compute2')

    def stays(self, server):
        was = self.taken('compute1')
        self.live_migrate(server, *OVER)
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None})
        self.assertHas(server, 'small', 'compute1')
        self.assertEqual(was, self.taken('compute1'))
        self.assertFree('compute2')
        # In some cases Nova sets ERROR although the guest runs as before.
        self.api.post_server_action(
            server['id'], {'os-resetState': {'state': 'active'}})

    @base.operation('Live migration that fails or is aborted')
    def test_live_migration_that_fails(self):
        self.movable()
        server = self.server()
        for step in STEPS:
            with fixtures.MockPatch(
                    f'nova.virt.libvirt.LibvirtDriver.{step}',
                    side_effect=RuntimeError('no')):
                self.stays(server)

        for happens in (self.break_off, self.abort):
            self.migration.on_move = happens
            self.stays(server)

    @staticmethod
    def break_off(_domain, _xml):
        raise fakelibvirt.make_libvirtError(
            fakelibvirt.libvirtError, 'no',
            error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR)

    def abort(self, domain, xml):
        """Abort the migration while the guest moves, as a tenant does."""
        here = f'/servers/{domain.UUIDString()}/migrations'
        [migration] = self.api.api_get(here).body['migrations']
        self.api.api_delete(f'{here}/{migration["id"]}')
        domain.fail_job = lambda: setattr(
            domain, '_job_type', fakelibvirt.VIR_DOMAIN_JOB_CANCELLED)
        self.break_off(domain, xml)

    @base.operation('Live migrate what is not live_migratable',
                    outcome='refused')
    def test_live_migration_that_is_refused(self):
        server = self.server()
        self.stays(server)
        self.assertIn('is live_migratable', self.stdlog.logger.output)

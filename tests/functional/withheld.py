# SPDX-License-Identifier: Apache-2.0
"""Devices that are withheld, and what becomes of servers without a domain."""

import contextlib

import fixtures
from keystoneauth1 import exceptions
from nova.scheduler.client import report
from testtools import content

from tests.functional import cloud
from tests.functional import hypervisor


class Keeping:
    """Mixin for :class:`cloud.Cloud`: servers that lose their domain."""

    def rounds(self, number=2):
        for _round in range(number):
            self._run_periodics()

    def undefine(self, server):
        """Undefine a domain, as a crash of nova-compute can leave it."""
        domain = self.domain(server)
        domain.destroy()
        domain.undefine()
        self.restart_compute_service('compute1')

    # Actions of the tenant

    def attempt(self, action, *args, **more):
        """Perform an action, which may fail."""
        try:
            action(*args, **more)
        except Exception as error:
            self.addDetail(action.__name__,
                           content.text_content(repr(error)))

    def attempt_live_migration(self, server):
        """Live-migrate a server, which may fail."""
        def move():
            self.api.post_server_action(server['id'], {'os-migrateLive': {
                'host': None, 'block_migration': 'auto'}})
            self._wait_for_migration_status(
                server, ['completed', 'error', 'failed'])
            self._wait_for_server_parameter(
                server, {'OS-EXT-STS:task_state': None})
        self.attempt(move)

    def reboot(self, server):
        self.attempt(self._reboot_server, server, hard=True)

    def revert(self, server):
        self.attempt(self._revert_resize, server)

    def fail_rebuild(self, server, image=cloud.IMAGE):
        with hypervisor.without_guests():
            self.attempt(self._rebuild_server, server, image,
                         expected_state='ERROR')
        self.assertEqual({}, self.hostdevs(server))

    def outcome(self, flavor, host=None):
        """Boot a server, and return its status."""
        server = self.api.post_server({'server': self._build_server(
            image_uuid=cloud.IMAGE, flavor_id=flavor, networks='none',
            host=host)})

        def ended():
            status = self.api.get_server(server['id'])['status']
            self.assertIn(status, ('ACTIVE', 'ERROR'))
            return status

        return self._wait_for_assert(ended)

    def set_active(self, server):
        """Do what an administrator does about a server in ERROR."""
        self.api.post_server_action(server['id'],
                                    {'os-resetState': {'state': 'active'}})

    @contextlib.contextmanager
    def no_placement(self):
        """Placement does not answer Nova."""
        with contextlib.ExitStack() as patches:
            for method in ('get', 'put', 'post', 'delete'):
                patches.enter_context(fixtures.MockPatchObject(
                    report.SchedulerReportClient, method, side_effect=(
                        exceptions.ConnectFailure('Connection refused'))))
            yield

    def fail_definition(self, server):
        """Let a reboot fail to define; then libvirt does not answer."""
        with hypervisor.down_from_definition(
                self.computes['compute1'].driver._host):
            self.reboot(server)

    # Assertions

    def assertKeeps(self, server, had):
        now = self.api.get_server(server['id'])
        self.assertEqual(('ACTIVE', sorted(had)),
                         (now['status'], sorted(self.hostdevs(server))),
                         now.get('fault'))


class WithheldCase(Keeping, cloud.Cloud):
    """Base of tests with a pair of devices that an operator withholds."""

    DEVICE_SPEC = (cloud.PAIR_SPEC,)

    def setUp(self):
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.gpu_profile('one', numa='off')
        self.gpu_profile('two', count=2, numa='off')
        self.one, self.two = self.flavor('one'), self.flavor('two')
        self.plain = self.flavor()

    # Actions of the operator

    def change_entries(self, *entries):
        self.flags(device_spec=list(entries), group='nova_accel')
        self.rounds()

    def change_class(self):
        self.change_entries(cloud.PAIR_SPEC.replace('GPU_H100', 'GPU_NEW'))

    def remove_entries(self):
        self.change_entries()

    def drain_host(self, host='compute1'):
        self._drain(self.compute_rp_uuids[host])

    def drain_devices(self, host='compute1'):
        for provider in self.providers(host).values():
            self._drain(provider['uuid'])

    def _drain(self, provider):
        self.set_drained(True, provider)
        self.rounds()
        self.assertIn(cloud.DRAIN[0], self._get_provider_traits(
            next(iter(self.providers().values()))['uuid']))

    def free(self, address):
        """Free a used device after a wipe, and let nova-compute see it."""
        self.free_used(self.providers()[f'compute1_accel_{address}']['uuid'])
        self.computes['compute1'].manager.reset()
        self.rounds()

    def reserved(self, host='compute1'):
        """Return total and reserved units by address."""
        return {name.rpartition('_')[2]: (record['total'], record['reserved'])
                for name, provider in self.providers(host).items()
                for record in self._get_provider_inventory(
                    provider['uuid']).values()}

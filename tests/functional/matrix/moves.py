# SPDX-License-Identifier: Apache-2.0
"""Operations that move a server, and restarts of hosts and services."""

from nova_accel.host import operations
from tests.functional.matrix import base


class Moves(base.Matrix):

    def moves(self, before, after, action, between=lambda: None):
        """Perform a move and revert it, then repeat and confirm it."""
        server = self.server(before)
        was = self.taken('compute1')
        self.act(server, action, 'VERIFY_RESIZE')
        between()
        self.assertEqual(was, self.taken('compute1'))
        self.assertHas(server, after, 'compute2')
        self.settle(self._revert_resize, server)
        self.assertEqual(was, self.taken('compute1'))
        self.assertHas(server, before, 'compute1')
        self.assertFree('compute2')
        self.act(server, action, 'VERIFY_RESIZE')
        between()
        if before:
            self.assertTaken('compute1')
        self.settle(self._confirm_resize, server)
        self.assertHas(server, after, 'compute2')
        self.assertFree('compute1')

    def settle(self, action, server):
        """Confirm or revert a move, with the CONF.host of compute1."""
        # The computes share one process, so CONF.host is the last one that
        # started. The driver compares it with the host to clean up.
        self.flags(host='compute1')
        action(server)

    def resizes(self, before, after, **more):
        self.moves(before, after,
                   {'resize': {'flavorRef': self.flavors[after]}}, **more)

    @base.operation('Cold migrate, confirm or revert')
    def test_cold_migrate(self):
        self.moves('large', 'large', {'migrate': None})

    @base.operation('Resize to more, confirm or revert')
    def test_resize_to_more(self):
        self.resizes('small', 'large')

    @base.operation('Resize to fewer, confirm or revert')
    def test_resize_to_fewer(self):
        self.resizes('large', 'small')

    @base.operation('Resize to others, confirm or revert')
    def test_resize_to_others(self):
        self.resizes('small', 'other')

    @base.operation('Resize to none, confirm or revert')
    def test_resize_to_none(self):
        self.resizes('small', None)

    @base.operation('Resize from none, confirm or revert')
    def test_resize_from_none(self):
        self.resizes(None, 'small')

    @base.operation('Restart nova-compute before confirm or revert')
    def test_restart_between_the_halves(self):
        self.resizes('small', 'large', between=self.restart)

    @base.operation('Resize on the same host, confirm or revert')
    def test_resize_on_the_same_host(self):
        self.flags(allow_resize_to_same_host=True)
        self.api.put_service(self.computes['compute2'].service_ref.uuid,
                             {'status': 'disabled'})
        server = self.server()
        was = self.taken('compute1')
        action = {'resize': {'flavorRef': self.flavor('small')}}
        self.act(server, action, 'VERIFY_RESIZE')
        self.assertHas(server, 'small', 'compute1')
        # Its old devices are kept for a revert.
        self.assertTaken('compute1', 'small')
        self.settle(self._revert_resize, server)
        self.assertEqual(was, self.taken('compute1'))
        self.act(server, action, 'VERIFY_RESIZE')
        self.settle(self._confirm_resize, server)
        self.assertHas(server, 'small', 'compute1')
        self._delete_server(server)
        self.assertFree('compute1')

    @base.operation('Shelve, unshelve')
    def test_shelve(self):
        self.flags(shelved_offload_time=-1)
        server = self.second_server()
        before = self.taken('compute1')
        self.act(server, {'shelve': None}, 'SHELVED')
        self.assertTaken('compute1')
        self.act(server, {'unshelve': None})
        self.assertEqual(before, self.taken('compute1'))

    @base.operation('Shelve offload, unshelve on this or another host')
    def test_shelve_offload(self):
        server = self.server()
        for host in base.HOSTS:
            was = self.host_of(server)
            self.act(server, {'shelve': None}, 'SHELVED_OFFLOADED')
            self.assertFree(was)
            rival = self.server('large', host)
            self.act(server, {'unshelve': {'host': host}},
                     'SHELVED_OFFLOADED')
            self._delete_server(rival)
            self.act(server, {'unshelve': {'host': host}})
            self.assertHas(server, 'small', host)

    @base.operation('Evacuate')
    def test_evacuate(self):
        server = self.server()
        self.down('compute1')
        self.act(server, {'evacuate': {}}, 'SHUTOFF')
        self.up('compute1')
        self.assertHas(server, 'small', 'compute2')
        self.assertFree('compute1')
        self.assertTaken('compute2')
        self.act(server, {'os-start': None})
        self.assertHas(server, 'small', 'compute2')

    @base.operation('Restart nova-compute')
    def test_restart(self):
        server = self.server()
        before = self.taken('compute1')
        self.restart()
        self.assertEqual(before, self.taken('compute1'))
        self.assertTaken('compute1')
        self._delete_server(server)
        self.assertFree('compute1')

    def host_boots(self, host):
        """Power a host off and on."""
        for domain in self.connections[host].listAllDomains(base.EVERY):
            domain.destroy()
        for mdev in self.mdevs(host):
            operations.Operations(
                f'{self.machines[host]}/sys').remove_mdev(mdev)
        self.restart_compute_service(host)

    @base.operation('Host reboot',
                    'Host reboot with resume_guests_state_on_host_boot')
    def test_host_reboot(self):
        server = self.second_server()
        before = self.taken('compute1')
        self.host_boots('compute1')
        # A periodic task would stop the server, but in the harness a
        # nova-compute cannot call itself.
        self.act(server, {'os-stop': None}, 'SHUTOFF')
        self.assertTaken('compute1')
        self.act(server, {'os-start': None})
        self.assertEqual(before, self.taken('compute1'))
        self.flags(resume_guests_state_on_host_boot=True)
        self.host_boots('compute1')
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertTrue(self.domain(server).isActive())
        self.assertEqual(before, self.taken('compute1'))

# SPDX-License-Identifier: Apache-2.0
"""Resize a server to another profile."""

from tests.functional import cloud


class ResizeTest(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')
        self.start_compute('compute2')
        self.gpu_profile('one')
        self.gpu_profile('two', count=2)
        self.plain = self.flavor()
        self.one = self.flavor('one')
        self.two = self.flavor('two')

    def settle(self, server, action):
        """Confirm or revert a resize, with the CONF.host of compute1."""
        # The computes share CONF.host. The driver compares it with the host
        # to clean up.
        self.flags(host='compute1')
        action(server)

    def resize(self, before, after):
        server = self.boot(before, host='compute1')
        self._resize_server(server, after)
        self.assertEqual(
            'compute2', self.api.get_server(server['id'])[
                'OS-EXT-SRV-ATTR:host'])
        return server

    def test_resize_to_more_is_confirmed(self):
        server = self.resize(self.one, self.two)
        self.assertEqual(1, len(self.hostdevs(server, 'compute1')))
        self.assertEqual(2, len(self.hostdevs(server, 'compute2')))
        self.settle(server, self._confirm_resize)
        self.assertEqual({}, self.held('compute1'))
        self.assertEqual(2, len(self.held('compute2')))
        self.assertEqual(
            {f'compute2_accel_{address}': {cloud.GPU: 1}
             for address in self.held('compute2')}, self.allocated(server))

    def test_resize_to_more_is_reverted(self):
        server = self.resize(self.one, self.two)
        before = self.held('compute1')
        self.settle(server, self._revert_resize)
        self.assertEqual(before, self.held('compute1'))
        self.assertEqual({}, self.held('compute2'))
        self.assertEqual(
            {f'compute1_accel_{address}': {cloud.GPU: 1}
             for address in before}, self.allocated(server))

    def test_resize_to_none(self):
        server = self.resize(self.two, self.plain)
        self.settle(server, self._confirm_resize)
        self.assertEqual({}, self.held('compute1'))
        self.assertEqual({}, self.held('compute2'))
        self.assertEqual({}, self.allocated(server))

    def test_resize_from_none(self):
        server = self.resize(self.plain, self.two)
        self.settle(server, self._confirm_resize)
        self.assertEqual(2, len(self.held('compute2')))

    def test_cold_migration_keeps_the_allocation(self):
        server = self.boot(self.two, host='compute1')
        self._migrate_server(server)
        self.settle(server, self._confirm_resize)
        self.assertEqual({}, self.held('compute1'))
        self.assertEqual(2, len(self.held('compute2')))


class ResizeOnOneHostTest(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start_compute('compute1')
        self.gpu_profile('one')
        self.gpu_profile('two', count=2)
        self.server = self.boot(self.flavor('one'))
        self.before = self.held()
        self._resize_server(self.server, self.flavor('two'))

    def test_old_and_new_devices_differ(self):
        self.assertEqual(2, len(self.held()))
        self.assertFalse(set(self.before) & set(self.held()))

    def test_confirm(self):
        after = self.held()
        self._confirm_resize(self.server)
        self.assertEqual(after, self.held())

    def test_revert(self):
        self._revert_resize(self.server)
        self.assertEqual(self.before, self.held())

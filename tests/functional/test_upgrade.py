# SPDX-License-Identifier: Apache-2.0
"""Upgrade from a version without a resource provider for each class."""

from tests.functional import cloud

CLASS = f'accel_{cloud.GPU}'


class UpgradeTest(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.gpu_profile('gpus', 2, numa='off')
        self.gpus = self.flavor('gpus')
        self.start_compute('compute1')
        self.server = self.boot(self.gpus)
        self.before = self.hostdevs(self.server)
        self._go_back()
        self.restart_compute_service('compute1')
        self._run_periodics()

    def _go_back(self):
        """Restore the old providers: each device has units of the class."""
        tree = self._providers('compute1')
        allocated = self._get_allocations_by_server_uuid(self.server['id'])
        others = {
            uuid: {'resources': allocation['resources']} for uuid, allocation
            in allocated.items() if uuid not in {
                provider['uuid'] for provider in tree.values()}}
        self._allocate(others)
        counting = tree.pop(f'compute1_{CLASS}')['uuid']
        self.assertEqual(204, self.placement.delete(
            f'/resource_providers/{counting}').status)
        devices = {provider['uuid'] for provider in tree.values()}
        for uuid in devices:
            url = f'/resource_providers/{uuid}'
            self._put(f'{url}/inventories', {
                'inventories': {cloud.GPU: {'total': 1}},
                'resource_provider_generation':
                self.placement.get(url).body['generation']})
        self._allocate({**others, **{
            uuid: {'resources': {cloud.GPU: 1}}
            for uuid in devices & set(allocated)}})

    def _allocate(self, allocations):
        url = f'/allocations/{self.server["id"]}'
        there = self.placement.get(url, version='1.28').body
        self._put(url, {**there, 'allocations': allocations})

    def _put(self, url, body):
        answer = self.placement.put(url, body, version='1.28')
        self.assertIn(answer.status, (200, 204), answer.body)

    def free(self):
        """Return the units that are not reserved, by provider name."""
        return {
            name.removeprefix('compute1_'): sum(
                record['total'] - record['reserved'] for record in
                self._get_provider_inventory(provider['uuid']).values())
            for name, provider in self._providers('compute1').items()}

    def test_server_keeps_its_devices(self):
        held = {f'accel_{address}': 0 for address in self.before}
        self.assertEqual({**dict.fromkeys(self.free(), 1), CLASS: 2, **held},
                         self.free())
        self._reboot_server(self.server, hard=True)
        self._rebuild_server(self.server, cloud.IMAGE)
        self.assertEqual(self.before, self.hostdevs(self.server))
        other = self.boot(self.gpus)
        self.assertFalse(set(self.before) & set(self.hostdevs(other)))
        self.boot(self.gpus, state='ERROR')

    def test_providers_are_written_once(self):
        with self.placement_requests() as requests:
            self._run_periodics()
        self.assertEqual({'get'}, {method for method, _url in requests})

    def test_devices_are_counted_after_delete(self):
        self._delete_server(self.server)
        self._run_periodics()
        self.assertEqual({**dict.fromkeys(self.free(), 1), CLASS: 4},
                         self.free())
        for _time in range(2):
            self.boot(self.gpus)

    def test_server_migrates_and_reverts(self):
        self.start_compute('compute2')
        self._migrate_server(self.server)
        self._wait_for_state_change(self.server, 'VERIFY_RESIZE')
        self.assertEqual(2, len(self.hostdevs(self.server, 'compute2')))
        self._revert_resize(self.server)
        self.assertEqual(self.before, self.hostdevs(self.server))
        self._migrate_server(self.server)
        self._wait_for_state_change(self.server, 'VERIFY_RESIZE')
        self._confirm_resize(self.server)
        self._run_periodics()
        self.assertEqual({**dict.fromkeys(self.free(), 1), CLASS: 4},
                         self.free())

# SPDX-License-Identifier: Apache-2.0
"""Multi-create: several servers in one request."""

from tests.functional import cloud


class SiblingsTest(cloud.Cloud):

    def several(self, flavor, count, state='ACTIVE'):
        """Boot several servers in one request; return all servers."""
        self.api.post_server({'server': self._build_server(
            image_uuid=cloud.IMAGE, flavor_id=flavor, networks='none')
            | {'min_count': count, 'max_count': count}})
        servers = self.api.get_servers()
        for server in servers:
            self._wait_for_state_change(server, state)
        return servers

    def test_servers_that_fill_a_host(self):
        self.start_compute('compute1')
        servers = self.several(
            self.flavor(self.gpu_profile('two', 2).stem), 2)
        self.assertEqual(2, len(servers))
        self.assertEqual(4, len(self.held()))
        for server in servers:
            self.assertEqual(2, len(self.hostdevs(server)))
        # Neither server has an alternate host, and that is not reported.
        self.assertNotIn('has no valid host', self.stdlog.logger.output)

    def test_more_servers_than_fit(self):
        self.start_compute('compute1')
        self.several(self.flavor(self.gpu_profile('two', 2).stem), 3, 'ERROR')
        self.assertEqual({}, self.held())

    def test_over_two_hosts(self):
        self.start_compute('compute1')
        self.start_compute('compute2')
        self.several(self.flavor(self.gpu_profile('two', 2).stem), 4)
        self.assertEqual(4, len(self.held('compute1')))
        self.assertEqual(4, len(self.held('compute2')))

    def test_pools(self):
        """Servers fill two cards with different numbers of free units."""
        self.flags(sysfs_root=str(cloud.A100), device_spec=cloud.VF_SPECS,
                   group='nova_accel')
        self.start_compute('compute1')
        totals = {
            name: self._get_provider_inventory(
                provider['uuid'])['CUSTOM_VF']['total']
            for name, provider in self.providers().items()}
        self.assertEqual([2, 4], sorted(totals.values()))
        self.write_profile('vf', groups=[{'resources': {'CUSTOM_VF': 1}}])
        vf = self.flavor('vf')
        self.boot(vf)
        self._run_periodics()
        self.several(vf, 5)
        self.assertEqual(6, len(self.held()))

# SPDX-License-Identifier: Apache-2.0
"""The choice of a host, with Nova's weighers and AcceleratorWeigher."""

from tests.functional import cloud


class _Weighed(cloud.Cloud):

    def setUp(self):
        self.add_weigher()
        super().setUp()

    def gpus(self, count):
        """Create a flavor with a number of GPUs."""
        return self.flavor(self.gpu_profile(
            f'gpus-{count}', count, 'preferred').stem)

    def host(self, flavor, **more):
        """Boot a server; return its host."""
        return self.boot(flavor, **more)['OS-EXT-SRV-ATTR:host']

    def aggregate(self, host, **metadata):
        made = self.api.post_aggregate({'aggregate': {'name': host}})
        self.api.add_host_to_aggregate(made['id'], host)
        self.api.post_aggregate_action(
            made['id'], {'set_metadata': {'metadata': metadata}})


class DevicesTest(_Weighed):
    """Two hosts with eight GPUs each."""

    DEVICE_SPEC = (cloud.GPU_SPEC,)

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')
        self.start_compute('compute2')

    def test_servers_are_packed(self):
        two = self.gpus(2)
        self.assertEqual(1, len({self.host(two) for _time in range(4)}))
        # All four servers are on one host, so the other still has eight GPUs.
        self.host(self.gpus(8))

    def test_servers_are_spread(self):
        self.flags(accel_pack_weight_multiplier=-10.,
                   accel_island_weight_multiplier=0., group='nova_accel')
        two = self.gpus(2)
        self.assertEqual(['compute1', 'compute2'],
                         sorted(self.host(two) for _time in range(2)))

    def test_tightest_host_is_chosen(self):
        self.host(self.gpus(1), host='compute1')
        self.host(self.gpus(3), host='compute2')
        self.assertEqual('compute2', self.host(self.gpus(4)))
        self.assertEqual('compute2', self.host(self.gpus(1)))
        self.assertEqual('compute1', self.host(self.gpus(1)))

    def test_aggregate_has_its_own_multipliers(self):
        for host in ('compute1', 'compute2'):
            self.aggregate(host, accel_pack_weight_multiplier='-10',
                           accel_island_weight_multiplier='0')
        two = self.gpus(2)
        self.assertEqual(['compute1', 'compute2'],
                         sorted(self.host(two) for _time in range(2)))


class PlainTest(_Weighed):
    """One host without devices, and one host with devices."""

    def setUp(self):
        super().setUp()
        # All hosts share one configuration here. compute1 must not read its
        # entries again.
        self.flags(device_spec=[], group='nova_accel')
        self.start_compute('compute1')
        self.flags(device_spec=[cloud.GPU_SPEC], group='nova_accel')
        self.start_compute('compute2')
        self.assertEqual({}, self.providers('compute1'))

    def test_servers_without_devices_avoid_gpu_hosts(self):
        flavor = self.flavor()
        self.assertEqual({'compute1'},
                         {self.host(flavor) for _time in range(3)})

    def test_servers_without_devices_use_gpu_hosts_as_a_last_resort(self):
        self.api.put_service(self.api.get_services(
            host='compute1', binary='nova-compute')[0]['id'],
            {'status': 'disabled'})
        self.assertEqual('compute2', self.host(self.flavor()))

    def test_negative_multiplier_prefers_gpu_hosts(self):
        self.flags(accel_avoid_weight_multiplier=-10., group='nova_accel')
        self.assertEqual('compute2', self.host(self.flavor()))

# SPDX-License-Identifier: Apache-2.0
"""Several vGPUs of one GPU instance, in MIG mode.

The card is a quarter of an RTX PRO 6000, to save time: four GPU instances of
6 GB each. tests/unit/host/test_vgpu.py has a whole one.
"""

import functools
import json
import pathlib

import fixtures

from tests import nvidia
from tests.functional import cloud

VFS = 12
#: The number of vGPUs of each type that fit, by size in GB.
SIZES = {2: 12, 3: 8, 6: 4}


NUMBERS = {2: 1546, 3: 1549, 6: 1553}


def resource_class(size):
    return f'CUSTOM_VGPU_{size}Q'


def spec(size, **more):
    number = NUMBERS[size]
    return json.dumps({
        'vendor_id': '10de', 'product_id': '2bb5',
        'vgpu_type': f'{number} : {nvidia.BLACKWELL[number]}',
        'resource_class': resource_class(size), **more})


class GpuInstancesTest(cloud.Cloud):

    DEVICE_SPEC = [spec(size, max_instances=number, gpu_instance='1g.6gb')
                   for size, number in SIZES.items()]

    def setUp(self):
        super().setUp()
        self.recording = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'card.json')
        self.recording.write_text(nvidia.blackwell(VFS).dumps())
        self.flavors = {}
        for size in SIZES:
            self.write_profile(f'{size}q', groups=[
                {'resources': {resource_class(size): 1}}])
            self.flavors[size] = self.flavor(f'{size}q')
        self.drivers = {'compute1': self.start_machine('compute1')}

    def start_machine(self, host):
        driver = self.useFixture(nvidia.VgpuManager(
            self.directory_host(self.recording), instances={'1-6': 4}))
        self.start_compute(host)
        return driver

    def totals(self, host='compute1'):
        """Return the units that are not reserved, by size."""
        found = {}
        for provider in self.providers(host).values():
            for name, record in self._get_provider_inventory(
                    provider['uuid']).items():
                size = int(name.rpartition('_')[2].rstrip('Q'))
                found[size] = record['total'] - record['reserved']
        return found

    def instances(self):
        """Return the number of vGPUs of each GPU instance in use."""
        return [len(vgpus) for _id, vgpus in sorted(
            self.drivers['compute1'].instances_in_use().items())]

    def check_totals(self, expected):
        self._run_periodics()
        self.assertEqual(expected, self.totals())
        possible = self.drivers['compute1'].possible('0001:c8:00.2')
        self.assertEqual(expected, {
            size: possible[number] for size, number in NUMBERS.items()
            if possible[number]})
        self.assertEqual([], self.disagreements())

    def test_several_vgpus_of_each_gpu_instance(self):
        self.check_totals(SIZES)
        servers = [self.boot(self.flavors[2]) for _number in range(6)]
        self.assertEqual([3, 3], self.instances())
        self.check_totals({2: 12, 3: 4, 6: 2})
        self.restart_compute_service('compute1')
        self.check_totals({2: 12, 3: 4, 6: 2})
        servers += [self.boot(self.flavors[2]) for _number in range(6)]
        self.assertEqual([3, 3, 3, 3], self.instances())
        self.check_totals({2: 12})
        for size in SIZES:
            self.boot(self.flavors[size], state='ERROR')
        for server in servers[3:6]:
            self._delete_server(server)
        self.check_totals({2: 12, 3: 2, 6: 1})
        self.boot(self.flavors[6])
        self.assertEqual([3, 1, 3, 3], self.instances())
        self.check_totals({2: 9, 6: 1})
        self.boot(self.flavors[6], state='ERROR')
        self.boot(self.flavors[2], state='ERROR')
        self._delete_server(servers[0])
        self.check_totals({2: 9, 6: 1})
        self.boot(self.flavors[2])

    def test_server_that_loses_the_last_place_gets_another_host(self):
        """All VFs list a type, although only one more vGPU fits."""
        self.flags(device_spec=[spec(6)], group='nova_accel')
        self.restart_compute_service('compute1')
        self.drivers['compute2'] = self.start_machine('compute2')
        for host, driver in self.drivers.items():
            for _number in range(3):
                self.boot(self.flavors[6], host=host)
            self.assertEqual({6: VFS}, self.totals(host))
            driver.on_write = functools.partial(self.take_last_place, host)
        log = self.useFixture(fixtures.FakeLogger(level='WARNING'))
        server = self.boot(self.flavors[6])
        self.assertIn('the driver says Input/output error', log.output)
        self.assertNotEqual(self.full, self.host_of(server))
        for host, driver in self.drivers.items():
            self.assertEqual(4, len(driver.current()))
            self.assertEqual(4, len(self.held(host)))
        [promise] = self.allocated(server)
        self.assertTrue(promise.startswith(self.host_of(server)))
        self._run_periodics()
        for host in self.drivers:
            self.assertEqual({6: 4}, self.totals(host))
        self.boot(self.flavors[6], state='ERROR')

    def take_last_place(self, host, _vf, _number):
        """Boot a server before the driver handles the write for another."""
        for driver in self.drivers.values():
            driver.on_write = lambda _vf, _number: None
        self.full = host
        self.boot(self.flavors[6], host=host)

    def host_of(self, server):
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']

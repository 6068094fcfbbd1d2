# SPDX-License-Identifier: Apache-2.0
"""The fault of a server without a valid host, with the reason."""

from nova import context
from nova import objects
from nova.tests.functional.api import client

from tests.functional import cloud

NOVAS_OWN = 'There are not enough hosts available.'


class NoValidHostTest(cloud.Cloud):
    """A host with two GPUs on each of its two NUMA nodes."""

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')

    def fault(self, flavor, **more):
        """Boot a server that gets no host; return the reason in its fault."""
        server = self.boot(flavor, state='ERROR', **more)
        return self.reason_of(server)

    def reason_of(self, server):
        message = self.api.get_server(server['id'])['fault']['message']
        self.assertTrue(message.startswith('No valid host was found. '),
                        message)
        return message.removeprefix('No valid host was found. ')

    def gpus(self, count, **more):
        self.gpu_profile(f'gpu{count}', count, **more)
        return self.flavor(f'gpu{count}')

    def log(self, text):
        return [line for line in self.stdlog.logger.output.splitlines()
                if text in line]

    def test_too_few_devices_on_one_numa_node(self):
        self.assertEqual(
            'No host has 4 free CUSTOM_GPU_H100 on one NUMA node; of the '
            'hosts that have them, the most on one is 2',
            self.fault(self.gpus(4)))
        [line] = self.log('has no valid host for gpu4')
        self.assertIn('compute1', line)

    def test_largest_number_is_that_of_the_best_host(self):
        self.flags(device_spec=[cloud.PAIR_SPEC[:-3] + '3"}}'],
                   group='nova_accel')
        self.start_compute('compute2')
        self.assertEqual(
            'No host has 3 free CUSTOM_GPU_H100 on one PCIe switch; of the '
            'hosts that have them, the most on one is 2', self.fault(self.gpus(
                3, numa='off', affinity=[{'same': 'pcie_switch'}])))

    def test_devices_that_other_servers_hold_are_not_counted(self):
        self.boot(self.gpus(1))
        self.assertIn('the most on one is 2', self.fault(self.gpus(3)))
        self.boot(self.gpus(1))
        self.boot(self.gpus(1))
        self.assertEqual('No host has 3 free CUSTOM_GPU_H100; the most is 1',
                         self.fault(self.gpus(3)))

    def test_more_than_placement_finds(self):
        self.assertEqual('No host has 5 free CUSTOM_GPU_H100; the most is 4',
                         self.fault(self.gpus(5)))
        [line] = self.log('has no valid host for gpu5')
        self.assertIn(f'{self.compute_rp_uuids["compute1"]}: 4 {cloud.GPU}',
                      line)

    def test_class_that_no_host_has(self):
        self.write_profile('none', groups=[
            {'resources': {'CUSTOM_NONE': 2}}])
        self.assertEqual('No host was found with 2 CUSTOM_NONE',
                         self.fault(self.flavor('none')))

    def test_host_with_the_devices_lacks_memory(self):
        self.gpu_profile('gpu')
        self.assertEqual(
            'Hosts with the devices lack something else that is asked for, '
            'such as vCPUs, memory or disk',
            self.fault(self.flavor('gpu', memory_mb=1 << 30)))

    def test_only_allowed_hosts_are_considered(self):
        self.start_compute('compute2')
        self.boot(self.gpus(4, numa='off'), host='compute1')
        self.assertEqual(
            'No host has 4 free CUSTOM_GPU_H100; the most is 0',
            self.fault(self.flavor('gpu4'), host='compute1'))

    def test_servers_of_one_request(self):
        servers = self.boot_many(self.gpus(2), 3)
        self.assertEqual({
            '2 of 3 servers would fit. For the next one: No host has 2 free '
            'CUSTOM_GPU_H100; the most is 0'},
            {self.reason_of(server) for server in servers})
        self.assertEqual(1, len(self.log('has no valid host for gpu2')))

    def boot_many(self, flavor, count):
        body = self._build_server(image_uuid=cloud.IMAGE, flavor_id=flavor,
                                  networks='none')
        body.update(min_count=count, max_count=count)
        self.api.post_server({'server': body})
        servers = self.api.get_servers()
        self.assertEqual(count, len(servers))
        return [self._wait_for_state_change(server, 'ERROR')
                for server in servers]

    def test_resize(self):
        server = self.boot(self.gpus(1))
        self.assertRaises(client.OpenStackApiException, self._resize_server,
                          server, self.gpus(4))
        # The API shows no fault of a server that stays ACTIVE.
        self.assertIn(
            'the most is 3',
            objects.InstanceFault.get_latest_for_instance(
                context.get_admin_context(), server['id']).message)

    def test_explain_no_valid_host_is_off(self):
        self.flags(explain_no_valid_host=False, group='nova_accel')
        self.assertEqual(NOVAS_OWN, self.fault(self.gpus(4)))
        self.assertEqual('', self.fault(self.gpus(5)).strip())
        self.assertTrue(self.log('has no valid host for gpu4'))

    def test_server_without_devices_gets_novas_own_reason(self):
        self.assertEqual('', self.fault(self.flavor(
            memory_mb=1 << 30)).strip())

    def test_fault_names_no_host_and_no_device(self):
        text = self.fault(self.gpus(4)) + self.fault(self.gpus(5))
        for name in 'compute1', *self.compute_rp_uuids.values(), '0000:':
            self.assertNotIn(name, text)

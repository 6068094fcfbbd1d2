# SPDX-License-Identifier: Apache-2.0
"""NUMA affinity of devices to each other and to the guest."""

import time
from unittest import mock

from nova import context
from nova import objects
from nova.compute import rpcapi
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import cloud

NODES = {'43': 0, '44': 0, '48': 0, '49': 0, '83': 1, '84': 1, '88': 1,
         '89': 1}
SWITCHES = ({'43', '44'}, {'48', '49'}, {'83', '84'}, {'88', '89'})


class AffinityTest(cloud.Cloud):

    DEVICE_SPEC = (cloud.GPU_SPEC,)

    def setUp(self):
        super().setUp()
        self.start_compute('compute1', host_info=fakelibvirt.HostInfo(
            cpu_nodes=2, cpu_sockets=1, cpu_cores=4, cpu_threads=1))

    def buses(self, server):
        return {address[5:7] for address in self.hostdevs(server)}

    def nodes(self, server):
        return {NODES[bus] for bus in self.buses(server)}

    def test_required_affinity(self):
        self.gpu_profile('two', count=2, numa='required')
        flavor = self.flavor('two')
        servers = [self.boot(flavor) for _time in range(4)]
        self.assertEqual([1] * 4, [len(self.nodes(server))
                                   for server in servers])

    def test_closest_devices_are_chosen_first(self):
        self.gpu_profile('two', count=2, numa='preferred')
        flavor = self.flavor('two')
        for _time in range(4):
            self.assertIn(self.buses(self.boot(flavor)), SWITCHES)

    def fill(self):
        """Boot servers that leave one free device on each node."""
        self.gpu_profile('three', count=3, numa='required')
        flavor = self.flavor('three')
        return [self.boot(flavor) for _time in range(2)]

    def test_required_affinity_that_no_host_has(self):
        self.fill()
        self.gpu_profile('two', count=2, numa='required')
        self.boot(self.flavor('two'), state='ERROR')
        self.assertIn(
            'has no valid host for two: same numa_node: 1 host, 1 candidate '
            '(compute1: same numa_node of ACCEL0-1, guest (required): at most '
            '1 fits on one NUMA node)', self.stdlog.logger.output)

    def test_preferred_affinity_accepts_other_nodes(self):
        self.fill()
        self.gpu_profile('two', count=2, numa='preferred')
        self.assertEqual(
            {0, 1}, self.nodes(self.boot(self.flavor('two'))))

    def test_affinity_off(self):
        self.fill()
        self.gpu_profile('two', count=2, numa='off')
        server = self.boot(self.flavor('two'))
        self.assertEqual(2, len(self.hostdevs(server)))
        self.assertFalse([key for key in server['flavor']['extra_specs']
                          if key.startswith('nova_accel:numa')])

    def test_driver_checks_affinity_on_a_forced_host(self):
        self.fill()
        self.gpu_profile('two', count=2, numa='required')
        server = self.boot(self.flavor('two'), state='ERROR',
                           az='nova:compute1')
        self.assertIn('at most 1 fits on one NUMA node',
                      server['fault']['message'])
        self.assertEqual(6, len(self.held()))

    def guest_nodes(self, server):
        topology = objects.InstanceNUMATopology.get_by_instance_uuid(
            context.get_admin_context(), server['id'])
        return {cell.id for cell in topology.cells}

    def test_devices_are_on_the_node_of_the_guest(self):
        self.gpu_profile('gpu', numa='required')
        flavor = self.flavor('gpu', extra_spec={'hw:numa_nodes': '1'})
        for _time in range(4):
            server = self.boot(flavor)
            self.assertEqual(self.guest_nodes(server), self.nodes(server))

    def test_guest_goes_where_devices_are(self):
        self.gpu_profile('gpu', numa='required')
        self.gpu_profile('near', numa='preferred')
        numa = {'hw:numa_nodes': '1'}
        # With this option Nova alone would put all guests on one node.
        self.flags(packing_host_numa_cells_allocation_strategy=True,
                   group='compute')
        flavors = [self.flavor(name, extra_spec=numa)
                   for name in ('gpu', 'near')]
        for flavor in flavors * 4:
            server = self.boot(flavor)
            self.assertEqual(self.guest_nodes(server), self.nodes(server))
        self.assertEqual(8, len(self.held()))

    def test_guest_goes_where_devices_are_left(self):
        """A guest on a forced host goes to the node with free devices.

        Nova skips the filters, so no devices are chosen yet.
        """
        self.flags(packing_host_numa_cells_allocation_strategy=True,
                   group='compute')
        numa = {'hw:numa_nodes': '1'}
        self.gpu_profile('four', count=4, numa='required')
        full = self.guest_nodes(self.boot(self.flavor('four',
                                                      extra_spec=numa)))
        self.gpu_profile('two', count=2, numa='required')
        for _time in range(2):
            server = self.boot(self.flavor('two', extra_spec=numa),
                               az='nova:compute1')
            self.assertEqual(self.guest_nodes(server), self.nodes(server))
            self.assertNotEqual(full, self.nodes(server))

    def test_guest_that_does_not_fit_where_devices_are(self):
        self.flags(cpu_dedicated_set='0-7', cpu_shared_set=None,
                   group='compute')
        self.restart_compute_service('compute1')
        numa = {'hw:numa_nodes': '1', 'hw:cpu_policy': 'dedicated'}
        self.gpu_profile('four', count=4, numa='required')
        self.gpu_profile('gpu', numa='required')
        [node] = self.nodes(self.boot(self.flavor('four', extra_spec=numa)))
        # This guest takes all CPUs of the other node, which has the free
        # devices.
        full = self.boot(self.flavor(extra_spec=numa, vcpu=4))
        self.assertEqual({1 - node}, self.guest_nodes(full))
        self.boot(self.flavor('gpu', extra_spec=numa), state='ERROR')
        self.assertIn('no unit is free there; the guest is on '
                      f'NUMA node {node}',
                      self.stdlog.logger.output)
        self.gpu_profile('near', numa='preferred')
        server = self.boot(self.flavor('near', extra_spec=numa))
        self.assertEqual({node}, self.guest_nodes(server))
        self.assertEqual({1 - node}, self.nodes(server))

    def test_guests_that_arrive_in_another_order(self):
        self.flags(device_spec=[
            f'{{"address": "0000:{bus}:00.0", '
            f'"resource_class": "{cloud.GPU}"}}' for bus in ('43', '83')],
            group='nova_accel')
        self.restart_compute_service('compute1')
        self.gpu_profile('gpu', numa='required')
        arriving = []
        api = rpcapi.ComputeAPI
        build = api.build_and_run_instance
        with mock.patch.object(
                api, 'build_and_run_instance',
                lambda *args, **kwargs: arriving.append((args, kwargs))):
            self.api.post_server({'server': self._build_server(
                image_uuid=cloud.IMAGE, networks='none', flavor_id=self.flavor(
                    'gpu', extra_spec={'hw:numa_nodes': '1'}))
                | {'min_count': 2, 'max_count': 2}})
            for _time in range(100):
                if len(arriving) < 2:
                    time.sleep(0.1)
        for args, kwargs in reversed(arriving):
            build(*args, **kwargs)
        for server in self.api.get_servers():
            server = self._wait_for_state_change(server, 'ACTIVE')
            self.assertEqual(self.guest_nodes(server), self.nodes(server))
        self.assertEqual(2, len(self.held()))

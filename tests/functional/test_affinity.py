# SPDX-License-Identifier: Apache-2.0
"""Devices together, and near the guest."""

from nova import context
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import cloud

NODES = {'43': 0, '44': 0, '48': 0, '49': 0, '83': 1, '84': 1, '88': 1,
         '89': 1}
SWITCHES = ({'43', '44'}, {'48', '49'}, {'83', '84'}, {'88', '89'})


class AffinityTest(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.start_compute('compute1', host_info=fakelibvirt.HostInfo(
            cpu_nodes=2, cpu_sockets=1, cpu_cores=4, cpu_threads=1))

    def buses(self, server):
        return {address[5:7] for address in self.hostdevs(server)}

    def nodes(self, server):
        return {NODES[bus] for bus in self.buses(server)}

    def test_required(self):
        self.gpu_profile('two', count=2, numa='required')
        flavor = self.flavor('two')
        servers = [self.boot(flavor) for _time in range(4)]
        self.assertEqual([1] * 4, [len(self.nodes(server))
                                   for server in servers])

    def test_closest_first(self):
        self.gpu_profile('two', count=2, numa='preferred')
        flavor = self.flavor('two')
        for _time in range(4):
            self.assertIn(self.buses(self.boot(flavor)), SWITCHES)

    def fill(self):
        """Leave one device free on each node."""
        self.gpu_profile('three', count=3, numa='required')
        flavor = self.flavor('three')
        return [self.boot(flavor) for _time in range(2)]

    def test_required_that_nobody_has(self):
        self.fill()
        self.gpu_profile('two', count=2, numa='required')
        self.boot(self.flavor('two'), state='ERROR')
        self.assertIn(
            'has no valid host for two: same numa_node: 1 hosts, 1 candidates '
            '(compute1: same numa_node of ACCEL0-1, guest (required): the '
            'most on one NUMA node is 1)', self.stdlog.logger.output)

    def test_preferred_takes_what_there_is(self):
        self.fill()
        self.gpu_profile('two', count=2, numa='preferred')
        self.assertEqual(
            {0, 1}, self.nodes(self.boot(self.flavor('two'))))

    def test_off(self):
        self.fill()
        self.gpu_profile('two', count=2, numa='off')
        server = self.boot(self.flavor('two'))
        self.assertEqual(2, len(self.hostdevs(server)))
        self.assertFalse([key for key in server['flavor']['extra_specs']
                          if key.startswith('nova_accel:numa')])

    def test_filters_skipped_driver_checks(self):
        self.fill()
        self.gpu_profile('two', count=2, numa='required')
        server = self.boot(self.flavor('two'), state='ERROR',
                           az='nova:compute1')
        self.assertIn('the most on one NUMA node is 1',
                      server['fault']['message'])
        self.assertEqual(6, len(self.held()))

    def guest_nodes(self, server):
        topology = objects.InstanceNUMATopology.get_by_instance_uuid(
            context.get_admin_context(), server['id'])
        return {cell.id for cell in topology.cells}

    def test_on_the_guests_node(self):
        self.gpu_profile('gpu', numa='required')
        flavor = self.flavor('gpu', extra_spec={'hw:numa_nodes': '1'})
        for _time in range(4):
            server = self.boot(flavor)
            self.assertEqual(self.guest_nodes(server), self.nodes(server))

    def test_guests_node_has_no_device_left(self):
        # Nova fills one node before it begins the next.
        self.flags(packing_host_numa_cells_allocation_strategy=True,
                   group='compute')
        self.gpu_profile('four', count=4, numa='required')
        self.gpu_profile('gpu', numa='required')
        numa = {'hw:numa_nodes': '1'}
        first = self.boot(self.flavor('four', extra_spec=numa))
        [node] = self.nodes(first)
        self.boot(self.flavor('gpu', extra_spec=numa), state='ERROR')
        self.assertIn(f'none is free there; the guest is on {node}',
                      self.stdlog.logger.output)

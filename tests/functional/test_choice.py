# SPDX-License-Identifier: Apache-2.0
"""The choice of a server's devices, by the scheduler or by nova-compute."""

import fixtures
from nova import exception
from nova.scheduler import utils
from nova.scheduler.client import report
from nova.virt.libvirt import driver as libvirt_driver

from nova_accel.scheduler import patches
from tests.functional import cloud
from tests.functional import test_affinity

NODES, SWITCHES = test_affinity.NODES, test_affinity.SWITCHES


class ChoiceTest(cloud.Cloud):

    DEVICE_SPEC = (cloud.GPU_SPEC,)

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')

    def buses(self, server, host='compute1'):
        return {address[5:7] for address in self.hostdevs(server, host)}

    def profile(self, count, *affinity, **more):
        """Return a flavor whose profile requests a number of GPUs."""
        self.write_profile('gpus', groups=[
            {'name': 'gpu', 'resources': {cloud.GPU: 1}, 'count': count,
             'numa': 'off'}], affinity=list(affinity), **more)
        return self.flavor('gpus')

    def answers(self):
        """Return a list that gets the number of candidates of each request."""
        counts = []
        client = report.SchedulerReportClient
        original = client.get_allocation_candidates

        def get(*args, **kwargs):
            answer = original(*args, **kwargs)
            counts.append(len(answer[0] or ()))
            return answer

        self.useFixture(fixtures.MockPatchObject(
            client, 'get_allocation_candidates', get))
        return counts

    def test_one_candidate_for_each_host_however_many_devices(self):
        self.start_compute('compute2')
        counts = self.answers()
        for count in (1, 2, 4, 8):
            self._delete_server(self.boot(self.profile(count)))
        self.assertEqual([2] * 4, counts)

    def test_server_gets_all_devices_of_a_host(self):
        server = self.boot(self.profile(8))
        self.assertEqual(8, len(self.allocated(server)))
        self.assertEqual({'ACCEL0', 'ACCEL7'}, {
            alias.split('-')[2] for alias in self.hostdevs(server).values()
            if alias.split('-')[2] in ('ACCEL0', 'ACCEL7')})
        self.boot(self.profile(1), state='ERROR')

    def test_single_devices_keep_large_groups_whole(self):
        one = self.profile(1)
        first, second = (self.buses(self.boot(one)) for _time in range(2))
        self.assertIn(first | second, SWITCHES)
        self.boot(self.profile(4, {'same': 'numa_node'}))
        self.boot(self.profile(2, {'same': 'pcie_switch'}))

    def test_devices_are_spread_without_pack_devices(self):
        self.flags(pack_devices=False, group='nova_accel')
        one = self.profile(1)
        first, second = (self.buses(self.boot(one)) for _time in range(2))
        self.assertEqual({0, 1}, {NODES[bus] for bus in first | second})

    def test_devices_behind_one_switch(self):
        pair = self.profile(2, {'same': 'pcie_switch'})
        for _time in range(4):
            self.assertIn(self.buses(self.boot(pair)), SWITCHES)

    def test_no_host_has_enough_devices_behind_one_switch(self):
        apart = self.profile(4, {'distinct': 'pcie_switch'})
        self.boot(apart)
        self.boot(self.profile(2, {'same': 'pcie_switch'}), state='ERROR')
        self.assertIn('same pcie_switch: 1 host, 1 candidate',
                      self.stdlog.logger.output)
        preferred = {'same': 'pcie_switch', 'policy': 'preferred'}
        self.boot(self.profile(2, preferred))

    def test_devices_behind_one_host_bridge(self):
        # Each NUMA node has one host bridge.
        self.boot(self.profile(1))
        three = self.profile(3, {'same': 'pcie_root'})
        for _time in range(2):
            self.assertEqual(1, len({
                NODES[bus] for bus in self.buses(self.boot(three))}))

    def test_more_host_bridges_than_the_host_has(self):
        self.boot(self.profile(3, {'distinct': 'pcie_root'}), state='ERROR')
        self.assertIn('distinct pcie_root: 1 host, 1 candidate',
                      self.stdlog.logger.output)

    def test_each_pair_of_groups_is_behind_one_switch(self):
        self.write_profile('pairs', groups=[
            {'name': name, 'resources': {cloud.GPU: 1}, 'count': 2,
             'numa': 'off'} for name in ('left', 'right')], affinity=[
                 {'same': 'pcie_switch', 'groups': ['left', 'right'],
                  'each': True},
                 {'distinct': 'numa_node', 'groups': ['left']}])
        server = self.boot(self.flavor('pairs'))
        bus = {alias.split('-')[2]: address[5:7] for address, alias
               in self.hostdevs(server).items()}
        self.assertIn({bus['ACCEL0'], bus['ACCEL2']}, SWITCHES)
        self.assertIn({bus['ACCEL1'], bus['ACCEL3']}, SWITCHES)
        self.assertNotEqual(NODES[bus['ACCEL0']], NODES[bus['ACCEL1']])

    def test_isolated_units_are_of_different_cards(self):
        self.flags(sysfs_root=str(cloud.A100), device_spec=cloud.VF_SPECS,
                   group='nova_accel')
        self.restart_compute_service('compute1')
        self._run_periodics()
        self.write_profile('vfs', group_policy='isolate', groups=[
            {'resources': {'CUSTOM_VF': 1}, 'count': 2}])
        flavor = self.flavor('vfs')
        for _time in range(2):
            self.assertEqual({'44', '85'}, self.buses(self.boot(flavor)))
        # The units that are left are all of one card.
        self.boot(flavor, state='ERROR')
        self.assertIn('distinct device', self.stdlog.logger.output)

    def test_trait_that_some_devices_have(self):
        self.flags(device_spec=[
            f'{{"address": "0000:84:00.0", "resource_class": "{cloud.GPU}"}}',
            cloud.GPU_SPEC], group='nova_accel')
        self.restart_compute_service('compute1')
        self.write_profile('plain', groups=[
            {'resources': {cloud.GPU: 1},
             'traits': {'CUSTOM_NVLINK': 'forbidden'}}])
        plain = self.flavor('plain')
        self.assertEqual({'84'}, self.buses(self.boot(plain)))
        self.boot(plain, state='ERROR')
        self.assertIn('traits: 1 host', self.stdlog.logger.output)

    def one_with_a_trait(self):
        """Give one device a trait; the provider of the class gets it, too."""
        self.flags(device_spec=[
            f'{{"address": "0000:84:00.0", "resource_class": "{cloud.GPU}", '
            '"traits": "CUSTOM_NEW"}', cloud.GPU_SPEC], group='nova_accel')
        self.restart_compute_service('compute1')

    def assert_got_that_one(self, flavor, **where):
        server = self.boot(flavor, **where)
        self.assertEqual({'84'}, self.buses(server))
        self.boot(flavor, state='ERROR', **where)
        self._delete_server(server)

    def test_trait_of_a_flavor_with_a_class(self):
        self.one_with_a_trait()
        for suffix in '', '1':
            flavor = self.flavor(extra_spec={
                f'resources{suffix}:{cloud.GPU}': '1',
                f'trait{suffix}:CUSTOM_NEW': 'required'})
            self.assert_got_that_one(flavor)
            self.assert_got_that_one(flavor, az='nova:compute1')

    def test_trait_of_an_image(self):
        self.one_with_a_trait()
        self.glance.images[cloud.IMAGE]['properties'][
            'trait:CUSTOM_NEW'] = 'required'
        self.assert_got_that_one(self.flavor(extra_spec={
            f'resources:{cloud.GPU}': '1'}))

    def test_forced_host_is_sent_to_placement(self):
        pair = self.profile(2, {'same': 'pcie_switch'})
        server = self.boot(pair, az='nova:compute1')
        self.assertIn(self.buses(server), SWITCHES)
        # This also checks the allocation of the class.
        self.assertEqual(
            {f'compute1_accel_{address}': {cloud.GPU: 1}
             for address in self.hostdevs(server)}, self.allocated(server))
        for _time in range(3):
            self.boot(pair)
        self._delete_server(server)
        self.assertIn(self.buses(self.boot(pair)), SWITCHES)

    def test_forced_host_leaves_devices_of_an_arriving_server(self):
        """A forced server gets no device that is allocated to another one.

        The filter allocated that device to a server that nova-compute does not
        know yet.
        """
        [taken] = self.allocated(self.boot(self.profile(1)))
        server = self.boot(self.profile(1))
        [promised] = self.allocated(server)
        self._delete_server(server)
        answer = self.placement.put(
            '/allocations/0a6f4c7e-4a86-4f5e-8f0f-1d3fb0c4d2a1', {
                'allocations': {self.providers()[promised]['uuid']: {
                    'resources': {cloud.unit(cloud.GPU): 1}}},
                'project_id': 'x', 'user_id': 'x',
                'consumer_generation': None}, version='1.28')
        self.assertEqual(204, answer.status)
        server = self.boot(self.profile(1), az='nova:compute1')
        self.assertFalse({taken, promised} & set(self.allocated(server)))

    def test_devices_that_another_scheduler_took(self):
        """The server gets other devices if its first choice was taken.

        Another scheduler takes them between Placement's answer and the claim.
        """
        pair = self.profile(2, {'same': 'pcie_switch'})
        original = patches.claim_resources.original
        taken = []

        def claim(ctx, client, spec_obj, instance_uuid, candidate, *args,
                  **kwargs):
            if not taken:
                taken.append({
                    uuid: allocation for uuid, allocation
                    in candidate['allocations'].items()
                    if any('UNIT_OF' in name
                           for name in allocation['resources'])})
                answer = self.placement.put(
                    '/allocations/0a6f4c7e-4a86-4f5e-8f0f-1d3fb0c4d2a1', {
                        'allocations': taken[0], 'project_id': 'x',
                        'user_id': 'x', 'consumer_generation': None},
                    version='1.28')
                self.assertEqual(204, answer.status)
            return original(ctx, client, spec_obj, instance_uuid, candidate,
                            *args, **kwargs)

        self.useFixture(fixtures.MockPatchObject(
            utils, 'claim_resources', claim))
        # Wrap the mock as nova-scheduler wraps the function when it starts.
        patches.claim_resources.install()
        server = self.boot(pair)
        self.assertIn(self.buses(server), SWITCHES)
        self.assertFalse({
            provider['uuid'] for name, provider in self.providers().items()
            if name in self.allocated(server)} & set(taken[0]))

    def test_alternate_host_whose_device_was_taken(self):
        self.start_compute('compute2')
        start = libvirt_driver.LibvirtDriver._create_guest_with_network
        went = {}

        def fail_once(driver, context, xml, instance, *args, **kwargs):
            if went:
                return start(driver, context, xml, instance, *args, **kwargs)
            # The hosts are alike, so the scheduler chose the same device on
            # the alternate host.
            [name] = self.allocated({'id': instance.uuid})
            host, other = sorted(self.computes, key=lambda host: (
                not name.startswith(host)))
            went[other] = name.replace(host, other)
            self.assertEqual(204, self.placement.put(
                '/allocations/0a6f4c7e-4a86-4f5e-8f0f-1d3fb0c4d2a1', {
                    'allocations': {
                        self.providers(other)[went[other]]['uuid']: {
                            'resources': {cloud.unit(cloud.GPU): 1}}},
                    'project_id': 'x', 'user_id': 'x',
                    'consumer_generation': None}, version='1.28').status)
            raise exception.ComputeResourcesUnavailable(reason='no')

        self.useFixture(fixtures.MockPatchObject(
            libvirt_driver.LibvirtDriver, '_create_guest_with_network',
            fail_once))
        server = self.boot(self.profile(1))
        [(host, taken)] = went.items()
        self.assertEqual(host, self._show_server(server)[
            'OS-EXT-SRV-ATTR:host'])
        [address] = self.hostdevs(server, host)
        self.assertEqual({f'{host}_accel_{address}': {cloud.GPU: 1}},
                         self.allocated(server))
        self.assertNotIn(taken, self.allocated(server))

    def promise(self, *providers):
        """Make Placement allocate these devices instead of the chosen ones."""
        original = utils.claim_resources

        def claim(ctx, client, spec_obj, instance_uuid, candidate, *args,
                  **kwargs):
            for uuid, allocation in list(candidate['allocations'].items()):
                if cloud.unit(cloud.GPU) in allocation['resources']:
                    del candidate['allocations'][uuid]
            for provider in providers:
                candidate['allocations'][provider] = {
                    'resources': {cloud.unit(cloud.GPU): 1}}
            return original(ctx, client, spec_obj, instance_uuid, candidate,
                            *args, **kwargs)

        self.useFixture(fixtures.MockPatchObject(
            utils, 'claim_resources', claim))

    def test_allocated_devices_that_break_a_rule(self):
        """nova-compute replaces allocated devices that break a rule.

        This happens if the guest gets other NUMA nodes than the scheduler
        expected.
        """
        self.promise(*(
            provider['uuid'] for name, provider in self.providers().items()
            if name.endswith((':43:00.0', ':48:00.0'))))
        server = self.boot(self.profile(2, {'same': 'pcie_switch'}))
        self.assertIn(self.buses(server), SWITCHES)
        self.assertEqual({f'compute1_accel_{address}': {cloud.GPU: 1}
                          for address in self.hostdevs(server)},
                         self.allocated(server))

    def test_devices_that_placement_allocated_twice(self):
        """nova-compute replaces a device that another server has.

        Placement can allocate a device twice if MariaDB gets two concurrent
        claims.
        """
        first = self.boot(self.profile(1))
        [name] = self.allocated(first)
        provider = self.providers()[name]['uuid']
        self.offer_twice(provider)
        self.promise(provider)
        second = self.boot(self.profile(1))
        self.assertIn('instead of the allocated ones',
                      self.stdlog.logger.output)
        self.assertFalse(set(self.hostdevs(first))
                         & set(self.hostdevs(second)))
        # The allocations of each server are exactly its hostdevs.
        for server in first, second:
            self.assertEqual(
                {f'compute1_accel_{address}': {cloud.GPU: 1}
                 for address in self.hostdevs(server)},
                self.allocated(server))

    def offer_twice(self, provider):
        """Make Placement allocate the one unit of a provider twice."""
        path = f'/resource_providers/{provider}/inventories'
        body = self.placement.get(path).body
        for record in body['inventories'].values():
            record.update(total=2, max_unit=2)
        self.assertEqual(200, self.placement.put(path, body).status)


class WithoutFilterTest(cloud.Cloud):
    """A cloud with AcceleratorWeigher but without AcceleratorFilter."""

    ADDITIONAL_FILTERS = ['NUMATopologyFilter']

    def setUp(self):
        # Remove the patch that the filter has installed in this process.
        self.useFixture(fixtures.MockPatchObject(
            utils.ResourceRequest, 'from_request_spec',
            classmethod(patches.from_request_spec.original)))
        self.add_weigher()
        super().setUp()
        self.flags(device_spec=[
            '{"address": "0000:89:00.0", "resource_class": "CUSTOM_NIC"}',
            cloud.GPU_SPEC], group='nova_accel')
        self.start_compute('compute1')

    def test_resize_on_one_host_to_another_device(self):
        """A resize to another class on the same host gets a new device.

        The server has devices of the old flavor, and the scheduler has chosen
        no others.
        """
        self.flags(allow_resize_to_same_host=True)
        self.write_profile('nic', groups=[{'resources': {'CUSTOM_NIC': 1}}])
        self.gpu_profile('gpu')
        server = self.boot(self.flavor('gpu'))
        self._resize_server(server, self.flavor('nic'))
        self.assertEqual({'0000:89:00.0'}, set(self.hostdevs(server)))
        self.assertEqual({'compute1_accel_0000:89:00.0': {'CUSTOM_NIC': 1}},
                         self.allocated(server))

    def assert_behind_one_switch(self, *classes):
        """Check that nova-compute chooses devices behind one switch.

        Check also that it writes the choice to Placement.
        """
        self.write_profile('two', groups=[
            {'resources': {name: 1}} for name in classes],
            affinity=[{'same': 'pcie_switch'}])
        server = self.boot(self.flavor('two'))
        self.assertIn({address[5:7] for address in self.hostdevs(server)},
                      SWITCHES)
        self.assertEqual(2, len(self.allocated(server)))

    def test_groups_that_are_alike(self):
        self.assert_behind_one_switch(cloud.GPU, cloud.GPU)

    def test_groups_that_are_not_alike(self):
        self.assert_behind_one_switch(cloud.GPU, 'CUSTOM_NIC')

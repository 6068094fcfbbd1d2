# SPDX-License-Identifier: Apache-2.0
"""Plans of moves, performed step by step."""

import shlex

from tests.functional import cloud
from tests.functional import openstack


class PlanCase(cloud.Cloud):
    """Base of test cases with three hosts of four GPUs each."""

    HOSTS = ('compute1', 'compute2', 'compute3')

    def setUp(self):
        super().setUp()
        self.openstack = openstack.Openstack(
            self.api.base_url, self.placement_fixture.endpoint)
        for name in self.HOSTS:
            self.start_compute(name)
        self.flavors = {}
        for count in (1, 2, 4):
            self.gpu_profile(str(count), count, numa='off')
            self.flavors[count] = self.flavor(str(count))

    def fill(self, **counts):
        """Boot servers with these numbers of GPUs, by host."""
        return {host: [self.boot(self.flavors[count], host=host)
                       for count in each] for host, each in counts.items()}

    def plan(self, *arguments):
        return self.openstack.run(f'accel plan {arguments[0]}',
                                  *arguments[1:])

    def perform(self, plan):
        """Perform the commands of a plan, each when the last one is done."""
        for step in plan['steps']:
            for command in step['commands']:
                self._perform(shlex.split(command), step)

    def _perform(self, words, step):
        self.assertEqual(['openstack', '--os-compute-api-version', '2.56',
                          'server'], words[:4])
        server = self.api.get_server(words[-1])
        self.assertEqual(step['from'] if words[4] == 'migrate' else step['to'],
                         server['OS-EXT-SRV-ATTR:host'])
        if words[4:6] == ['migration', 'confirm']:
            # The computes share CONF.host. The driver compares it with the
            # host of the server.
            self.flags(host=step['from'])
            self.api.post_server_action(words[-1], {'confirmResize': None})
            self._wait_for_migration_status(server, ['confirmed'])
            self._wait_for_server_parameter(server, {
                'OS-EXT-STS:task_state': None})
            return
        host = words[words.index('--host') + 1]
        if '--live-migration' in words:
            self.api.post_server_action(words[-1], {'os-migrateLive': {
                'host': host, 'block_migration': 'auto'}})
            self._wait_for_migration_status(server, ['completed'])
            self._wait_for_server_parameter(server, {
                'OS-EXT-SRV-ATTR:host': host, 'status': 'ACTIVE'})
        else:
            self.api.post_server_action(words[-1], {'migrate': {'host': host}})
            self._wait_for_state_change(server, 'VERIFY_RESIZE')


class ColdPlanTest(PlanCase):

    def test_room_for_a_server_that_needs_all_devices_of_a_host(self):
        self.fill(compute1=[2, 1], compute2=[2], compute3=[1, 1])
        plan = self.plan('make-room', '--profile', '4', '--profile-dir',
                         self.profiles)
        self.assertEqual((1, True, None), (
            plan['moves'], plan['fewest'], plan['reason']))
        self.assertEqual(('compute2', 'compute3', 'cold'), tuple(
            plan['steps'][0][key] for key in ('from', 'to', 'how')))
        self.boot(self.flavors[4], state='ERROR')
        self.perform(plan)
        self.boot(self.flavors[4])
        self.assertEqual(0, self.plan('make-room', '--profile', '1',
                                      '--profile-dir', self.profiles)['moves'])

    def test_server_moves_out_of_the_way_of_another(self):
        """compute1's pair needs the place of a server of compute2."""
        self.fill(compute1=[2], compute2=[2, 1], compute3=[2, 1])
        plan = self.plan('drain', 'compute1')
        self.assertEqual((2, True), (plan['moves'], plan['fewest']))
        self.perform(plan)
        self.assertEqual({}, self.held('compute1'))
        self.boot(self.flavors[4], host='compute1')

    def test_too_few_devices(self):
        self.fill(compute1=[2, 2], compute2=[2, 1], compute3=[2, 1])
        plan = self.plan('drain', 'compute1')
        self.assertEqual((None, False, []), (
            plan['moves'], plan['fewest'], plan['steps']))
        self.assertEqual(f'4 free {cloud.GPU} are needed, and 2 are free',
                         plan['reason'])

    def test_no_host_has_room_for_one_server_meanwhile(self):
        """Two GPUs are free, on two NUMA nodes, and all else is in use."""
        ones = self.fill(compute1=[1] * 4, compute2=[4],
                         compute3=[4])['compute1']
        nodes = {}
        for server in ones:
            [address] = self.hostdevs(server, 'compute1')
            nodes.setdefault(address[5], server)
        for server in nodes.values():
            self._delete_server(server)
        self.gpu_profile('near', 2)
        plan = self.plan('make-room', '--profile', 'near', '--profile-dir',
                         self.profiles, '--seconds', '10')
        self.assertRefused(plan, 2)

    def test_servers_that_would_have_to_change_places(self):
        self.fill(compute1=[2, 2], compute2=[2, 1], compute3=[4])
        plan = self.plan('make-room', '--profile', '1', '--profile-dir',
                         self.profiles, '--host', 'compute1', '--seconds',
                         '10')
        self.assertRefused(plan, 3)

    def assertRefused(self, plan, moves):
        """Check that a plan needs another host, and so many moves then."""
        self.assertIsNone(plan['moves'])
        self.assertIn(
            'servers would have to change places, and no host has room for '
            'one of them meanwhile; if another host like compute1 had it, '
            f'{moves} moves would do', plan['reason'])

    def test_server_group(self):
        # Nova lists one group at a time.
        self.flags(max_limit=1, group='api')
        self.api.post_server_groups({'name': 'other', 'policy': 'affinity'})
        group = self.api.post_server_groups(
            {'name': 'apart', 'policy': 'anti-affinity'})
        servers = [self._boot_in(group, host) for host in self.HOSTS[:2]]
        plan = self.plan('drain', 'compute1')
        self.assertEqual([('compute1', 'compute3', servers[0]['id'])], [
            (step['from'], step['to'], step['server'])
            for step in plan['steps']])
        self.perform(plan)

    def _boot_in(self, group, host):
        server = self.api.post_server({
            'server': self._build_server(
                image_uuid=cloud.IMAGE, flavor_id=self.flavors[1],
                networks='none', host=host),
            'os:scheduler_hints': {'group': group['id']}})
        return self._wait_for_state_change(server, 'ACTIVE')

    def test_resize_that_is_not_confirmed(self):
        [server] = self.fill(compute1=[1])['compute1']
        self._migrate_server(server)
        plan = self.plan('drain', 'compute1')
        self.assertEqual(
            (0, '1 unit of compute1 held by no server there, such as by a '
             'resize that is not confirmed'), (plan['moves'], plan['reason']))

    def test_server_that_cannot_move(self):
        [server] = self.fill(compute1=[1])['compute1']
        self._suspend_server(server)
        plan = self.plan('drain', 'compute1')
        self.assertEqual(f'server {server["id"]} cannot move: its status is '
                         'SUSPENDED', plan['reason'])

    def test_disabled_and_full_hosts_get_no_server(self):
        others = self.fill(compute1=[1], compute2=[4])
        [service] = self.api.get_services(host='compute3',
                                          binary='nova-compute')
        self.api.put_service(service['id'], {'status': 'disabled'})
        plan = self.plan('drain', 'compute1')
        self.assertEqual((None, f'1 free {cloud.GPU} are needed, and 0 are '
                          'free'), (plan['moves'], plan['reason']))
        self._delete_server(others['compute2'][0])
        plan = self.plan('make-room', '--profile', '1', '--profile-dir',
                         self.profiles, '--host', 'compute3')
        self.assertIsNone(plan['moves'])
        self.assertIn('compute3 gets no servers: ', plan['reason'])


class LivePlanTest(PlanCase):

    DEVICE_SPEC = (cloud.migratable(cloud.FOUR_SPEC),)

    def test_devices_whose_state_can_move(self):
        servers = self.fill(compute1=[1, 2], compute2=[2], compute3=[1])
        self._stop_server(servers['compute1'][0])
        plan = self.plan('drain', 'compute1')
        self.assertEqual({'live', 'cold'}, {
            step['how'] for step in plan['steps']})
        self.assertEqual(2, plan['moves'])
        self.perform(plan)
        self.assertEqual({}, self.held('compute1'))

# SPDX-License-Identifier: Apache-2.0
"""The shortlist of hosts that nova-scheduler examines."""

import fixtures
from nova.scheduler import host_manager

from tests.functional import cloud


class ShortlistTest(cloud.Cloud):
    """Hosts with two GPUs on each of two NUMA nodes."""

    HOSTS = 4

    def setUp(self):
        super().setUp()
        # A request of one server then examines two hosts.
        self.flags(shortlist_size=1, group='nova_accel')
        for number in range(1, self.HOSTS + 1):
            self.start_compute(f'compute{number}')
        #: The hosts that each round of the scheduler examined.
        self.rounds = []
        original = host_manager.HostManager.get_host_states_by_uuids

        def get(manager, context, uuids, spec):
            self.rounds.append([])
            for state in original(manager, context, uuids, spec):
                self.rounds[-1].append(state.host)
                yield state

        self.useFixture(fixtures.MonkeyPatch(
            'nova.scheduler.host_manager.HostManager'
            '.get_host_states_by_uuids', get))

    def gpus(self, count=1, **more):
        self.gpu_profile(f'gpu{count}', count, **more)
        return self.flavor(f'gpu{count}')

    def host_of(self, server):
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']

    def several(self, flavor, count, more, **host):
        """Boot servers in one request; return the hosts of all servers.

        :param more: top-level keys of the request, such as scheduler hints
        """
        self.api.post_server({'server': self._build_server(
            image_uuid=cloud.IMAGE, flavor_id=flavor, networks='none', **host)
            | {'min_count': count, 'max_count': count}, **more})
        return {self.host_of(self._wait_for_state_change(server, 'ACTIVE'))
                for server in self.api.get_servers()}

    def apart(self):
        """Return the scheduler hint of a new anti-affinity group."""
        group = self.api.post_server_groups({
            'name': 'apart', 'policy': 'anti-affinity'})
        return {'os:scheduler_hints': {'group': group['id']}}

    def test_fullest_hosts_are_examined(self):
        one = self.gpus()
        first = self.host_of(self.boot(one))
        self.boot(one)
        [_first, [*second]] = self.rounds
        self.assertEqual(2, len(second))
        self.assertIn(first, second)

    def test_only_host_that_keeps_the_rules_is_beyond_placements_limit(self):
        self.flags(max_placement_results=1, group='scheduler')
        apart = self.gpus(2, numa='off', affinity=[{'distinct': 'numa_node'}])
        for number in range(1, self.HOSTS):
            self.boot(apart, host=f'compute{number}')
        del self.rounds[:]
        self.gpu_profile('pair', 2)
        self.assertEqual(f'compute{self.HOSTS}',
                         self.host_of(self.boot(self.flavor('pair'))))
        self.assertEqual([[f'compute{self.HOSTS}']], self.rounds)

    def test_preferred_rule_decides_between_hosts(self):
        apart = self.gpus(2, numa='off', affinity=[{'distinct': 'numa_node'}])
        for number in range(1, self.HOSTS):
            self.boot(apart, host=f'compute{number}')
        self.gpu_profile('near', 2, numa='preferred')
        server = self.boot(self.flavor('near'))
        self.assertIn(f'compute{self.HOSTS}', self.rounds[-1])
        self.assertEqual(2, len(self.rounds[-1]))
        self.assertEqual(1, len({
            address[5] for address in self.hostdevs(
                server, self.host_of(server))}))

    def test_other_hosts_follow_if_filters_reject_the_shortlist(self):
        apart = self.apart()
        one = self.gpus()
        for number in range(1, self.HOSTS + 1):
            self.assertEqual(number, len(self.several(one, 1, apart)))
        # All hosts were examined once, as the fullest ones have members of
        # the group.
        self.assertIn(self.HOSTS, map(len, self.rounds))
        self.assertNotIn('has no valid host', self.stdlog.logger.output)

    def test_no_host_fits(self):
        apart = self.gpus(2, numa='off', affinity=[{'distinct': 'numa_node'}])
        for number in range(1, self.HOSTS + 1):
            self.boot(apart, host=f'compute{number}')
        del self.rounds[:]
        self.gpu_profile('pair', 2)
        server = self.boot(self.flavor('pair'), state='ERROR')
        self.assertEqual([], self.rounds)
        self.assertEqual(
            'No valid host was found. No host has 2 free CUSTOM_GPU_H100 on '
            'one NUMA node; of the hosts that have them, the most on one is 1',
            self.api.get_server(server['id'])['fault']['message'])
        [line] = [line for line in self.stdlog.logger.output.splitlines()
                  if 'has no valid host for pair' in line]
        self.assertIn(f'same numa_node: {self.HOSTS} hosts', line)

    def test_forced_host(self):
        server = self.boot(self.gpus(), az=f'nova:compute{self.HOSTS}')
        self.assertEqual(f'compute{self.HOSTS}', self.host_of(server))

    def test_all_hosts_are_examined_without_a_shortlist(self):
        self.flags(shortlist_size=0, group='nova_accel')
        self.boot(self.gpus())
        self.assertEqual([self.HOSTS], list(map(len, self.rounds)))

    def test_claims_of_the_first_round_do_not_count_in_the_second(self):
        apart = self.apart()
        one = self.gpus()
        for number in (1, 2):
            self.several(one, 1, apart, host=f'compute{number}')
        # For two servers the shortlist has three hosts. Two of them have
        # members of the group.
        del self.rounds[:]
        self.assertEqual(
            {f'compute{number}' for number in range(1, 5)},
            self.several(one, 2, apart))
        self.assertEqual([3, 4], list(map(len, self.rounds)))
        self.assertEqual(4, sum(len(self.held(f'compute{number}'))
                                for number in range(1, 5)))

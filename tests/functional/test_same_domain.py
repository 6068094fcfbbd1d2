# SPDX-License-Identifier: Apache-2.0
"""Servers that are to be in one host domain."""

import contextlib

import fixtures
from nova import context
from nova import objects
from nova.tests.functional.api import client

from nova_accel.core import host_domain
from tests.functional import cloud


class Racks:
    """Mixin for :class:`cloud.Cloud`: host domains and server groups."""

    def rack(self, name, hosts):
        aggregate = self.api.post_aggregate({'aggregate': {'name': name}})
        for host in hosts:
            self.api.add_host_to_aggregate(aggregate['id'], host)
        self.name_domain(aggregate, name)
        return aggregate

    def name_domain(self, aggregate, name):
        self.api.post_aggregate_action(aggregate['id'], {
            'set_metadata': {'metadata': {host_domain.KEY: name}}})

    def group(self, policy='soft-anti-affinity'):
        group = self.api.post_server_groups({'name': 'job', 'policy': policy})
        return {'os:scheduler_hints': {'group': group['id']}}


class SameDomainTest(Racks, cloud.Cloud):
    """Four hosts with four GPUs each, two in each of two racks."""

    RACKS = {'rack1': ('compute1', 'compute2'),
             'rack2': ('compute3', 'compute4')}

    def setUp(self):
        super().setUp()
        self.aggregates = {}
        for rack, hosts in self.RACKS.items():
            for host in hosts:
                self.start_compute(host)
            self.aggregates[rack] = self.rack(rack, hosts)
        self.whole = self.gpus(4)

    # Actions of the operator

    def gpus(self, count, same_domain='required', **more):
        name = f'gpu{count}-{same_domain}'
        self.gpu_profile(name, count, numa='off', same_domain=same_domain)
        return self.flavor(name, **more)

    # Actions of the tenant

    def several(self, flavor, count, hints=(), state='ACTIVE', **more):
        """Boot servers in one request; return them."""
        before = {server['id'] for server in self.api.get_servers()}
        self.api.post_server({'server': self._build_server(
            image_uuid=cloud.IMAGE, flavor_id=flavor, networks='none', **more)
            | {'min_count': count, 'max_count': count}, **dict(hints)})
        return [self._wait_for_state_change(server, state)
                for server in self.api.get_servers()
                if server['id'] not in before]

    def host_of(self, server):
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']

    def racks_of(self, servers):
        """Return the rack of each server."""
        hosts = map(self.host_of, servers)
        return [rack for host in hosts for rack, members
                in self.RACKS.items() if host in members]

    def fault(self, server):
        return self.api.get_server(server['id'])['fault']['message']

    def log(self, text):
        return [line for line in self.stdlog.logger.output.splitlines()
                if text in line]

    def test_first_server_goes_where_all_fit(self):
        [full] = self.several(self.gpus(4, 'preferred'), 1)
        [rack] = self.racks_of([full])
        servers = self.several(self.whole, 2)
        self.assertEqual(2, len({*map(self.host_of, servers)}))
        self.assertEqual({*self.RACKS} - {rack}, {*self.racks_of(servers)})

    def test_more_than_any_domain_has_room_for(self):
        for server in self.several(self.whole, 3, state='ERROR'):
            self.assertEqual(
                'No valid host was found. No host domain has room for all 3 '
                'servers that are to be in one; the most is 2',
                self.fault(server))
        [line] = self.log('has no valid host for gpu4-required')
        self.assertIn('rack1: 0 there, room for 2; rack2: 0 there, room for 2',
                      line)
        for host in self.computes:
            self.assertEqual({}, self.held(host))

    def test_members_of_a_group_follow_the_first(self):
        hints = self.group()
        servers = [server for _time in range(2)
                   for server in self.several(self.whole, 1, hints)]
        self.assertEqual(1, len({*self.racks_of(servers)}))
        [late] = self.several(self.whole, 1, hints, 'ERROR')
        self.assertIn('all 3 servers that are to be in one; the most is 2',
                      self.fault(late))
        # Others still get a host.
        self.several(self.whole, 2)

    def test_preferred_domain_gets_as_many_as_possible(self):
        servers = self.several(self.gpus(4, 'preferred'), 3)
        self.assertEqual([1, 2], sorted(
            self.racks_of(servers).count(rack) for rack in self.RACKS))

    def test_flavor_without_devices(self):
        hints = self.group('anti-affinity')
        flavor = self.flavor(
            extra_spec={'nova_accel:same_domain': 'required'})
        servers = self.several(flavor, 2, hints)
        self.assertEqual(1, len({*self.racks_of(servers)}))
        [late] = self.several(flavor, 1, hints, 'ERROR')
        self.assertIn('the most is 2', self.fault(late))

    def test_host_that_is_in_no_domain(self):
        for aggregate in self.aggregates.values():
            self.name_domain(aggregate, None)
        [server] = self.several(self.whole, 1, state='ERROR')
        self.assertIn('No host that has room for the server is in a host '
                      'domain', self.fault(server))
        self.assertTrue(self.log('no aggregate with hosts has the metadata '
                                 'nova_accel:domain'))

    def test_evacuation_stays_in_the_domain(self):
        hints = self.group()
        one, other = self.several(self.gpus(2), 2, hints)
        [rack] = {*self.racks_of([one, other])}
        failed = self.host_of(one)
        self.take_down(failed)
        self._evacuate_server(one, expected_state='SHUTOFF')
        self.assertEqual([rack], self.racks_of([one]))
        self.assertNotEqual(failed, self.host_of(one))

    def test_evacuation_that_would_leave_the_domain_says_why_not(self):
        servers = self.several(self.whole, 2)
        [rack] = {*self.racks_of(servers)}
        self.take_down(self.host_of(servers[0]))
        self.evacuate_in_vain(servers[0])
        [line] = self.log('has no valid host for gpu4-required')
        self.assertIn('No host domain has room for all 2 servers that are to '
                      'be in one; the most is 1', line)
        self.assertIn(f'{rack}: 1 there, room for 0', line)
        # The operator gives up the rack.
        self.name_domain(self.aggregates[rack], None)
        self._evacuate_server(servers[0], expected_state='ACTIVE')
        self.assertEqual({*self.RACKS} - {rack},
                         {*self.racks_of(servers[:1])})

    def evacuate_in_vain(self, server):
        # Nova's harness makes the cast a call, so the API fails.
        self.assertRaises(client.OpenStackApiException,
                          self.api.post_server_action, server['id'],
                          {'evacuate': {}})

    def test_migration_stays_in_the_domain(self):
        servers = self.several(self.gpus(2), 2)
        [rack] = {*self.racks_of(servers)}
        host = self.host_of(servers[0])
        self._migrate_server(servers[0])
        self._wait_for_state_change(servers[0], 'VERIFY_RESIZE')
        self.assertEqual([rack], self.racks_of(servers[:1]))
        self.assertNotEqual(host, self.host_of(servers[0]))

    def test_late_check_of_a_resize_uses_the_new_flavor(self):
        [server, _other] = self.several(self.whole, 2)
        [rack] = self.racks_of([server])
        self._resize_server(server, self.flavor(
            self.gpu_profile('any', 4, 'off').stem))
        self.assertEqual({*self.RACKS} - {rack}, {*self.racks_of([server])})

    def test_server_that_is_alone_may_leave(self):
        [server] = self.several(self.whole, 1)
        [rack] = self.racks_of([server])
        [first, second] = self.RACKS[rack]
        self.several(self.flavor(self.gpu_profile('any', 4, 'off').stem), 1,
                     host=second if self.host_of(server) == first else first)
        self._migrate_server(server)
        self._wait_for_state_change(server, 'VERIFY_RESIZE')
        self.assertEqual({*self.RACKS} - {rack}, {*self.racks_of([server])})

    def test_requests_that_do_not_know_of_each_other_choose_one_domain(self):
        self.be_unaware()
        hints = self.group()
        servers = [server for _time in range(2)
                   for server in self.several(self.whole, 1, hints)]
        self.assertEqual(1, len({*self.racks_of(servers)}))

    def test_late_check_refuses_a_host_of_another_domain(self):
        self.be_unaware()
        hints = self.group()
        self.several(self.whole, 1, hints, host='compute1')
        self.several(self.whole, 1, hints, 'ERROR', host='compute3')
        [line] = self.log('Server cannot be here, in host domain rack2')
        self.assertIn('are on compute1 (rack1)', line)
        self.assertEqual({}, self.held('compute3'))
        # Nova tries the next host of a server that nobody has forced.
        self.several(self.whole, 1, hints, host='compute2')

    def be_unaware(self):
        """Schedule each request as if all were handled at once."""
        self.useFixture(fixtures.MockPatch(
            'nova_accel.group_hosts.in_all_cells', return_value=[]))

    def test_live_migration_stays_in_the_domain(self):
        servers = self.several(self.flavor(extra_spec={
            'nova_accel:same_domain': 'required'}), 2)
        [rack] = {*self.racks_of(servers)}
        other = next(hosts[0] for name, hosts in self.RACKS.items()
                     if name != rack)
        self.assertRaises(
            client.OpenStackApiException, self.api.post_server_action,
            servers[0]['id'], {'os-migrateLive': {
                'host': other, 'block_migration': 'auto'}})
        self.assertTrue(self.log('the most is 1. Host domains'))
        self.assertEqual([rack], self.racks_of(servers[:1]))

    def test_server_whose_move_fails_the_late_check_stays_as_it_is(self):
        server, other = self.several(self.flavor(extra_spec={
            'nova_accel:same_domain': 'required'}), 2)
        host = self.host_of(server)
        target = next(hosts[0] for hosts in self.RACKS.values()
                      if host not in hosts)
        self.be_unaware()
        self.move_in_vain(server, 'error', {'os-migrateLive': {
            'host': target, 'block_migration': 'auto'}})
        self.take_down(host)
        self.move_in_vain(server, 'failed', {'evacuate': {'host': target}})
        self.assertEqual((host, 'ACTIVE'), (
            self.host_of(server),
            self.api.get_server(server['id'])['status']))

    def move_in_vain(self, server, status, action):
        # Nova's harness makes casts calls, so that the API can fail.
        with contextlib.suppress(client.OpenStackApiException):
            self.api.post_server_action(server['id'], action)
        self._wait_for_migration_status(server, [status])
        self.assertTrue(self.log('Server cannot be here, in host domain'))

    def test_wrong_value_of_the_flavor(self):
        [server] = self.several(self.old_flavor('strict'), 1, state='ERROR')
        self.assertIn('No valid host', self.fault(server))
        [line] = self.log('No host can be found')
        self.assertIn('set it to required or preferred', line)

    def old_flavor(self, value):
        """Return a flavor with a value that the API did not check."""
        flavor = self.flavor()
        found = objects.Flavor.get_by_flavor_id(context.get_admin_context(),
                                                flavor)
        found.extra_specs = {'nova_accel:same_domain': value}
        found.save()
        return flavor

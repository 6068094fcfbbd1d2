# SPDX-License-Identifier: Apache-2.0
"""Alternatives of a profile (any_of), over two hosts with two models."""

import fixtures
from nova import context
from nova import exception

from nova_accel.compute import allocator
from tests.functional import cloud


def _entry(buses, model):
    return cloud.migratable(
        f'{cloud.GPU_SPEC[:-1]}, "address": {{"bus": "{buses}"}}}}'.replace(
            '"CUSTOM_NVLINK"', f'"CUSTOM_{model}"'))


class AlternativesTest(cloud.Cloud):
    """Each host has two H100 and two A100, which differ in a trait only."""

    DEVICE_SPEC = (_entry('4[34]', 'H100'), _entry('8[34]', 'A100'))

    def setUp(self):
        self.add_weigher()
        super().setUp()
        self.start_compute('compute1')
        self.start_compute('compute2')

    def profile(self, *any_of, count=1, **more):
        self.write_profile('gpu', groups=[
            {'resources': {cloud.GPU: 1}, 'count': count, 'numa': 'off',
             'any_of': [list(one) for one in any_of]}], **more)
        return self.flavor('gpu')

    def first_or_second(self, **more):
        return self.profile(['CUSTOM_H100'], ['CUSTOM_A100'], **more)

    def has(self, server):
        """Return the host of a server, and the models of its devices."""
        host = self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']
        return host, [{'4': 'H100', '8': 'A100'}[address[5]] for address
                      in self.hostdevs(server, host)]

    def test_first_alternative_of_the_cloud(self):
        flavor = self.first_or_second()
        found = [self.has(self.boot(flavor)) for _server in range(5)]
        self.assertEqual([['H100']] * 4 + [['A100']],
                         [models for _host, models in found])
        self.assertEqual(2, len({host for host, _models in found[:4]}))

    def test_first_alternative_of_the_host(self):
        """The hosts are packed as without alternatives."""
        flavor = self.first_or_second(per='host')
        found = [self.has(self.boot(flavor)) for _server in range(3)]
        self.assertEqual([['H100'], ['H100'], ['A100']],
                         [models for _host, models in found])
        self.assertEqual(1, len({host for host, _models in found}))

    def test_servers_of_one_request(self):
        self.api.post_server({'server': self._build_server(
            image_uuid=cloud.IMAGE, flavor_id=self.first_or_second(),
            networks='none') | {'min_count': 5, 'max_count': 5}})
        servers = self.api.get_servers()
        for server in servers:
            self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(['A100'] + ['H100'] * 4, sorted(
            model for server in servers for model in self.has(server)[1]))

    def test_equal_devices_are_of_one_model(self):
        one = self.profile(['CUSTOM_H100'], [])
        for host in self.computes:
            self.boot(one, host=host)
        server = self.boot(self.first_or_second(count=2))
        self.assertEqual(['A100'] * 2, self.has(server)[1])

    def test_nova_compute_chooses_on_a_forced_host(self):
        """Nova skips filters then."""
        flavor = self.first_or_second()
        found = [self.has(self.boot(flavor, az='nova:compute1'))[1]
                 for _server in range(3)]
        self.assertEqual([['H100'], ['H100'], ['A100']], found)

    def test_alternate_host_has_another_alternative(self):
        """The build fails on the only host that has the first one."""
        flavor = self.first_or_second()
        for _server in range(3):
            self.boot(flavor)
        original, failed = allocator.Allocator.for_spawn, []

        def fail_once(*args):
            if not failed:
                failed.append(args)
                raise exception.ComputeResourcesUnavailable(reason='no')
            return original(*args)

        with fixtures.MockPatchObject(allocator.Allocator, 'for_spawn',
                                      fail_once):
            server = self.boot(flavor)
        self.assertEqual((1, ['A100']), (len(failed), self.has(server)[1]))

    def test_no_alternative_fits(self):
        server = self.boot(self.profile(['CUSTOM_B200'], ['CUSTOM_H200']),
                           state='ERROR')
        message = self.api.get_server(server['id'])['fault']['message']
        self.assertEqual(
            'No valid host was found. No host can serve the request: at most '
            '0 of 1 free CUSTOM_GPU_H100 with CUSTOM_B200, or at most 0 of 1 '
            'free CUSTOM_GPU_H100 with CUSTOM_H200', message)

    def on_the_second(self):
        """Return a server that has an A100, since no H100 was free."""
        flavor = self.first_or_second()
        others = [self.boot(flavor) for _server in range(4)]
        server = self.boot(flavor)
        self.assertEqual(['A100'], self.has(server)[1])
        for other in others:
            self._delete_server(other)
        return server

    def test_cold_migration_chooses_again(self):
        server = self.on_the_second()
        before = self.hostdevs(server, self.has(server)[0])
        self._migrate_server(server)
        host, models = self.has(server)
        self.assertEqual(['H100'], models)
        self._revert_resize(server)
        self.assertEqual(before, self.hostdevs(server, self.has(server)[0]))

    def test_unshelving_chooses_again(self):
        server = self.on_the_second()
        self.flags(shelved_offload_time=0)
        self._shelve_server(server, expected_state='SHELVED_OFFLOADED')
        self._unshelve_server(server)
        self.assertEqual(['H100'], self.has(server)[1])

    def test_live_migration_keeps_the_alternative(self):
        server = self.on_the_second()
        for _there_and_back in range(2):
            before, _models = self.has(server)
            self._live_migrate(server)
            after, models = self.has(server)
            self.assertNotEqual(before, after)
            self.assertEqual(['A100'], models)

    def test_live_migration_while_the_class_moves(self):
        """Nova keeps the request with the old class."""
        server = self.on_the_second()
        self.flags(group='nova_accel', moved_classes={cloud.GPU: 'CUSTOM_GPU'},
                   device_spec=[
            spec.replace('"CUSTOM_GPU_H100"', '"CUSTOM_GPU"').replace(
                '"traits": "', f'"traits": "{cloud.GPU},')
            for spec in self.DEVICE_SPEC])
        [other] = self.computes.keys() - {self.has(server)[0]}
        for hosts in [other], [*self.computes] * 3:
            for host in hosts:
                # All nova-computes of the harness share it.
                self.flags(host=host)
                self.computes[host].manager.update_available_resource(
                    context.get_admin_context())
            self._live_migrate(server)
            self.assertEqual(['A100'], self.has(server)[1])
        self.assertNotIn('of no alternative', self.stdlog.logger.output)

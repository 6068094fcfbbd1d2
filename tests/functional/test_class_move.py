# SPDX-License-Identifier: Apache-2.0
"""Servers move from a resource class per model to one class, as they run."""

import contextlib
import io
import json
import pathlib
import types
from unittest import mock

import fixtures
from nova import context
from nova import exception

from nova_accel import moved_flavors
from nova_accel.cmd import main
from nova_accel.core import errors
from tests.functional import cloud
from tests.functional import openstack
from tests.functional import test_vgpu

_OLD, _NEW, _OTHER = cloud.GPU, 'CUSTOM_GPU', 'CUSTOM_GPU_OTHER'
_MOVES = {_OLD: _NEW, _OTHER: _NEW}
_PAIRS = {_OLD: '4[34]', _OTHER: '8[34]'}


def _entries(resource_class=None):
    """Return the entries of two pairs of GPUs: one class, or one for each."""
    return [json.dumps({
        'vendor_id': '10de', 'address': {'bus': bus}, 'live_migratable': 'yes',
        'resource_class': resource_class or name,
        'traits': [name] if resource_class else []})
        for name, bus in _PAIRS.items()]


class ClassMoveTest(cloud.Cloud):

    DEVICE_SPEC = tuple(_entries())

    def setUp(self):
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start_compute('compute1')
        self.profile('old', {_OLD: 1})
        self.profile('two', {_OLD: 1}, count=2)
        self.profile('other', {_OTHER: 1})

    def profile(self, name, resources, **group):
        self.write_profile(name, groups=[
            {'resources': resources, 'numa': 'off', **group}])
        return name

    def switch(self, *hosts):
        """Give the hosts the new class, as the operator does."""
        self.flags(device_spec=_entries(_NEW), moved_classes=_MOVES,
                   group='nova_accel')
        for host in hosts or ('compute1',):
            self.restart_compute_service(host)
        self.rounds()

    def rounds(self):
        """Run the periodic tasks of each nova-compute."""
        for host in [*self.computes] * 3:
            # All nova-computes of the harness share it.
            self.flags(host=host)
            self.computes[host].manager.update_available_resource(
                context.get_admin_context())

    def check_moved(self, server, count=1, trait=_OLD, host='compute1'):
        allocated = self.allocated(server)
        self.assertEqual([{_NEW: 1}] * count, [*allocated.values()])
        self.assertEqual(
            {name.rpartition('_')[2] for name in allocated},
            set(self.hostdevs(server, host)))
        specs = self.api.get_server(server['id'])['flavor']['extra_specs']
        self.assertEqual(str(count), specs[f'resources_ACCEL0:{_NEW}'])
        self.assertEqual('required', specs[f'trait_ACCEL0:{trait}'])
        self.assertNotIn(f'resources_ACCEL0:{_OLD}', specs)
        self.assertEqual([], self.disagreements(host))

    def usages(self):
        """Return the units in use in the project, by class of devices."""
        answer = self.ask_placement(
            '/usages?project_id=6f70656e737461636b20342065766572')['usages']
        return {name: amounts for name, amounts in answer.items()
                if name in (_OLD, _NEW, _OTHER) and amounts}

    def test_servers_that_run(self):
        pair, other = self.boot(self.flavor('two')), self.boot(
            self.flavor('other'))
        held = self.hostdevs(pair), self.hostdevs(other)
        self.switch()
        self.assertEqual(held, (self.hostdevs(pair), self.hostdevs(other)))
        self.check_moved(pair, 2)
        self.check_moved(other, trait=_OTHER)
        self.assertEqual({_NEW: 3}, self.usages())
        self.assertEqual({_NEW: 4}, self._get_provider_inventory_totals())
        self._reboot_server(pair, hard=True)
        self.assertEqual(held[0], self.hostdevs(pair))
        # A flavor that still asks for the old class.
        last = self.boot(self.flavor('other'))
        self.check_moved(last, trait=_OTHER)
        self.boot(self.flavor('other'), 'ERROR')
        for server in (pair, other, last):
            self._delete_server(server)
        self.assertEqual({}, self.usages())

    def test_steps_that_nova_compute_did_not_finish(self):
        server = self.boot(self.flavor('two'))
        held = self.hostdevs(server)
        for step in ('nova.objects.Instance.save',
                     'nova.scheduler.client.report.SchedulerReportClient.'
                     'post'):
            with fixtures.MonkeyPatch(step, self.die):
                self.switch()
            self.assertEqual({_OLD: 2}, self.usages())
            self._reboot_server(server, hard=True)
            self.assertEqual(held, self.hostdevs(server))
        self.rounds()
        self.check_moved(server, 2)

    def test_what_placement_answers_meanwhile(self):
        server = self.boot(self.flavor('two'))
        self.flags(device_spec=_entries(_NEW), moved_classes=_MOVES,
                   group='nova_accel')
        self.restart_compute_service('compute1')
        client = self.computes['compute1'].manager.reportclient
        get, page = client.get, types.SimpleNamespace(
            status_code=503, text='<html>', json=lambda: json.loads('<'))
        conflict = types.SimpleNamespace(
            status_code=409, text='placement.concurrent_update')
        unknown = exception.ResourceProviderAllocationRetrievalFailed(
            rp_uuid='u', error='503')
        for method, answers, reason in (
                ('get', lambda url, *args, **more: page if url.endswith(
                    '/inventories') else get(url, *args, **more),
                 'Placement does not return its inventories'),
                # A cold migration has begun.
                ('get_allocs_for_consumer', lambda *_args: {'allocations': {}},
                 f'consumer {server["id"]}: has no allocations any more'),
                ('get_allocations_for_resource_provider', mock.Mock(
                    side_effect=unknown),
                 'compute node compute1 keeps its resource classes: Failed'),
                ('post', lambda *_args, **_more: conflict,
                 'rejects the allocations of another class')):
            with fixtures.MockPatchObject(client, method, answers), (
                    fixtures.MockPatch('nova_accel.compute.reporting.'
                                       'tree_update.update')):
                self._run_periodics()
            self.assertIn(reason, self.stdlog.logger.output)
            self.assertEqual({_OLD: 2}, self.usages())
        self.assertNotIn('Could not move', self.stdlog.logger.output)
        self.rounds()
        self.check_moved(server, 2)

    def test_option_that_cannot_be_read(self):
        unreadable = mock.Mock()
        unreadable.nova_accel.moved_classes.items.side_effect = ValueError(
            'no pairs')
        with fixtures.MockPatchObject(moved_flavors, 'CONF', unreadable):
            self._reboot_server(self.boot(self.flavor('old')), hard=True)
        self.assertIn('[nova_accel] moved_classes is ignored, and servers '
                      'keep their resource classes: no pairs.',
                      self.stdlog.logger.output)

    def die(self, *_args, **_kwargs):
        raise errors.AssignmentError('nova-compute', 'died')

    def test_server_that_is_resized_follows(self):
        for end in self._confirm_resize, self._revert_resize:
            self.flags(device_spec=_entries(), moved_classes={},
                       group='nova_accel')
            self.restart_compute_service('compute1')
            server = self.boot(self.flavor('old'))
            self._resize_server(server, self.flavor('old'))
            self.switch()
            self.assertEqual({_OLD: 2}, self.usages())
            end(server)
            self.rounds()
            self.check_moved(server)
            self._delete_server(server)
            self.rounds()

    def test_evacuation_with_the_request_of_before(self):
        """Nova keeps the request specification, with the old class."""
        server = self.boot(self.flavor('old'))
        self.switch()
        self.start_compute('compute2')
        self.take_down('compute1')
        self._evacuate_server(server, expected_host='compute2')
        self.bring_back('compute1')
        self.rounds()
        self.check_moved(server, host='compute2')

    def test_live_migration(self):
        """From a host that is switched, and from one that is not."""
        servers = [self.boot(self.flavor('old')) for _server in range(2)]
        self.flags(device_spec=_entries(_NEW), moved_classes=_MOVES,
                   group='nova_accel')
        self.start_compute('compute2')
        self._live_migrate(servers[0], host='compute2')
        self.switch()
        self._live_migrate(servers[1], host='compute2')
        self.rounds()
        for server in servers:
            self.check_moved(server, host='compute2')
        self._delete_server(servers[0])

    def test_server_that_was_on_no_host(self):
        server = self._shelve_server(self.boot(self.flavor('old')))
        self.switch()
        self._unshelve_server(server)
        self.assertEqual(1, len(self.hostdevs(server)))
        self.rounds()
        self.check_moved(server)
        self._resize_server(server, self.flavor('other'))
        self._confirm_resize(server)
        self.rounds()
        self.check_moved(server, trait=_OTHER)

    def test_server_from_a_host_that_is_not_switched(self):
        server = self.boot(self.flavor('old'))
        self.flags(device_spec=_entries(_NEW), moved_classes=_MOVES,
                   group='nova_accel')
        self.start_compute('compute2')
        self._migrate_server(server)
        self.assertEqual(1, len(self.hostdevs(server, 'compute2')))
        self._confirm_resize(server)
        self.rounds()
        self.check_moved(server, host='compute2')

    def test_used_device_stays_reserved(self):
        used = [[json.dumps({**json.loads(entry), 'one_time_use': 'yes'})
                 for entry in _entries(name)] for name in (None, _NEW)]
        self.flags(device_spec=used[0], group='nova_accel')
        self.restart_compute_service('compute1')
        server = self.boot(self.flavor('old'))
        self.flags(device_spec=used[1], moved_classes=_MOVES,
                   group='nova_accel')
        self.restart_compute_service('compute1')
        # The start creates the class, and the first run moves the server.
        with fixtures.MonkeyPatch('nova_accel.compute.reporting.tree_update.'
                                  'update', self.die):
            self._run_periodics()
        self.assertEqual({_NEW: 1}, self.usages())
        [name] = self.allocated(server)
        provider = self.providers()[name]['uuid']
        self.assertEqual(1, self._get_provider_inventory(
            provider)[_NEW]['reserved'])
        self._delete_server(server)
        self.rounds()
        self.assertEqual(1, self._get_provider_inventory(
            provider)[_NEW]['reserved'])

    def test_entry_without_the_trait(self):
        """One device of a server keeps its class, and the other moves."""
        self.write_profile('both', groups=[
            {'resources': {name: 1}, 'numa': 'off'} for name in _PAIRS])
        server = self.boot(self.flavor('both'))
        held = self.hostdevs(server)
        first, second = map(json.loads, _entries(_NEW))
        self.flags(device_spec=[json.dumps({**first, 'traits': []}),
                                json.dumps(second)],
                   moved_classes=_MOVES, group='nova_accel')
        self.restart_compute_service('compute1')
        self.rounds()
        self.assertEqual({_OLD: 1, _NEW: 1}, self.usages())
        self.assertIn(f'its entry lacks the trait {_OLD}',
                      self.stdlog.logger.output)
        self._reboot_server(server, hard=True)
        self.assertEqual(held, self.hostdevs(server))
        self.assertNotIn('gets no devices', self.stdlog.logger.output)

    def migrate(self, *more):
        """Run the command; return the servers that are still to be moved."""
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'conf')
        path.write_text(f'[nova_accel]\nprofile_dirs = {self.profiles}\n'
                        + ''.join(f'device_spec = {entry}\n'
                                  for entry in _entries()))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(0, main.main([
                '--config-file', str(path), 'migrate', 'class', '--to', _NEW,
                *_PAIRS, '--directory', self.files, '-f', 'json', *more]))
        return {server['uuid']: server['effect']
                for server in json.loads(out.getvalue())['servers']}

    def test_command(self):
        client = openstack.Openstack(
            self.api.base_url, self.placement_fixture.endpoint, 'admin')
        self.useFixture(fixtures.MockPatch(
            'openstack.connect', return_value=client.cloud.sdk_connection))
        self.files = self.useFixture(fixtures.TempDir()).path
        plain = self.flavor(extra_spec={f'resources:{_OTHER}': '1'})
        servers = [self.boot(self.flavor('two')), self.boot(plain),
                   self._shelve_server(self.boot(plain))]
        self.assertEqual({server['id'] for server in servers},
                         self.migrate('--apply').keys())
        self.switch()
        for path in pathlib.Path(self.files).glob('*.yaml'):
            path.replace(pathlib.Path(self.profiles, path.name))
        # No profile is to be changed any more.
        left = self.migrate('--apply', '--from', '6')
        self.assertEqual([servers[2]['id']], [*left])
        self.assertIn('when it is unshelved', left[servers[2]['id']])
        self.assertEqual(
            {f'resources:{_NEW}': '1', f'trait:{_OTHER}': 'required'},
            self.api.api_get(f'/flavors/{plain}/os-extra_specs').body[
                'extra_specs'])
        self._unshelve_server(servers[2])
        self.rounds()
        self.assertEqual({}, self.migrate())
        self.assertEqual({_NEW: 4}, self.usages())
        self._delete_server(servers[1])
        self.boot(plain)
        self.assertEqual([], self.disagreements())

    def _get_provider_inventory_totals(self):
        return {name: record['total'] for name, record in
                self._get_provider_inventory(
                    self.class_provider(_NEW)).items()}


class SharedTest(cloud.Cloud):
    """Two servers have virtual functions of one card."""

    OLD = ('{"vendor_id": "8086", "product_id": "37c9", '
           '"resource_class": "CUSTOM_QAT"}',)
    NEW = ('{"vendor_id": "8086", "product_id": "37c9", '
           '"resource_class": "CUSTOM_CRYPTO", "traits": ["CUSTOM_QAT"]}')
    DEVICE_SPEC = OLD

    def test_servers_that_share_a_provider(self):
        self.flags(sysfs_root=str(cloud.A100), group='nova_accel')
        self.start_compute('compute1')
        flavor = self.flavor(extra_spec={'resources:CUSTOM_QAT': '1'})
        servers = [self.boot(flavor), self.boot(flavor)]
        held = [*map(self.hostdevs, servers)]
        provider = self.class_provider('CUSTOM_QAT')
        self.flags(device_spec=[self.NEW], group='nova_accel',
                   moved_classes={'CUSTOM_QAT': 'CUSTOM_CRYPTO'})
        # One of them is in the middle of an operation: both wait.
        self.set_task_state(servers[0], 'powering-off')
        with fixtures.MonkeyPatch('nova.compute.manager.ComputeManager.'
                                  '_init_instance', lambda *_args: None):
            self.restart_compute_service('compute1')
        self._run_periodics()
        self.assertEqual({'CUSTOM_QAT': 2},
                         self._get_provider_usages(provider))
        self.set_task_state(servers[0], None)
        for _round in range(3):
            self._run_periodics()
        for server, before in zip(servers, held, strict=True):
            self.assertEqual([{'CUSTOM_CRYPTO': 1}],
                             [*self.allocated(server).values()])
            self.assertEqual(before, self.hostdevs(server))
        self.assertEqual([], self.disagreements())


class RegionsTest(test_vgpu.Vgpus):
    """A card has a resource provider for each type of vGPU."""

    def offer(self, resource_class=None, **more):
        self.flags(device_spec=[json.dumps({
            **json.loads(spec), 'live_migratable': 'yes',
            'resource_class': resource_class or name,
            'traits': [f'CUSTOM_{name.removeprefix("CUSTOM_")}']})
            for spec, name in ((test_vgpu.SMALL_SPEC, test_vgpu.SMALL),
                               (test_vgpu.LARGE_SPEC, test_vgpu.LARGE))],
            group='nova_accel', **more)
        self.restart_compute_service('compute1')

    def test_server_keeps_its_class_until_it_moves(self):
        self.offer()
        server = self.boot(self.small)
        has, allocated = self.has(server), self.as_placement_has_it(server)
        self.offer(_NEW, moved_classes=dict.fromkeys(
            [test_vgpu.SMALL, test_vgpu.LARGE], _NEW))
        for _run in range(2):
            self._run_periodics()
        small = 'compute1_accel_0000:41:00.0_CUSTOM_GPU_NVIDIA_L40S-16Q'
        self.assertEqual({test_vgpu.SMALLS: 0, small: 2}, self.totals())
        log = self.stdlog.logger.output
        self.assertEqual(1, log.count(
            f'{test_vgpu.SMALLS}: keeps the class VGPU: no entry offers its '
            'devices under this name any more; migrate or resize the servers'))
        # No server has had a large one.
        self.assertNotIn('keeps the class CUSTOM_VGPU_LARGE', log)
        self._reboot_server(server, hard=True)
        self.assertEqual((has, allocated), (
            self.has(server), self.as_placement_has_it(server)))
        self.start_machine('compute2')
        self._live_migrate(server)
        self.assertEqual([{_NEW: 1}], [*self.allocated(server).values()])
        self._run_periodics()
        self.assertEqual(3, self.totals()[small])

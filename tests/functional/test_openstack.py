# SPDX-License-Identifier: Apache-2.0
"""The ``openstack accel`` commands."""

import os
from xml.etree import ElementTree

import prometheus_client
from prometheus_client import parser

from nova_accel.cmd import collector
from nova_accel.core import errors
from tests.functional import cloud
from tests.functional import openstack

#: Number of servers to boot on a host with a drained device.
_BOOTS = int(os.environ.get('NOVA_ACCEL_BOOTS', 5))
_FIRST = '0000:43:00.0'
_GPUS = [f'0000:{bus}:00.0' for bus in ('43', '44', '83', '84')]


class OpenstackCase(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.openstack = self.user('admin')
        self.gpu_profile('one')
        self.one = self.flavor('one')

    def user(self, name):
        return openstack.Openstack(
            self.api.base_url, self.placement_fixture.endpoint, name)

    def devices(self, *arguments):
        return {row['Address']: row for row in self.openstack.run(
            'accel device list', *arguments)}


class ListTest(OpenstackCase):

    def test_nothing_before_a_nova_compute_has_reported_devices(self):
        self.assertEqual([], self.openstack.run('accel device list'))
        self.assertEqual([], self.openstack.run('accel host list'))
        self.start_compute('compute1')
        self.assertEqual(4, len(self.openstack.run('accel device list')))

    def test_devices_of_all_hosts(self):
        for name in ('compute1', 'compute2'):
            self.start_compute(name)
        server = self.boot(self.one, host='compute2')
        [address] = self.hostdevs(server, 'compute2')
        rows = self.openstack.run('accel device list')
        self.assertEqual([(host, at) for host in ('compute1', 'compute2')
                          for at in _GPUS],
                         [(row['Host'], row['Address']) for row in rows])
        self.assertEqual(
            {('compute2', address): ('held', 1, 0)},
            {(row['Host'], row['Address']): (
                row['Status'], row['Used'], row['Free'])
             for row in rows if row['Status'] != 'free'})
        self.assertEqual({cloud.GPU}, {row['Resource Class'] for row in rows})

    def test_devices_of_more_hosts_than_placement_has_candidates(self):
        for name in ('compute1', 'compute2', 'compute3'):
            self.start_compute(name)
        self.boot(self.one, host='compute3')
        rows = self.openstack.run('accel device list')
        self.placement_fixture.conf_fixture.config(
            group='placement', max_allocation_candidates=1)
        self.assertEqual(rows, self.openstack.run('accel device list'))
        self.assertEqual(12, len(rows))

    def test_location_and_server_of_each_device(self):
        self.start_compute('compute1')
        server = self.boot(self.one)
        [address] = self.hostdevs(server)
        rows = self.devices('--long', '--host', 'compute1')
        self.assertEqual(
            {at: [server['id']] if at == address else [] for at in _GPUS},
            {at: row['Servers'] for at, row in rows.items()})
        self.assertEqual(
            ('0', 'pci0000:40', '0000:41:00.0', ['CUSTOM_NVLINK']),
            tuple(rows[_FIRST][name] for name in (
                'NUMA Node', 'PCIe Root', 'PCIe Switch', 'Traits')))
        self.assertEqual(
            [server['project_id'] if 'project_id' in server
             else server['tenant_id']], rows[address]['Projects'])
        shown = self.openstack.run('accel device show',
                                   f'compute1/{address}')
        self.assertEqual(shown, self.openstack.run('accel device show',
                                                   shown['id']))
        self.assertEqual(
            ([f'{cloud.GPU}: held, 1 used, 0 free'],
             [f'{server["id"]} {server["name"]}']),
            (shown['regions'], shown['servers']))

    def test_device_types_of_a_card_have_a_row_each(self):
        self.flags(sysfs_root=str(cloud.A100), device_spec=[cloud.VGPU_SPEC],
                   group='nova_accel')
        self.start_compute('compute1')
        rows = self.openstack.run('accel device list',
                                  '--resource-class', 'VGPU')
        self.assertEqual([('free', 0, 4)], [
            (row['Status'], row['Used'], row['Free']) for row in rows])

    def test_host_is_drawn_as_a_tree(self):
        self.start_compute('compute1')
        text = self.openstack.run('accel host show', 'compute1',
                                  output='table')
        lines = [line.split('|')[2].strip() for line in text.splitlines()
                 if _FIRST in line or 'switch' in line]
        self.assertTrue(lines[0].endswith('└─ PCIe switch 0000:41:00.0'))
        self.assertIn(f'   ├─ {_FIRST}', lines[1])
        [row] = self.openstack.run('accel host list')
        self.assertEqual(('compute1', 4, 0, 4, 0), tuple(
            row[name] for name in ('Name', 'Devices', 'Used', 'Free',
                                   'Withheld')))

    def test_hosts_are_drawn_with_the_projects_that_hold_devices(self):
        for name in ('compute1', 'compute2'):
            self.start_compute(name)
        server = self.boot(self.one, host='compute2')
        [address] = self.hostdevs(server, 'compute2')
        self.openstack.run('accel device set', f'compute1/{_FIRST}',
                           '--drain', 'fan')
        [service] = self.api.get_services(host='compute1')
        self.api.put_service(service['id'], {'status': 'disabled'})
        drawn = ElementTree.fromstring(
            self.openstack.run('accel host draw', output=''))
        cells = {group[0].text.splitlines()[0]: group for group in drawn.iter(
            '{http://www.w3.org/2000/svg}g')}
        self.assertEqual(
            [f'{host}/{at}' for host in ('compute1', 'compute2')
             for at in _GPUS], list(cells))
        [project] = self.openstack.run(
            'accel device show', f'compute2/{address}')['projects']
        self.assertIn(f'1 of server {server["id"]}, project {project}',
                      cells[f'compute2/{address}'][0].text)
        self.assertEqual(
            {f'compute1/{_FIRST}': 'aside', f'compute2/{address}': 'p0'},
            {name: group[1].get('class') for name, group in cells.items()
             if group[1].get('class') != 'free'})
        texts = [text.text for text in drawn.iter(
            '{http://www.w3.org/2000/svg}text')]
        self.assertIn('2 compute nodes, 8 devices, 8 units: 1 held, 6 free, '
                      '1 withheld', texts)
        self.assertIn(project, texts)
        self.assertIn('nova-compute is disabled', texts)
        for arguments, count in ((['compute2'], 4), (
                ['--resource-class', 'CUSTOM_X'], 0)):
            drawn = self.openstack.run('accel host draw', *arguments,
                                       output='')
            self.assertEqual(count, drawn.count('<g>'))

    def test_tenant_is_refused(self):
        self.start_compute('compute1')
        error = self.assertRaises(errors.AccelError, self.user('fake').run,
                                  'accel device list')
        self.assertIn('does not allow this user', str(error))

    def test_unknown_names(self):
        self.start_compute('compute1')
        for command, name in (('host', 'compute2'),
                              ('device', 'compute1/0000:45:00.0'),
                              ('device', self.compute_rp_uuids['compute1']),
                              ('device', 'x')):
            self.assertRaises(errors.AccelError, self.openstack.run,
                              f'accel {command} show', name)


class MetricsTest(OpenstackCase):
    """The metrics that ``nova-accel metrics`` reads from Placement."""

    def metrics(self):
        found = prometheus_client.CollectorRegistry()
        found.register(collector.Collector(collector.Reading(
            0, None, 0, collector.read_node(self.ask_placement, 'compute1'),
            None)))
        return lambda name, **labels: found.get_sample_value(
            f'nova_accel_{name}', labels)

    def states(self, resource_class=cloud.GPU):
        found = self.metrics()
        return [found('units', resource_class=resource_class, state=state)
                for state in ('free', 'held', 'withheld')]

    def test_units_and_server_of_a_drained_device(self):
        self.start_compute('compute1')
        self.assertEqual([4, 0, 0], self.states())
        server = self.boot(self.one)
        [address] = self.hostdevs(server)
        self.assertEqual([3, 1, 0], self.states())
        self.openstack.run('accel device set', f'compute1/{address}',
                           '--drain', 'fan')
        self._run_periodics()
        self.assertEqual([3, 1, 0], self.states())
        device = {'address': address, 'region': '',
                  'resource_class': cloud.GPU}
        project = self.openstack.run('accel device show',
                                     f'compute1/{address}')['projects'][0]
        found = self.metrics()
        self.assertEqual(1, found('device_allocation_info', **device,
                                  server=server['id'], project=project))
        self.assertEqual(1, found('project_units', project=project,
                                  resource_class=cloud.GPU))
        self.assertEqual(1, found('device_withheld_units', **device,
                                  reason='drained'))
        self.assertTrue(found('device_drained_timestamp_seconds',
                              address=address, reason='fan'))
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual([3, 0, 1], self.states())

    def test_other_virtual_functions_of_a_drained_card_are_withheld(self):
        self.directory_host(cloud.A100)
        self.flags(device_spec=cloud.VF_SPECS, group='nova_accel')
        self.start_compute('compute1')
        self.write_profile('vf', groups=[{'resources': {'CUSTOM_VF': 1}}])
        self.boot(self.flavor('vf'))
        self.assertEqual([5, 1, 0], self.states('CUSTOM_VF'))
        for address, row in self.devices().items():
            if row['Used']:
                self.openstack.run('accel device set', f'compute1/{address}',
                                   '--drain', '')
                others = row['Free']
        self.assertEqual([5 - others, 1, others], self.states('CUSTOM_VF'))


class DrainTest(OpenstackCase):

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')

    def drain(self, thing, name, *arguments):
        self.openstack.run(f'accel {thing} set', name,
                           *(arguments or ('--drain', 'fan is loud')))

    def free(self):
        """Return the addresses of free devices, and the class's free units."""
        provider = self.class_provider(cloud.GPU)
        inventory = self._get_provider_inventory(provider)[cloud.GPU]
        return ({at for at, row in self.devices().items() if row['Free']},
                inventory['total'] - inventory['reserved']
                - self._get_provider_usages(provider)[cloud.GPU])

    def test_no_new_server_gets_a_drained_device(self):
        self.drain('device', f'compute1/{_FIRST}')
        self.assertNotIn(_FIRST, self.free()[0])
        self._run_periodics()
        self.assertEqual((set(_GPUS[1:]), 3), self.free())
        [reason] = self.devices()[_FIRST]['Reason']
        self.assertTrue(reason.startswith('drained: fan is loud (since 20'))
        self.restart_compute_service('compute1')
        for _number in range(_BOOTS):
            server = self.boot(self.one)
            self.assertNotIn(_FIRST, self.hostdevs(server))
            self._delete_server(server)
        self.drain('device', f'compute1/{_FIRST}', '--undrain')
        self.assertIn(_FIRST, self.free()[0])
        self._run_periodics()
        self.assertEqual((set(_GPUS), 4), self.free())

    def test_server_keeps_its_drained_device(self):
        server = self.boot(self.one)
        [address] = self.hostdevs(server)
        self.drain('device', f'compute1/{address}')
        self._run_periodics()
        self.assertEqual('held', self.devices()[address]['Status'])
        self._reboot_server(server, hard=True)
        self.restart_compute_service('compute1')
        self.assertEqual([address], list(self.hostdevs(server)))
        self.assertEqual([], self.disagreements())
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual('withheld', self.devices()[address]['Status'])

    def test_drained_host(self):
        server = self.boot(self.one)
        self.drain('host', 'compute1')
        self._run_periodics()
        self.assertEqual((set(), 0), self.free())
        self.boot(self.one, state='ERROR')
        self._reboot_server(server, hard=True)
        [row] = self.openstack.run('accel host list')
        self.assertTrue(row['Drained'].startswith('fan is loud'))
        self.drain('host', 'compute1', '--undrain')
        self._run_periodics()
        self.assertEqual(3, len(self.free()[0]))

    def test_drain_of_a_device_outlives_that_of_its_host(self):
        self.drain('device', f'compute1/{_FIRST}')
        self.drain('host', 'compute1')
        self.drain('host', 'compute1', '--undrain')
        self._run_periodics()
        self.assertEqual((set(_GPUS[1:]), 3), self.free())

    def test_drain_outlives_the_absence_of_its_device(self):
        self.drain('device', f'compute1/{_FIRST}')
        self._run_periodics()
        self.flags(device_spec=['{"address": "0000:44:00.0", '
                                '"resource_class": "CUSTOM_GPU_H100"}'],
                   group='nova_accel')
        self._run_periodics()
        self.assertIn(_FIRST, self.devices())
        self.flags(device_spec=list(self.DEVICE_SPEC), group='nova_accel')
        self._run_periodics()
        self.assertEqual((set(_GPUS[1:]), 3), self.free())

    def test_traits_of_drains_that_ended_are_deleted(self):
        self.drain('device', f'compute1/{_FIRST}')
        self.drain('device', f'compute1/{_FIRST}', '--drain', 'other')
        self.drain('device', f'compute1/{_FIRST}', '--undrain')
        self.assertEqual([], [trait for trait in self._get_all_traits()
                              if '_DRAIN_' in trait])


class DrainMdevTest(OpenstackCase):

    def test_server_keeps_mdevs_of_a_drained_card(self):
        self.directory_host(cloud.A100)
        self.flags(device_spec=[cloud.VGPU_SPEC], group='nova_accel')
        self.start_compute('compute1')
        self.write_profile('mdev', groups=[{'resources': {'VGPU': 1}}])
        flavor = self.flavor('mdev')
        server = self.boot(flavor)
        [address] = self.devices()
        self.openstack.run('accel device set', f'compute1/{address}',
                           '--drain', '')
        self._run_periodics()
        self.boot(flavor, state='ERROR')
        before = self.hostdevs(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.hostdevs(server))


class CapacityTest(OpenstackCase):
    """Two hosts with four devices each, two on each NUMA node."""

    def setUp(self):
        super().setUp()
        self.gpu_profile('two', 2)
        self.two = self.flavor('two')
        for name in ('compute1', 'compute2'):
            self.start_compute(name)

    def capacity(self, *arguments):
        return self.openstack.run('accel capacity list', *arguments)

    def explain(self, *arguments):
        return self.openstack.run('accel explain', *arguments)

    def with_files(self):
        return '--profile-dir', self.profiles

    def test_units_of_classes_hosts_aggregates_and_projects(self):
        server = self.boot(self.two, host='compute1')
        [address, _other] = self.hostdevs(server)
        for host, at in (('compute2', _FIRST), ('compute1', address)):
            self.openstack.run('accel device set', f'{host}/{at}',
                               '--drain', 'fan')
        self._run_periodics()
        aggregate = self.api.post_aggregate({'aggregate': {'name': 'gold'}})
        self.api.add_host_to_aggregate(aggregate['id'], 'compute2')
        drained = [{'units': 1, 'reason': 'drained'}]
        rows = {by: [tuple(row.values()) for row in self.capacity('--by', by)]
                for by in ('class', 'host', 'aggregate', 'project')}
        project = rows['project'][0][0]
        self.assertEqual({
            'class': [(cloud.GPU, 8, 2, 5, 1, drained)],
            'host': [('compute1', cloud.GPU, 4, 2, 2, 0, []),
                     ('compute2', cloud.GPU, 4, 0, 3, 1, drained)],
            'aggregate': [('gold', cloud.GPU, 4, 0, 3, 1, drained),
                          (None, cloud.GPU, 4, 2, 2, 0, [])],
            'project': [(project, cloud.GPU, 2, 1)]}, rows)
        self.assertEqual([project], self.openstack.run(
            'accel device show', f'compute1/{address}')['projects'])
        self.assertEqual([], self.capacity('--resource-class', 'CUSTOM_X'))
        self.assertEqual(
            'Resource Class,Total,Used,Free,Withheld,Reasons',
            self.openstack.run('accel capacity list',
                               output='csv').splitlines()[0].replace('"', ''))

    def test_servers_of_each_profile_that_fit(self):
        """Exactly as many servers as ``capacity list`` shows can boot."""
        for _host in ('compute1', 'compute2'):
            # Take one of the two devices of a NUMA node.
            self.boot(self.one, host=_host)
        rows = {row['Profile']: row for row in self.capacity(
            '--by', 'profile', '--long', *self.with_files())}
        self.assertEqual(
            {'one': (2, 6, 6, 0), 'two': (0, 2, 6, 2)},
            {name: tuple(row[key] for key in (
                'Servers', 'Fits', 'Free', 'Stranded'))
             for name, row in rows.items()})
        self.assertEqual([{'units': 2, 'reason': 'fewer than 2 free '
                           f'{cloud.GPU}'}], rows['two']['Reasons'])
        self.assertEqual(
            [{'hosts': ['compute1', 'compute2'], 'fits': 1, 'stranded': 1,
              'reason': f'1 free, but at most 1 of 2 free {cloud.GPU}'}],
            rows['two']['Hosts'])
        for state in ('ACTIVE', 'ACTIVE', 'ERROR'):
            self.boot(self.two, state=state)

    def test_metrics_of_profiles_are_those_of_the_list(self):
        for host in ('compute1', 'compute2'):
            self.boot(self.one, host=host)
        self.gpu_profile('three', 3)
        self.boot(self.flavor('three'), state='ERROR')
        found = {(sample.name.removeprefix('nova_accel_'),
                  *sample.labels.values()): sample.value
                 for family in parser.text_string_to_metric_families(
                     self.openstack.run('accel metrics', *self.with_files(),
                                        output=''))
                 for sample in family.samples}
        self.assertGreater(
            found.pop(('profiles_last_run_timestamp_seconds',)), 0)
        self.assertEqual({
            ('profile_servers', 'one', 'ACTIVE'): 2,
            ('profile_servers', 'three', 'ERROR'): 1,
            **{(f'profile_{name}', row['Profile']): row[column]
               for row in self.capacity('--by', 'profile',
                                        *self.with_files())
               for name, column in (('fitting_servers', 'Fits'),
                                    ('stranded_units', 'Stranded'))}}, found)
        self.assertEqual(6, found['profile_stranded_units', 'three'])

    def test_explanation_is_the_reason_of_the_scheduler(self):
        self.gpu_profile('three', 3)
        three = self.flavor('three', name='three')
        asked = f'3 free {cloud.GPU}'
        shown = self.explain('--flavor', 'three', *self.with_files())
        self.assertEqual(
            (False, 0, f'no host has {asked} on one NUMA node; of the hosts '
             'that have them, the most on one is 2', [
                 {'hosts': 2, 'reason': f'at most 2 of {asked} on one NUMA '
                  'node'}]),
            tuple(shown[key] for key in ('fits', 'servers', 'reason',
                                         'hosts')))
        server = self.boot(three, state='ERROR')
        self.assertIn('has no valid host for three: same numa_node',
                      self.stdlog.logger.output)
        # The server's flavor has the expanded profile, so no files are needed.
        for arguments in (['--server', server['id']], ['--profile', 'three']):
            self.assertEqual(shown['reason'],
                             self.explain(*arguments)['reason'])

    def test_explanation_of_a_server_that_fits(self):
        shown = self.explain('--profile', 'two', '--long', *self.with_files())
        self.assertEqual((True, 4, None, [
            {'hosts': [name], 'fits': 2, 'stranded': 0, 'reason': ''}
            for name in ('compute1', 'compute2')]), tuple(
            shown[key] for key in ('fits', 'servers', 'reason', 'hosts')))
        self.assertEqual(2, self.explain(
            '--profile', 'two', '--host', 'compute1',
            *self.with_files())['servers'])

    def test_host_domains_of_a_flavor_that_asks_for_one(self):
        self.gpu_profile('rack', 2, same_domain='required')
        aggregate = self.api.post_aggregate({'aggregate': {'name': 'rack1'}})
        self.api.add_host_to_aggregate(aggregate['id'], 'compute1')
        self.api.post_aggregate_action(aggregate['id'], {
            'set_metadata': {'metadata': {'nova_accel:domain': 'rack1'}}})
        shown = self.explain('--profile', 'rack', *self.with_files())
        self.assertEqual(
            (2, [{'servers': 2, 'reason': 'rack1'}],
             {'hosts': 1, 'reason': 'the host is in no host domain'}),
            (shown['servers'], shown['host_domains'], shown['hosts'][-1]))
        self.assertNotIn('host_domains', self.explain(
            '--profile', 'two', *self.with_files()))

    def test_hosts_that_get_no_servers(self):
        self.boot(self.two, host='compute2')
        for name in ('compute1', 'compute2'):
            [service] = self.api.get_services(host=name)
            self.api.put_service(service['id'], {'status': 'disabled'})
        self.openstack.run('accel device set', f'compute1/{_FIRST}',
                           '--drain', 'fan')
        shown = self.explain('--profile', 'two', *self.with_files())
        self.assertEqual(
            ('no host can serve the request: nova-compute is disabled',
             [{'hosts': 2, 'reason': 'nova-compute is disabled'}],
             [{'units': 1, 'reason': 'drained'}]),
            (shown['reason'], shown['hosts'], shown['withheld']))
        rows = {row['Profile']: row for row in self.capacity(
            '--by', 'profile', *self.with_files())}
        self.assertEqual((0, 5, 1, [
            {'units': 5, 'reason': 'nova-compute is disabled'},
            {'units': 1, 'reason': 'drained'}]), tuple(
            rows['two'][key] for key in ('Fits', 'Stranded', 'Withheld',
                                         'Reasons')))

    def test_errors_have_a_remedy(self):
        plain = self.flavor()
        for arguments, words in (
                (['--profile', 'none'], 'see "openstack accel profile list"'),
                (['--flavor', 'none'], 'see "openstack flavor list"'),
                (['--server', 'none'], 'see "openstack server list"'),
                (['--flavor', plain], 'asks for no devices'),
                (['--profile', 'two'], 'set --profile-dir'),
                (['--profile', 'two', '--profile-dir', '/nowhere'],
                 'is not a directory')):
            error = self.assertRaises(errors.AccelError, self.explain,
                                      *arguments)
            self.assertIn(words, str(error))
        # A profile with an error does not hide the others.
        self.boot(self.one)
        one, two = self.capacity('--by', 'profile')
        self.assertEqual(('one', 7, 'two', None), (
            one['Profile'], one['Fits'], two['Profile'], two['Fits']))
        self.assertIn('set --profile-dir', two['Reasons'][0]['reason'])


class ProfileTest(OpenstackCase):

    def setUp(self):
        super().setUp()
        self.write_profile(
            'pair', description='two of them', affinity=[
                {'same': 'pcie_switch'}], groups=[
                {'resources': {cloud.GPU: 1}, 'count': 2, 'numa': 'off',
                 'traits': {'CUSTOM_NVLINK': 'required'}}])
        self.pair = self.flavor('pair', name='pair-flavor')
        self.start_compute('compute1')

    def test_profiles_with_their_flavors_and_servers(self):
        self.boot(self.pair)
        group = {f'resources:{cloud.GPU}': '1',
                 'trait:CUSTOM_NVLINK': 'required'}
        rows = {row['name']: row
                for row in self.openstack.run('accel profile list')}
        self.assertEqual({
            'one': {'name': 'one', 'groups': None, 'description': None,
                    'flavors': 1, 'servers': 0},
            'pair': {'name': 'pair', 'groups': [group, group],
                     'description': None, 'flavors': 1, 'servers': 1}}, rows)
        shown = {key: self.openstack.run('accel profile show', 'pair', *more)
                 for key, more in (('server', []), (
                     'file', ['--profile-dir', self.profiles]))}
        self.assertEqual(('two of them', None),
                         (shown['file'].pop('description'),
                          shown['server'].pop('description')))
        self.assertEqual(shown['file'], shown['server'])
        self.assertEqual(
            ([group, group], ['pair-flavor'],
             ['same pcie_switch of ACCEL0-1 (required)']),
            tuple(shown['file'][key] for key in ('groups', 'flavors',
                                                 'affinity')))
        self.assertIn(f'2 × 1 {cloud.GPU} with CUSTOM_NVLINK',
                      self.openstack.run('accel profile show', 'pair',
                                         output='table'))

    def test_alternatives(self):
        traits = ['CUSTOM_H200'], ['CUSTOM_NVLINK'], []
        self.write_profile('any', groups=[{
            'resources': {cloud.GPU: 1}, 'numa': 'off', 'any_of': traits}])
        server = self.boot(self.flavor('any'))
        [row] = [row for row in self.openstack.run('accel profile list')
                 if row['name'] == 'any']
        self.assertEqual([{f'resources:{cloud.GPU}': '1', 'any_of': [
            *traits]}], row['groups'])
        self.assertIn('with CUSTOM_H200 else CUSTOM_NVLINK else any',
                      self.openstack.run('accel profile show', 'any',
                                         output='table'))
        [device] = self.openstack.run('accel server show',
                                      server['name'])['devices']
        self.assertEqual('ACCEL0', device['groups'])
        shown = self.openstack.run('accel explain', '--profile', 'any')
        self.assertEqual((3, [
            {'servers': 0, 'reason': 'CUSTOM_H200'},
            {'servers': 3, 'reason': 'CUSTOM_NVLINK'},
            {'servers': 0, 'reason': 'any'}]),
            (shown['servers'], shown['alternatives']))

    def test_devices_of_a_server(self):
        server = self.boot(self.pair)
        shown = self.openstack.run('accel server show', server['name'])
        self.assertEqual(
            ('pair-flavor', 'pair', 'compute1',
             [(at, cloud.GPU, 1, 'ACCEL0 ACCEL1')
              for at in sorted(self.hostdevs(server))]),
            (shown['flavor'], shown['profile'], shown['host'],
             [(row['address'], row['resource_class'], row['units'],
               row['groups']) for row in shown['devices']]))
        self.assertEqual(
            sorted(alias.split('-')[3:8]
                   for alias in self.hostdevs(server).values()),
            sorted(row['id'].split('-') for row in shown['devices']))

    def test_tenant_sees_no_host_and_no_device(self):
        server = self.boot(self.pair)
        shown = self.user('fake').run('accel server show', server['id'])
        self.assertEqual(
            {'id', 'name', 'flavor', 'profile', 'groups', 'affinity'},
            set(shown))
        self.assertEqual(2, len(shown['groups']))
        self.assertIn('pair', {row['name'] for row in self.user('fake').run(
            'accel profile list')})
        error = self.assertRaises(
            errors.AccelError, self.user('fake').run, 'accel explain',
            '--server', server['id'])
        self.assertIn('use the credentials of an administrator', str(error))

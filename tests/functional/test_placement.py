# SPDX-License-Identifier: Apache-2.0
"""The resource providers that nova-compute reports to Placement."""

import pathlib
import shutil

import fixtures

from nova_accel.core import naming
from nova_accel.core.placement import providers
from tests.functional import cloud


class PlacementTest(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.write_marks()

    def update(self):
        """Run the resource tracker, and return its writes to Placement."""
        with self.placement_requests() as requests:
            self._run_periodics()
        self.assertIn('get', {method for method, _url in requests})
        return [(method, url) for method, url in requests if method != 'get']

    def totals(self, host='compute1'):
        return {name: {resource_class: (record['total'], record['reserved'])
                       for resource_class, record in
                       self._get_provider_inventory(provider['uuid']).items()}
                for name, provider in self.providers(host).items()}

    def traits(self, name, host='compute1'):
        return self._get_provider_traits(self.providers(host)[name]['uuid'])

    def test_one_provider_per_device(self):
        self.start_compute('compute1')
        self.assertEqual(
            {f'compute1_accel_0000:{bus}:00.0': {cloud.GPU: (1, 0)}
             for bus in ('43', '44', '83', '84')},
            self.totals())
        self.assertCountEqual(
            ['CUSTOM_NOVA_ACCEL', 'CUSTOM_NVLINK', 'OWNER_NOVA',
             'CUSTOM_NOVA_ACCEL_PCI_10DE_2330',
             'CUSTOM_NOVA_ACCEL_NUMA_NODE_0',
             'CUSTOM_NOVA_ACCEL_PCIE_ROOT_PCI0000_40',
             'CUSTOM_NOVA_ACCEL_PCIE_SWITCH_0000_41_00_0'],
            self.traits('compute1_accel_0000:43:00.0'))

    def test_equal_hosts_have_separate_providers(self):
        self.start_compute('compute1')
        self.start_compute('compute2')
        uuids = [provider['uuid'] for host in ('compute1', 'compute2')
                 for provider in self.providers(host).values()]
        self.assertEqual(8, len(set(uuids)))

    def test_nothing_is_written_without_a_change(self):
        self.start_compute('compute1')
        self.gpu_profile('gpu')
        self.boot(self.flavor('gpu'))
        self.assertEqual([], self.update())

    def test_restart_writes_nothing(self):
        self.start_compute('compute1')
        before = {name: provider['generation']
                  for name, provider in self.providers().items()}
        self.restart_compute_service('compute1')
        self.assertEqual(before, {
            name: provider['generation']
            for name, provider in self.providers().items()})

    def test_one_time_use_device_waits_for_the_operator(self):
        """A one_time_use device stays reserved until the operator frees it.

        It is reserved as soon as a server gets it.
        """
        self.flags(sysfs_root=str(cloud.A100), device_spec=[
            '{"address": "0000:81:00.0", "resource_class": "CUSTOM_SSD", '
            '"one_time_use": "yes"}'], group='nova_accel')
        self.start_compute('compute1')
        [name] = self.totals()
        self.assertIn(naming.ONE_TIME_USE_TRAIT, self.traits(name))
        self.write_profile('ssd', groups=[{'resources': {'CUSTOM_SSD': 1}}])
        flavor = self.flavor('ssd')
        server = self.boot(flavor)
        self.assertEqual({name: {'CUSTOM_SSD': (1, 1)}}, self.totals())
        self._delete_server(server)
        self.restart_compute_service('compute1')
        self._run_periodics()
        self.assertEqual({name: {'CUSTOM_SSD': (1, 1)}}, self.totals())
        self.boot(flavor, state='ERROR')
        # Do what "openstack resource provider inventory set --amend" does.
        url = (f'/resource_providers/{self.providers()[name]["uuid"]}'
               '/inventories/CUSTOM_UNIT_OF_CUSTOM_SSD')
        self.placement.put(
            url, {**self.placement.get(url).body, 'reserved': 0},
            version='1.26')
        # A SIGHUP makes nova-compute read the change at once, not minutes
        # later.
        self.computes['compute1'].manager.reset()
        self._run_periodics()
        self.boot(flavor)

    def test_virtual_functions_are_one_pool(self):
        self.flags(sysfs_root=str(cloud.DATA / 'hosts' / 'l1.json'),
                   device_spec=['{"vendor_id": "8086", "product_id": "37c9", '
                                '"resource_class": "CUSTOM_QAT"}'],
                   group='nova_accel')
        self.start_compute('compute1')
        self.assertEqual(
            {'compute1_accel_0000:85:00.0': {'CUSTOM_QAT': (2, 0)}},
            self.totals())
        self.write_profile('qat', groups=[{'resources': {'CUSTOM_QAT': 2}}])
        server = self.boot(self.flavor('qat'))
        self.assertEqual({'0000:85:01.0', '0000:85:01.1'},
                         set(self.hostdevs(server)))
        self.boot(self.flavor('qat'), state='ERROR')

    def test_two_kinds_of_functions_on_one_card(self):
        self.flags(sysfs_root=str(cloud.DATA / 'hosts' / 'l1.json'),
                   device_spec=[
                       '{"address": "0000:44:00.4", "resource_class": "BIG"}',
                       '{"vendor_id": "10de", "product_id": "20b0", '
                       '"resource_class": "SMALL"}'], group='nova_accel')
        self.start_compute('compute1')
        self.assertEqual(
            {'compute1_accel_0000:44:00.0': {},
             'compute1_accel_0000:44:00.0_CUSTOM_BIG': {'CUSTOM_BIG': (1, 0)},
             'compute1_accel_0000:44:00.0_CUSTOM_SMALL':
                 {'CUSTOM_SMALL': (3, 0)}}, self.totals())
        self.write_profile('both', groups=[
            {'resources': {'CUSTOM_BIG': 1}},
            {'resources': {'CUSTOM_SMALL': 2}}])
        server = self.boot(self.flavor('both'))
        self.assertIn('0000:44:00.4', self.hostdevs(server))
        self.assertEqual(3, len(self.hostdevs(server)))
        self.assertEqual([], self.update())

    def test_marks_of_operators_exist_after_a_round(self):
        for mark in providers.MARKS:
            self.placement.delete(f'/traits/{mark}')
        self.start_compute('compute1')
        self.update()
        for mark in providers.MARKS:
            self.assertEqual(204, self.placement.get(
                f'/traits/{mark}', version='1.6').status)

    def test_free_device_that_disappears(self):
        machine = self.directory_host()
        self.start_compute('compute1')
        (machine / 'sys/bus/pci/devices/0000:43:00.0').unlink()
        self.assertNotEqual([], self.update())
        self.assertNotIn('compute1_accel_0000:43:00.0', self.totals())
        self.assertEqual(3, len(self.totals()))

    def test_held_device_that_disappears(self):
        machine = self.directory_host()
        self.start_compute('compute1')
        self.gpu_profile('gpu')
        server = self.boot(self.flavor('gpu'))
        [(name, _resources)] = self.allocated(server).items()
        [address] = self.hostdevs(server)
        shutil.rmtree(
            (machine / 'sys/bus/pci/devices' / address).resolve())
        (machine / 'sys/bus/pci/devices' / address).unlink()
        self.update()
        self.assertEqual({cloud.GPU: (1, 1)}, self.totals()[name])
        self.assertEqual([], self.update())
        self._delete_server(server)
        self.update()
        self.assertNotIn(name, self.totals())

    def test_class_of_a_held_device_changes(self):
        self.start_compute('compute1')
        self.gpu_profile('gpu')
        server = self.boot(self.flavor('gpu'))
        [(name, _resources)] = self.allocated(server).items()
        held = self.hostdevs(server)
        self.flags(device_spec=[cloud.FOUR_SPEC.replace(cloud.GPU, 'PGPU')],
                   group='nova_accel')
        self.restart_compute_service('compute1')
        totals = self.totals()
        self.assertEqual({cloud.GPU: (1, 1)}, totals.pop(name))
        self.assertEqual([{'PGPU': (1, 0)}] * 3, list(totals.values()))
        self._reboot_server(server, hard=True)
        self.assertEqual(held, self.hostdevs(server))
        self._delete_server(server)
        self.update()
        self.assertEqual([{'PGPU': (1, 0)}] * 4,
                         list(self.totals().values()))

    def test_held_device_of_a_removed_entry_is_reserved(self):
        self.start_compute('compute1')
        self.gpu_profile('gpu')
        server = self.boot(self.flavor('gpu'))
        self.flags(device_spec=[], group='nova_accel')
        self.restart_compute_service('compute1')
        [(name, _resources)] = self.allocated(server).items()
        self.assertEqual({name: {cloud.GPU: (1, 1)}}, self.totals())

    def test_changed_device_spec_is_applied(self):
        """nova-compute applies a changed device_spec without a restart.

        A SIGHUP makes it read nova.conf again.
        """
        self.start_compute('compute1')
        self.gpu_profile('gpu')
        server = self.boot(self.flavor('gpu'))
        [(held, _resources)] = self.allocated(server).items()
        self.flags(device_spec=[cloud.PAIR_SPEC], group='nova_accel')
        self._run_periodics()
        pair = self.totals()
        self.assertEqual({held, 'compute1_accel_0000:43:00.0',
                          'compute1_accel_0000:44:00.0'}, pair.keys())
        for entry, why in (('{"colour": "green"}', "does not know the key"),
                           ('{"address": "0000:85:00.0", "num_vfs": 2}',
                            'entries with num_vfs take effect at the start')):
            self.flags(device_spec=[cloud.FOUR_SPEC, entry],
                       group='nova_accel')
            for _round in range(2):
                self._run_periodics()
            self.assertEqual(pair, self.totals())
            self.assertEqual(1, self.stdlog.logger.output.count(why))
        self.flags(device_spec=[cloud.FOUR_SPEC], group='nova_accel')
        self._run_periodics()
        self.assertEqual(4, len(self.totals()))

    def test_bad_entry_leaves_the_others(self):
        self.flags(device_spec=['{"vendor_id": "10de", "colour": "green"}',
                                'not json', cloud.FOUR_SPEC],
                   group='nova_accel')
        self.start_compute('compute1')
        self.assertEqual(4, len(self.totals()))
        log = self.stdlog.logger.output
        self.assertEqual(1, log.count("does not know the key 'colour'"))
        self.assertEqual(1, log.count('device_spec #2: is not JSON'))

    def test_unreadable_root_leaves_nova_compute_up(self):
        self.flags(sysfs_root='/nowhere', group='nova_accel')
        self.start_compute('compute1')
        self.assertEqual({}, self.totals())
        self.boot(self.flavor())
        self.assertIn("sysfs_root '/nowhere'", self.stdlog.logger.output)

    def test_unreadable_root_keeps_the_providers(self):
        self.start_compute('compute1')
        self.flags(sysfs_root='/nowhere', group='nova_accel')
        self.restart_compute_service('compute1')
        self.assertEqual(4, len(self.totals()))

    def test_device_that_the_host_uses_is_refused(self):
        self.flags(device_spec=['{"vendor_id": "1af4"}'], group='nova_accel')
        self.start_compute('compute1')
        self.assertEqual(['compute1_accel_0000:00:01.0'],
                         list(self.totals()))
        log = self.stdlog.logger.output
        self.assertIn('0000:00:02.0 (1af4:1001): the host uses it: '
                      'disk vda is mounted', log)
        self.assertIn('0000:00:03.0 (1af4:1000): the host uses it: '
                      'network port eth0 has an address', log)

    def test_device_that_nova_claims_is_refused(self):
        self.flags(device_spec=[
            '{"address": "0000:43:00.*"}', '{"address": "0000:44:*"}'],
            group='pci')
        self.start_compute('compute1')
        self.assertEqual(2, len(self.totals()))
        self.assertIn('[pci] device_spec #1 claims it as well as '
                      '[nova_accel] device_spec #1',
                      self.stdlog.logger.output)

    def test_host_without_iommu_groups(self):
        machine = self.directory_host()
        for device in (machine / 'sys/bus/pci/devices').iterdir():
            (device / 'iommu_group').unlink()
        self.start_compute('compute1')
        self.assertEqual({}, self.totals())
        self.assertEqual(1, self.stdlog.logger.output.count(
            'this host has no IOMMU groups'))

    def test_inventory_that_provider_yaml_adds(self):
        config = self.useFixture(fixtures.TempDir()).path
        name = 'compute1_accel_0000:43:00.0'
        self.flags(provider_config_location=config, group='compute')
        self.start_compute('compute1')
        pathlib.Path(config, 'more.yaml').write_text(f'''
    meta: {{schema_version: '1.0'}}
    providers:
    - identification: {{name: "{name}"}}
      inventories:
        additional:
        - CUSTOM_LICENCE: {{total: 3}}
    ''')
        self.restart_compute_service('compute1')
        self.gpu_profile('gpu')
        servers = [self.boot(self.flavor('gpu')) for _time in range(4)]
        self.update()
        self.assertEqual({cloud.GPU: (1, 0), 'CUSTOM_LICENCE': (3, 0)},
                         self.totals()[name])
        self.assertEqual(4, len(servers))
        # If the provider already had the additional inventory, Nova would
        # report an error.
        self.flags(device_spec=[
            cloud.GPU_SPEC[:-1] + ', "address": "0000:44:00.0"}'],
            group='nova_accel')
        self.restart_compute_service('compute1')
        self.update()
        self.update()
        self.assertEqual({cloud.GPU: (1, 1), 'CUSTOM_LICENCE': (3, 0)},
                         self.totals()[name])
        self.assertEqual(1, self.stdlog.logger.output.count(
            f'Resource provider {name} is no longer offered'))
        self.boot(self.flavor())

# SPDX-License-Identifier: Apache-2.0
"""vGPU types, which are set on VFs for a guest, and cleared after it.

tests/nvidia.py models the machine and its driver.
"""

import contextlib
import errno
import json
import os
import pathlib
import re

import fixtures
from lxml import etree
from nova.compute import manager
from nova.tests.functional.api import client

from nova_accel.compute.state import placement
from tests import nvidia
from tests.functional import cloud

MACHINE = cloud.DATA / 'hosts' / 'l40s-modelled.json'
SMALL_SPEC = ('{"vendor_id": "10de", "address": "0000:41:*.*", "vgpu_type": '
              '"1154 : NVIDIA L40S-16Q", "max_instances": 3}')
LARGE_SPEC = ('{"vendor_id": "10de", "address": "0000:41:*.*", "vgpu_type": '
              '"1155 : NVIDIA L40S-24Q", "max_instances": 2, '
              '"resource_class": "CUSTOM_VGPU_LARGE"}')
SMALL, LARGE = 'VGPU', 'CUSTOM_VGPU_LARGE'
SMALLS = 'compute1_accel_0000:41:00.0_VGPU_NVIDIA_L40S-16Q'
LARGES = 'compute1_accel_0000:41:00.0_CUSTOM_VGPU_LARGE_NVIDIA_L40S-24Q'


class Vgpus(cloud.Cloud):
    """Base of test cases with a card that has two vGPU types."""

    def setUp(self):
        super().setUp()
        self.flags(device_spec=[SMALL_SPEC, LARGE_SPEC], group='nova_accel')
        self.driver = self.start_machine('compute1')
        self.write_profile('small', groups=[{'resources': {SMALL: 1}}])
        self.write_profile('large', groups=[{'resources': {LARGE: 1}}])
        self.small, self.large = self.flavor('small'), self.flavor('large')

    def start_machine(self, host):
        """Start a nova-compute with its own machine, and return the driver."""
        self.machine = self.directory_host(MACHINE)
        driver = self.useFixture(nvidia.VgpuManager(self.machine))
        self.start_compute(host)
        return driver

    def totals(self):
        """Return the units that are not reserved, by provider."""
        found = {}
        for name, provider in self.providers().items():
            for record in self._get_provider_inventory(
                    provider['uuid']).values():
                found[name] = record['total'] - record['reserved']
        return found

    def has(self, server):
        """Return the VF of a server, and the current type of the VF."""
        [address] = self.hostdevs(server)
        return address, self.driver.current().get(address)


class VgpuTest(Vgpus):

    def elements(self, server):
        tree = etree.fromstring(self.domain(server).XMLDesc(0))
        return tree.findall('devices/hostdev')

    def fault(self, server):
        return self.api.get_server(server['id'])['fault']['message']

    def nothing_disagrees(self):
        """Check that ``nova-accel host check`` finds nothing."""
        self.assertEqual([], self.disagreements())

    def nothing_takes_it(self, server):
        self.assertEqual([[server['id']]], list(self.held().values()))
        self.boot(self.small, state='ERROR')
        self.boot(self.large, state='ERROR')

    def test_vgpu_is_made_for_a_server_and_released(self):
        self.assertEqual({SMALLS: 3, LARGES: 2}, self.totals())
        server = self.boot(self.small)
        self.assertEqual({SMALLS: {SMALL: 1}}, self.allocated(server))
        self.assertEqual(('0000:41:00.4', 1154), self.has(server))
        [element] = self.elements(server)
        self.assertEqual(
            {'mode': 'subsystem', 'type': 'pci', 'managed': 'no'},
            dict(element.attrib))
        self.assertEqual(
            {'domain': '0x0000', 'bus': '0x41', 'slot': '0x00',
             'function': '0x4'}, dict(element.find('source/address').attrib))
        self.assertTrue(re.fullmatch(
            f'ua-accel-ACCEL0-{self.providers()[SMALLS]["uuid"]}-0'
            '-10de[0-9a-f]{4}-t[0-9a-f]{8}',
            element.find('alias').get('name')))
        # The large type is withheld while the card has small vGPUs.
        self._run_periodics()
        self.assertEqual({SMALLS: 3}, self.totals())
        self.boot(self.large, state='ERROR')
        other = self.boot(self.small)
        self.assertEqual(('0000:41:00.5', 1154), self.has(other))
        self.nothing_disagrees()
        self._delete_server(server)
        self._delete_server(other)
        self._run_periodics()
        self.assertEqual({}, self.driver.current())
        self.assertEqual({SMALLS: 3, LARGES: 2}, self.totals())
        self.boot(self.large)
        self._run_periodics()
        self.assertEqual({LARGES: 2}, self.totals())

    def test_full_card(self):
        servers = [self.boot(self.small) for _number in range(3)]
        self.boot(self.small, state='ERROR')
        self.assertEqual(3, len({self.has(server)[0] for server in servers}))
        self._run_periodics()
        self.assertEqual({SMALLS: 3}, self.totals())
        self.nothing_disagrees()

    def test_several_in_one_server(self):
        self.write_profile('both', groups=[
            {'resources': {SMALL: 1}, 'count': 2}], group_policy='none')
        server = self.boot(self.flavor('both'))
        self.assertEqual({SMALLS: {SMALL: 2}}, self.allocated(server))
        self.assertEqual({'0000:41:00.4': 1154, '0000:41:00.5': 1154},
                         self.driver.current())
        # Only one vGPU is left, so a second server gets none.
        self.boot(self.flavor('both'), state='ERROR')
        self.assertEqual(2, len(self.held()))
        self.assertEqual(set(self.hostdevs(server)), set(self.held()))

    def test_vf_whose_type_was_not_cleared_is_not_reused(self):
        """A new server gets the VF of a deleted one after it is cleared."""
        first = self.boot(self.small)
        self.useFixture(fixtures.MockPatch(
            'nova_accel.compute.devices.reclaim.Reclamation.release_unused'))
        self._delete_server(first)
        second = self.boot(self.small)
        address, _number = self.has(second)
        self.assertEqual([(address, 1154), (address, 0), (address, 1154)],
                         self.driver.writes)

    def test_booting_server_does_not_get_a_vf_that_cannot_be_cleared(self):
        first = self.boot(self.small)
        self.useFixture(fixtures.MockPatch(
            'nova_accel.compute.devices.reclaim.Reclamation.release_unused'))
        self.driver.open.add(self.has(first)[0])
        self._delete_server(first)
        self.boot(self.small, state='ERROR')
        self.assertEqual({}, self.held())
        second = self.boot(self.small)
        self.assertNotIn(self.has(second)[0], self.driver.open)

    def test_vf_that_cannot_be_cleared_is_not_offered(self):
        first = self.boot(self.small)
        stuck, _number = self.has(first)
        self.driver.open.add(stuck)
        self._delete_server(first)
        second = self.boot(self.small)
        self.assertNotEqual(stuck, self.has(second)[0])
        self.driver.open.discard(stuck)
        self._run_periodics()
        self.assertNotIn(stuck, self.driver.current())

    def test_several_sizes_on_a_card(self):
        self.driver.mode = nvidia.MIXED
        self.driver.list()
        small, large = self.boot(self.small), self.boot(self.large)
        self.assertEqual([1154, 1155], [self.has(server)[1]
                                        for server in (small, large)])
        self._run_periodics()
        # The 8 GB that are left are too few for another vGPU.
        self.assertEqual({SMALLS: 1, LARGES: 1}, self.totals())
        self.nothing_disagrees()
        self.boot(self.small, state='ERROR')

    def test_other_type_takes_the_card_first(self):
        """The server fails if the other type takes the card before it.

        Placement allocates both, but the driver has room for one only.
        """
        server = self.boot(self.large)
        self._delete_server(server)
        self._run_periodics()
        elsewhere = '0000:41:00.7'
        self.driver.on_write = lambda vf, number: (
            elsewhere in self.driver.current()
            or self.driver.set(elsewhere, 1155))
        lost = self.boot(self.small, state='ERROR')
        self.assertNotIn(1154, self.driver.current().values())
        self.assertEqual({}, self.held())
        self.assertEqual({}, self.allocated(lost))

    def test_server_that_the_driver_refuses_starts_on_another_host(self):
        other = self.start_machine('compute2')
        self.driver.on_write = self.refuse
        servers = [self.boot(self.small) for _number in range(3)]
        self.assertEqual({}, self.held('compute1'))
        self.assertEqual({}, self.driver.current())
        self.assertEqual(3, len(other.current()))
        for server in servers:
            self.assertEqual(
                'compute2',
                self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host'])
            [promise] = self.allocated(server)
            self.assertTrue(promise.startswith('compute2_accel'))
        self.assertTrue(self.driver.writes)

    def test_error_of_the_driver_is_quoted(self):
        self.driver.on_write = self.refuse
        log = self.useFixture(fixtures.FakeLogger(level='WARNING'))
        self.boot(self.small, state='ERROR')
        self.assertIn('device 0000:41:00.4 (10de:26b9): vGPU type NVIDIA '
                      'L40S-16Q cannot be set: the driver says', log.output)
        self.assertEqual({}, self.driver.current())
        self.assertEqual({}, self.held())

    def refuse(self, vf, number):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def test_host_reboot(self):
        servers = [self.boot(self.small), self.boot(self.small)]
        before = self.driver.current()
        self.assertEqual(2, len(before))
        for server in servers:
            self.domain(server).destroy()
        self.driver.reboot()
        self.assertEqual({}, self.driver.current())
        self.restart_compute_service('compute1')
        # The types are set before a guest starts, so that the large type
        # cannot take the card.
        self.assertEqual(before, self.driver.current())
        self._run_periodics()
        self.assertEqual({SMALLS: 3}, self.totals())
        for server in servers:
            self._reboot_server(server, hard=True)
            self.assertEqual(1154, self.has(server)[1])
        self.nothing_disagrees()

    def test_hard_reboot_sets_the_type_again(self):
        server = self.boot(self.small)
        before = self.has(server)
        self._reboot_server(server, hard=True)
        self.assertEqual([before], self.driver.writes)
        self.driver.reboot()
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.has(server))
        self.assertEqual([before, before], self.driver.writes)

    def test_guest_does_not_start_when_its_type_cannot_be_set(self):
        server = self.boot(self.small)
        self._stop_server(server)
        self.driver.reboot()
        self.driver.on_write = self.refuse
        # The services share one process, so the error is also raised here.
        self.assertRaises(client.OpenStackApiException, self._start_server,
                          server)
        event = self._wait_for_instance_action_event(
            server, 'start', 'compute_start_instance', 'Error')
        self.assertIn('vGPU type NVIDIA L40S-16Q cannot be set',
                      event['details'])
        self.assertEqual('SHUTOFF',
                         self.api.get_server(server['id'])['status'])
        self.driver.on_write = lambda vf, number: None
        self._reboot_server(server, hard=True)
        self.assertEqual(1154, self.has(server)[1])

    def test_suspend_and_resume(self):
        server = self.boot(self.small)
        before = self.has(server)
        self._suspend_server(server)
        self._run_periodics()
        self.assertEqual(before, self.has(server))
        # The host reboots while the server is suspended.
        self.driver.reboot()
        self._resume_server(server)
        self.assertEqual(before, self.has(server))

    def test_live_migration(self):
        self.flags(device_spec=[
            spec[:-1] + ', "live_migratable": "yes"}'
            for spec in (LARGE_SPEC, SMALL_SPEC)], group='nova_accel')
        other = self.start_machine('compute2')
        # Occupy this VF, so that the server gets another one than on the
        # source.
        other.set('0000:41:00.4', 1148)
        other.mode = nvidia.MIXED
        other.list()
        server = self.boot(self.small, host='compute1')
        moving = []
        self.migration.on_move = lambda domain, xml: moving.append(
            (xml, other.current()))
        self._live_migrate(server)
        [(xml, there)] = moving
        # The type is set before the guest arrives.
        self.assertEqual({'0000:41:00.4': 1148, '0000:41:00.5': 1154}, there)
        [element] = etree.fromstring(xml).findall('devices/hostdev')
        self.assertEqual(('0x5', 'no'), (
            element.find('source/address').get('function'),
            element.get('managed')))
        self._run_periodics()
        self.assertEqual({}, self.driver.current())
        self.assertEqual(['0000:41:00.5'],
                         list(self.hostdevs(server, 'compute2')))

    def test_cold_migration(self):
        other = self.start_machine('compute2')
        server = self.boot(self.small, host='compute1')
        self._migrate_server(server)
        self._run_periodics()
        # The type stays until the migration is confirmed: the server may
        # revert.
        self.assertEqual([1154], list(self.driver.current().values()))
        self.assertEqual([1154], list(other.current().values()))
        # The computes share CONF.host. The driver compares it with the host
        # to clean up.
        self.flags(host='compute1')
        self._confirm_resize(server)
        self._run_periodics()
        self.assertEqual({}, self.driver.current())
        self.assertEqual([1154], list(other.current().values()))

    def test_types_set_by_hand_are_kept(self):
        self.driver.set('0000:41:00.4', 1154)
        self.driver.set('0000:41:00.5', 1148)
        self.driver.set('0000:c1:00.4', 1154)
        self._run_periodics()
        self.assertEqual({'0000:41:00.5': 1148, '0000:c1:00.4': 1154},
                         {vf: number for vf, number
                          in self.driver.current().items()
                          if vf != '0000:41:00.4'})
        # nova_accel clears a type that an entry names.
        self.assertNotIn('0000:41:00.4', self.driver.current())

    def offer(self, *specs):
        self.flags(device_spec=list(specs), group='nova_accel')
        self.restart_compute_service('compute1')
        self._run_periodics()

    def reboot_host(self, server):
        self.domain(server).destroy()
        self.driver.reboot()
        self.restart_compute_service('compute1')

    def test_host_reboot_after_another_type_was_offered(self):
        self.offer(SMALL_SPEC)
        server = self.boot(self.small)
        self.offer(SMALL_SPEC, LARGE_SPEC)
        self.reboot_host(server)
        self.assertEqual(1154, self.has(server)[1])
        self.boot(self.large, state='ERROR')
        self._reboot_server(server, hard=True)
        self.assertEqual(1154, self.has(server)[1])

    def test_live_migration_after_another_type_was_offered(self):
        small, large = (spec[:-1] + ', "live_migratable": "yes"}'
                        for spec in (SMALL_SPEC, LARGE_SPEC))
        self.offer(small)
        server = self.boot(self.small, host='compute1')
        self.offer(small, large)
        other = self.start_machine('compute2')
        self._live_migrate(server)
        [address] = self.hostdevs(server, 'compute2')
        self.assertEqual({address: 1154}, other.current())
        self._run_periodics()
        self.assertEqual({}, self.driver.current())

    def test_live_migration_after_the_type_is_spelled_differently(self):
        number = SMALL_SPEC.replace(
            '"1154 : NVIDIA L40S-16Q"', '1154, "live_migratable": "yes"')
        self.offer(number)
        server = self.boot(self.small, host='compute1')
        self.offer(SMALL_SPEC[:-1] + ', "live_migratable": "yes"}')
        other = self.start_machine('compute2')
        self._live_migrate(server)
        self.assertEqual([1154], list(other.current().values()))

    def test_entry_names_another_type_now(self):
        """A server keeps its type when the entry names another one.

        The resource provider of the card is the same for both types.
        """
        self.offer(LARGE_SPEC)
        server = self.boot(self.large)
        self.offer(SMALL_SPEC)
        self._reboot_server(server, hard=True)
        self.assertEqual(1155, self.has(server)[1])
        # After a host reboot no entry gives the old type, and the server does
        # not get the new one.
        self.reboot_host(server)
        self.assertIsNone(self.has(server)[1])
        # The services share one process, so the error is also raised here.
        self.assertRaises(client.OpenStackApiException, self._reboot_server,
                          server, hard=True)
        self._wait_for_state_change(server, 'ERROR')
        self.assertIn('is no longer what the server had',
                      self.fault(server))
        self.assertEqual([[server['id']]], list(self.held().values()))
        # The entry is back, and with it the old type.
        self.offer(LARGE_SPEC)
        self._reboot_server(server, hard=True)
        self.assertEqual(1155, self.has(server)[1])

    def test_type_of_a_removed_entry(self):
        server = self.boot(self.small)
        self.offer()
        self.assertEqual(1154, self.has(server)[1])
        self.driver.set('0000:41:00.6', 1154)
        self._delete_server(server)
        self._run_periodics()
        # No entry names the type now, so another program may have set it.
        self.assertEqual({'0000:41:00.6': 1154}, self.driver.current())

    def resize_on_the_host(self):
        """Resize without confirming; return the server and its old VF."""
        self.flags(allow_resize_to_same_host=True)
        self.driver.mode = nvidia.MIXED
        self.driver.list()
        server = self.boot(self.small)
        before = self.has(server)
        self._resize_server(server, self.large)
        self._run_periodics()
        return server, before

    def test_reverted_resize_on_the_same_host(self):
        server, before = self.resize_on_the_host()
        self.assertEqual([1154, 1155],
                         sorted(self.driver.current().values()))
        # The small vGPU is kept for a revert, so a large one has no room.
        self.boot(self.large, state='ERROR')
        self._revert_resize(server)
        self.assertEqual(before, self.has(server))
        self._run_periodics()
        self.assertEqual([1154], list(self.driver.current().values()))

    def test_vf_is_kept_for_a_revert(self):
        """Servers that boot during a revert do not get the kept VF."""
        server, before = self.resize_on_the_host()
        revert = manager.ComputeManager._revert_allocation

        def boot_others(*args, **kwargs):
            found = revert(*args, **kwargs)
            self.boot(self.large)
            self.boot(self.large, state='ERROR')
            return found

        with fixtures.MockPatchObject(manager.ComputeManager,
                                      '_revert_allocation', boot_others):
            self._revert_resize(server)
        self.assertEqual(before, self.has(server))

    def test_periodic_task_during_a_revert_keeps_the_vf(self):
        server, _before = self.resize_on_the_host()
        revert = manager.ComputeManager._revert_allocation
        of_consumer = placement.PlacementClient.allocations_of_consumer
        between, reverted = [], []

        def look(*args, **kwargs):
            def asked(this, uuid):
                found = of_consumer(this, uuid)
                if not reverted:
                    reverted.append(revert(*args, **kwargs))
                return found
            with fixtures.MockPatchObject(placement.PlacementClient,
                                          'allocations_of_consumer', asked):
                self._run_periodics()
            between.extend(self.driver.current().values())
            return reverted[0]

        with fixtures.MockPatchObject(manager.ComputeManager,
                                      '_revert_allocation', look):
            self._revert_resize(server)
        self.assertIn(1154, between)

    def test_failed_revert(self):
        server, before = self.resize_on_the_host()
        finish = manager.ComputeManager.finish_revert_resize

        def cast(*args, **kwargs):
            # The caller of a cast gets no error, but the harness makes it a
            # call.
            with contextlib.suppress(RuntimeError):
                finish(*args, **kwargs)

        with fixtures.MockPatchObject(
                manager.ComputeManager, 'finish_revert_resize', cast
                ), fixtures.MockPatchObject(
                manager.ComputeManager, '_update_volume_attachments',
                side_effect=RuntimeError('no volumes')):
            self.api.post_server_action(server['id'], {'revertResize': None})
            self._wait_for_state_change(server, 'ERROR')
        self._run_periodics()
        self.boot(self.large)
        self.boot(self.large, state='ERROR')
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.has(server))
        self._delete_server(server)
        self._run_periodics()
        self.assertNotIn(1154, self.driver.current().values())

    def test_other_type_is_offered_during_an_unconfirmed_resize(self):
        self.flags(allow_resize_to_same_host=True)
        self.offer(SMALL_SPEC)
        self.write_profile('two', groups=[
            {'resources': {SMALL: 1}, 'count': 2}], group_policy='none')
        server = self.boot(self.flavor('two'))
        self._resize_server(server, self.small)
        before = self.driver.current()
        self.assertEqual(3, len(before))
        self.offer(SMALL_SPEC, LARGE_SPEC)
        self.assertEqual(before, self.driver.current())

    def test_only_vfs_needed_for_a_revert_are_kept(self):
        self.flags(allow_resize_to_same_host=True)
        server = self.boot(self.small)
        self._resize_server(server, self.flavor('small'))
        self.driver.set('0000:41:00.6', 1154)
        self.driver.set('0000:41:00.7', 1154)
        self._run_periodics()
        self.assertEqual(2, len(self.driver.current()))

    def test_type_set_by_the_operator(self):
        """A VF of an entry without ``vgpu_type`` keeps the operator's type."""
        regions = pathlib.Path(self.useFixture(
            fixtures.TempDir()).path, 'regions.json')
        regions.write_text(json.dumps({'regions': [{
            'name': 'left', 'functions': ['0000:41:00.4'],
            'resource_class': 'VGPU'}]}))
        self.take_as_it_is(resource_class='VGPU')
        self.take_as_it_is(kind='declared', regions_file=str(regions))

    def take_as_it_is(self, **more):
        vf = self.machine / 'sys/bus/pci/devices/0000:41:00.4'
        vfio = self.machine / 'sys/bus/pci/drivers/vfio-pci'
        vfio.mkdir(parents=True, exist_ok=True)
        (vf.resolve() / 'driver').unlink()
        (vf.resolve() / 'driver').symlink_to(vfio)
        self.driver.set(vf.name, 1154)
        self.offer(json.dumps({'address': vf.name, 'vendor_id': '10de',
                               'managed': 'no', **more}))
        server = self.boot(self.small)
        self.assertEqual((vf.name, 1154), self.has(server))
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual({vf.name: 1154}, self.driver.current())

    def test_entry_names_another_type_than_was_set_by_hand(self):
        vf = '0000:41:00.4'
        (self.machine / 'sys/bus/pci/devices' / vf).resolve().joinpath(
            'vfio-dev/vfio0').mkdir(parents=True)
        self.driver.set(vf, 1155)
        self.offer(json.dumps({
            'address': vf, 'vendor_id': '10de', 'managed': 'no',
            'reset': 'if_possible', 'resource_class': 'CUSTOM_BY_HAND'}))
        self.write_profile('hand', groups=[
            {'resources': {'CUSTOM_BY_HAND': 1}}])
        server = self.boot(self.flavor('hand'))
        before = self.hostdevs(server)
        self.offer(SMALL_SPEC)
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.hostdevs(server))
        self.assertEqual({vf: 1155}, self.driver.current())

    def test_confirmed_resize_on_the_same_host(self):
        server, _before = self.resize_on_the_host()
        self._confirm_resize(server)
        self._run_periodics()
        self.assertEqual([1155], list(self.driver.current().values()))

    def test_server_keeps_vgpu_of_a_removed_entry(self):
        server = self.boot(self.small)
        before = self.has(server)
        self.flags(device_spec=[LARGE_SPEC], group='nova_accel')
        self._run_periodics()
        self.assertEqual(before, self.has(server))
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.has(server))
        self.assertEqual(0, self.totals()[SMALLS])
        self.nothing_takes_it(server)

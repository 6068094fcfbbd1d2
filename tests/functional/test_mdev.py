# SPDX-License-Identifier: Apache-2.0
"""Mediated devices, which are created for a guest and removed after it."""

import contextlib
import json
import shutil
import threading
import time
from unittest import mock

import fixtures
from nova.tests.functional.api import client
from nova.virt.libvirt import driver as libvirt_driver

from nova_accel.compute.state import device_claims
from nova_accel.core import errors
from nova_accel.core.assignment import assign
from nova_accel.core.assignment import holders
from nova_accel.core.placement import providers
from nova_accel.host import operations
from tests.functional import cloud


class FunctionTest(cloud.Cloud):
    """A server has a function on which a new entry creates mdevs."""

    PLAIN = '{"address": "0000:44:00.*", "resource_class": "CUSTOM_VF"}'

    def setUp(self):
        super().setUp()
        self.directory_host(cloud.A100)
        self.flags(device_spec=[self.PLAIN], group='nova_accel')
        self.start_compute('compute1')
        self.write_profile('vf', groups=[{'resources': {'CUSTOM_VF': 1}}])
        self.server = self.boot(self.flavor('vf'))
        self.before = self.hostdevs(self.server)

    def make_mdevs_of_it(self, **more):
        self.flags(device_spec=[json.dumps({
            'address': '0000:44:00.*', 'mdev_type': 'nvidia-471', **more})],
            group='nova_accel')
        self.restart_compute_service('compute1')
        self._run_periodics()

    def test_hard_reboot_keeps_the_function(self):
        for more in {}, {'resource_class': 'CUSTOM_VF'}:
            self.make_mdevs_of_it(**more)
            self._reboot_server(self.server, hard=True)
            self.assertEqual(self.before, self.hostdevs(self.server))

    def test_no_mdev_is_made_on_a_held_function(self):
        self._stop_server(self.server)
        self.make_mdevs_of_it(resource_class='CUSTOM_VF')
        flavor = self.flavor('vf')
        # Placement counts the server's function as one of the three that are
        # left.
        for _function in range(2):
            self.boot(flavor)
        self.boot(flavor, state='ERROR')
        self._start_server(self.server)
        self.assertEqual(self.before, self.hostdevs(self.server))

    def test_start_keeps_the_function(self):
        self._stop_server(self.server)
        self.make_mdevs_of_it()
        self._start_server(self.server)
        self.assertEqual(self.before, self.hostdevs(self.server))


class Mdevs(cloud.Cloud):
    """Base of test cases with a card whose VFs have mdev types."""

    def setUp(self):
        super().setUp()
        self.machine = self.directory_host(cloud.A100)
        self.flags(device_spec=[cloud.VGPU_SPEC], group='nova_accel')
        self.background = self.useFixture(cloud.BackgroundWork())
        self.start_compute('compute1')
        self.write_profile('vgpu', groups=[{'resources': {cloud.VGPU: 1}}])
        self.write_profile('vgpus', groups=[
            {'resources': {cloud.VGPU: 1}, 'count': 2}], group_policy='none')
        self.vgpu = self.flavor('vgpu')

    def mdevs(self):
        """Return parent and type of each mdev, by UUID."""
        bus = self.machine / 'sys/bus/mdev/devices'
        return {path.name: (path.resolve().parts[-5],
                            path.resolve().parts[-3])
                for path in bus.glob('*')}

    def offer_another_type(self):
        self.flags(device_spec=[
            cloud.VGPU_SPEC,
            '{"vendor_id": "10de", "product_id": "20b0", "mdev_type": '
            '"nvidia-468", "resource_class": "CUSTOM_VGPU_SMALL"}'],
            group='nova_accel')
        self._run_periodics()

    def small(self):
        """Return a flavor that requests the other type."""
        return self._create_flavor(extra_spec={
            'resources:CUSTOM_VGPU_SMALL': 1})


class MdevTest(Mdevs):

    def test_card_offers_a_unit_for_each_vf(self):
        provider = self.providers()['compute1_accel_0000:44:00.0']
        inventory = self._get_provider_inventory(provider['uuid'])
        self.assertEqual(4, inventory[cloud.VGPU]['total'])

    def test_mdev_is_made_and_removed_with_its_server(self):
        server = self.boot(self.vgpu)
        self.assertEqual({'compute1_accel_0000:44:00.0': {cloud.VGPU: 1}},
                         self.allocated(server))
        self.assertEqual(set(self.hostdevs(server)), set(self.mdevs()))
        [(parent, mdev_type)] = self.mdevs().values()
        self.assertEqual('nvidia-471', mdev_type)
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual({}, self.mdevs())

    def test_several_in_one_server(self):
        server = self.boot(self.flavor('vgpus'))
        self.assertEqual(2, len(self.hostdevs(server)))
        self.assertEqual(set(self.hostdevs(server)), set(self.mdevs()))

    def test_resize_of_a_server_that_holds_more_than_is_offered(self):
        server = self.boot(self.flavor('vgpus'))
        self.flags(device_spec=[
            cloud.VGPU_SPEC[:-1] + ', "max_instances": 1}'],
            group='nova_accel')
        self._run_periodics()
        self.directory_host(cloud.A100)
        self.start_compute('compute2')
        self._resize_server(server, self.vgpu)
        self.assertEqual(1, len(self.hostdevs(server, 'compute2')))
        self._revert_resize(server)
        self.assertEqual(set(self.hostdevs(server)), set(self.mdevs()))
        self.assertEqual({'compute1_accel_0000:44:00.0': {cloud.VGPU: 2}},
                         self.allocated(server))

    def test_full_card(self):
        for _number in range(4):
            self.boot(self.vgpu)
        self.assertEqual(4, len(set(self.mdevs().values())))
        self.boot(self.vgpu, state='ERROR')

    def test_another_type_of_the_same_card(self):
        self.offer_another_type()
        self.boot(self.small())
        for _number in range(3):
            self.boot(self.vgpu)
        self._run_periodics()
        self.boot(self.vgpu, state='ERROR')

    def test_mdevs_made_before_another_type_was_offered(self):
        """Servers keep mdevs of a provider that does not exist any more.

        With two types a card has one provider for each type.
        """
        for _number in range(3):
            self.boot(self.vgpu)
        self.offer_another_type()
        self.restart_compute_service('compute1')
        self.assertIn('have allocations of it as compute1_accel_0000:44:00.0; '
                      'no action needed, it is kept',
                      self.stdlog.logger.output)
        self.boot(self.vgpu)
        self.assertEqual(4, len(self.mdevs()))
        self.boot(self.vgpu, state='ERROR')
        self.assertNotIn('cannot be created', self.stdlog.logger.output)

    def reboot_host(self, server):
        """Reboot the host, and then start the server again."""
        self.lose_mdevs()
        self.domain(server).destroy()
        self.restart_compute_service('compute1')
        self.api.post_server_action(server['id'], {'reboot': {
            'type': 'HARD'}})
        self._wait_for_state_change(server, 'ACTIVE')

    def test_host_reboot_after_another_type_was_offered(self):
        server = self.boot(self.vgpu)
        before = self.mdevs()
        self.offer_another_type()
        self.reboot_host(server)
        self.assertEqual(before, self.mdevs())

    def test_host_reboot_after_another_type_was_removed(self):
        self.offer_another_type()
        server = self.boot(self.vgpu)
        before = self.mdevs()
        for mdev_type in self.types('nvidia-468'):
            shutil.rmtree(mdev_type)
        self.reboot_host(server)
        self.assertEqual(before, self.mdevs())

    def offer_only_another_type(self):
        self.offer_another_type()
        self.flags(device_spec=cloud.CONF.nova_accel.device_spec[1:],
                   group='nova_accel')
        self.restart_compute_service('compute1')
        self._run_periodics()

    def test_server_gets_no_mdev_of_another_type(self):
        """A server does not get an mdev of the new type after a host reboot.

        The resource provider of the card is the same for both types.
        """
        server = self.boot(self.vgpu)
        self.offer_only_another_type()
        self.lose_mdevs()
        self.domain(server).destroy()
        self.restart_compute_service('compute1')
        # The services share one process, so the error is also raised here.
        self.assertRaises(
            client.OpenStackApiException, self.api.post_server_action,
            server['id'], {'reboot': {'type': 'HARD'}})
        self._wait_for_state_change(server, 'ERROR')
        self.assertEqual({}, self.mdevs())
        self.assertIn('no entry names', self.stdlog.logger.output)
        # No other server can use the card meanwhile.
        self.assertIn('a server holds an mdev of this card',
                      self.stdlog.logger.output)
        self.boot(self.small(), state='ERROR')

    def test_mdev_of_a_removed_entry_is_kept(self):
        server = self.boot(self.vgpu)
        self.offer_only_another_type()
        self.assertEqual(set(self.hostdevs(server)), set(self.mdevs()))
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual({}, self.mdevs())

    def offer_nothing(self):
        self.flags(device_spec=[], group='nova_accel')
        self.restart_compute_service('compute1')
        self._run_periodics()

    def test_mdev_of_a_card_without_entry_is_kept(self):
        theirs = '0d9d2ca2-5ec2-5a3c-8a4b-6a5d3c2f1e0b'
        server = self.boot(self.vgpu)
        self.offer_nothing()
        # Create an mdev on the card as another program does.
        operations.Operations(f'{self.machine}/sys').create_mdev(
            '0000:44:00.5', 'nvidia-471', theirs)
        [ours] = self.hostdevs(server)
        self.assertEqual({ours, theirs}, set(self.mdevs()))
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual([theirs], list(self.mdevs()))
        # Another program creates an mdev with the same UUID. It is kept, too.
        operations.Operations(f'{self.machine}/sys').create_mdev(
            '0000:44:00.6', 'nvidia-471', ours)
        self._run_periodics()
        self.assertEqual({ours, theirs}, set(self.mdevs()))

    def resize_on_the_host(self):
        """Resize without confirming.

        :returns: the server, and its mdevs before and after
        """
        self.flags(allow_resize_to_same_host=True)
        self.offer_another_type()
        self.write_profile('small', groups=[
            {'resources': {'CUSTOM_VGPU_SMALL': 1}}])
        server = self.boot(self.vgpu)
        before = set(self.mdevs())
        self._resize_server(server, self.flavor('small'))
        self._run_periodics()
        return server, before, set(self.hostdevs(server))

    def test_reverted_resize_on_the_same_host(self):
        """A server gets its mdevs back; they are not released before.

        Another type could take the place of released mdevs.
        """
        server, before, after = self.resize_on_the_host()
        self.assertEqual(before | after, set(self.mdevs()))
        self._revert_resize(server)
        self._run_periodics()
        self.assertEqual(before, set(self.hostdevs(server)))
        self.assertEqual(before, set(self.mdevs()))

    def test_confirmed_resize_on_the_same_host(self):
        server, _before, after = self.resize_on_the_host()
        self._confirm_resize(server)
        self._run_periodics()
        self.assertEqual(after, set(self.mdevs()))

    def test_mdevs_are_kept_when_placement_does_not_answer(self):
        _server, before, after = self.resize_on_the_host()
        with fixtures.MockPatch(
                'nova_accel.compute.state.placement.'
                'PlacementClient.allocations_of_consumer',
                return_value=None):
            self._run_periodics()
        self.assertEqual(before | after, set(self.mdevs()))

    def test_resize_that_begins_during_a_release(self):
        _server, before, after = self.resize_on_the_host()
        kept = holders.Holders.kept
        asked = []

        def ask(*args):
            asked.append(args)
            return kept(*args) if len(asked) > 1 else set()

        with fixtures.MockPatchObject(holders.Holders, 'kept', ask):
            self._run_periodics()
        self.assertEqual(before | after, set(self.mdevs()))

    def test_mdevs_are_kept_when_nova_does_not_answer(self):
        _server, before, after = self.resize_on_the_host()
        with fixtures.MockPatch(
                'nova.objects.InstanceList.get_by_filters',
                side_effect=RuntimeError('no conductor')):
            self._run_periodics()
        self.assertEqual(before | after, set(self.mdevs()))
        self.assertIn('no conductor', self.stdlog.logger.output)

    def test_hard_reboot_after_a_failed_resize_to_another_type(self):
        self.flags(allow_resize_to_same_host=True)
        self.offer_another_type()
        server = self.boot(self.vgpu)
        self.write_profile('small', groups=[
            {'resources': {'CUSTOM_VGPU_SMALL': 1}}])
        with mock.patch.object(libvirt_driver.LibvirtDriver, '_get_guest_xml',
                               side_effect=RuntimeError('no')):
            # The services share one process, so the error is also raised
            # here.
            self.assertRaises(
                client.OpenStackApiException, self.api.post_server_action,
                server['id'],
                {'resize': {'flavorRef': self.flavor('small')}})
            self._wait_for_state_change(server, 'ERROR')
        self._reboot_server(server, hard=True)
        [uuid] = self.hostdevs(server)
        self.assertEqual(1, len(self.held()))
        self._run_periodics()
        self.assertEqual([uuid], list(self.mdevs()))

    def test_hard_reboot_keeps_the_mdev(self):
        server = self.boot(self.vgpu)
        before = self.mdevs(), self.hostdevs(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(before, (self.mdevs(), self.hostdevs(server)))

    def test_host_reboot_recreates_the_mdev(self):
        server = self.boot(self.vgpu)
        before = self.mdevs()
        self.lose_mdevs()
        self.domain(server).destroy()
        self.restart_compute_service('compute1')
        # The mdev is created before the guest starts, so that another type
        # cannot take its place.
        self.assertEqual(set(before), set(self.mdevs()))
        self._reboot_server(server, hard=True)
        self.assertEqual(set(before), set(self.hostdevs(server)))

    def test_suspend_and_resume(self):
        server = self.boot(self.vgpu)
        before = self.mdevs(), self.hostdevs(server)
        self._suspend_server(server)
        self._run_periodics()
        self.assertEqual(before, (self.mdevs(), self.hostdevs(server)))
        self._resume_server(server)
        self.assertEqual(before, (self.mdevs(), self.hostdevs(server)))
        self.assertEqual(before[1], {str(device.address): device.alias
                                     for device in self.attached(server)})

    def test_leftover_of_a_crash_is_removed(self):
        with fixtures.MockPatch(
                'nova.virt.libvirt.guest.Guest.create',
                side_effect=Exception('no')):
            self.boot(self.vgpu, state='ERROR')
        self._run_periodics()
        self.assertEqual({}, self.mdevs())

    def leave_behind(self):
        """Leave an mdev that belongs to no server, and return its UUID."""
        with fixtures.MockPatch(
                'nova.virt.libvirt.guest.Guest.create',
                side_effect=Exception('no')), fixtures.MockPatch(
                'nova_accel.compute.devices.reclaim.Reclamation.release_unused',
                return_value=False):
            self._delete_server(self.boot(self.vgpu, state='ERROR'))
        [left] = self.mdevs()
        return left

    def note_what_is_set_aside(self):
        """Return a list of the devices that are currently set aside."""
        aside, set_aside = [], device_claims.DeviceClaims.set_aside

        @contextlib.contextmanager
        def noted(claims, unit):
            with set_aside(claims, unit) as is_free:
                aside.extend(map(str, unit))
                try:
                    yield is_free
                finally:
                    aside.clear()

        self.useFixture(fixtures.MockPatchObject(
            device_claims.DeviceClaims, 'set_aside', noted))
        return aside

    @contextlib.contextmanager
    def held_open(self, mdev):
        """Hold an mdev open, as a program does; its removal then blocks.

        The context gives the list of attempts to remove the mdev, and an event
        that ends the wait.
        """
        write, closed, tries = operations.write, threading.Event(), []

        def wait(path, text):
            if mdev in path:
                tries.append(path)
                closed.wait()
            write(path, text)

        with (fixtures.MonkeyPatch('nova_accel.host.background.WAIT', 0.1),
              fixtures.MonkeyPatch('nova_accel.host.operations.write', wait)):
            try:
                yield tries, closed
            finally:
                closed.set()
                self.background.wait()

    def test_leftover_that_a_program_has_open_delays_no_server(self):
        """A server boots while the removal of an mdev blocks.

        The kernel waits until the program closes the mdev.
        """
        left = self.leave_behind()
        aside = self.note_what_is_set_aside()
        with self.held_open(left) as (tries, closed):
            self._run_periodics()
            server = self.boot(self.vgpu)
            self._run_periodics()
            self.assertTrue(self.background.is_busy())
            self.assertEqual(1, len(tries))
            self.assertCountEqual([left, *self.hostdevs(server)],
                                  self.mdevs())
            self.assertEqual(1, self.stdlog.logger.output.count(
                f'mdev {left} is not released yet: no server holds it'))
            # No server can get it meanwhile.
            self.assertEqual([left], aside)
            closed.set()
            self.background.wait()
        self.assertEqual([*self.hostdevs(server)], [*self.mdevs()])
        self.assertEqual([], aside)

    def test_failing_boot_does_not_wait_for_a_release(self):
        left = self.leave_behind()
        with self.held_open(left):
            self._run_periodics()
            began = time.monotonic()
            with mock.patch.object(assign, 'assign', side_effect=(
                    errors.AssignmentError('it', 'is taken'))):
                self.boot(self.vgpu, state='ERROR')
            self.assertLess(time.monotonic() - began, 60)
            self.assertTrue(self.background.is_busy())

    def test_mdev_assigned_meanwhile_is_not_released(self):
        # Simulate a read from before the server got the mdev.
        self.useFixture(fixtures.MockPatchObject(
            device_claims.DeviceClaims, 'addresses_in_use',
            return_value=set()))
        server = self.boot(self.vgpu)
        self._run_periodics()
        self.assertEqual(set(self.hostdevs(server)), set(self.mdevs()))

    def test_mdev_of_another_program_is_kept(self):
        theirs = '7d7f5c1e-7a2e-4d0e-8f31-7b3f5d1f8c11'
        operations.Operations(f'{self.machine}/sys').create_mdev(
            '0000:44:00.4', 'nvidia-471', theirs)
        self._run_periodics()
        provider = self.providers()['compute1_accel_0000:44:00.0']
        inventory = self._get_provider_inventory(provider['uuid'])
        self.assertEqual(3, inventory[cloud.VGPU]['total'])
        for _number in range(3):
            self.boot(self.vgpu)
        self.assertIn(theirs, self.mdevs())

    def test_type_removed_by_a_new_driver(self):
        server = self.boot(self.vgpu)
        self._stop_server(server)
        self.lose_mdevs()
        for mdev_type in self.types('nvidia-471'):
            shutil.rmtree(mdev_type)
        self.restart_compute_service('compute1')
        self.assertNotIn('Traceback', self.stdlog.logger.output.rpartition(
            'nova_accel.compute')[2])
        provider = self.providers()['compute1_accel_0000:44:00.0']
        self.assertIn(providers.REFUSED, self._get_provider_traits(
            provider['uuid']))
        self.boot(self.vgpu, state='ERROR')
        # The server does not start without its mdev. It keeps its domain, and
        # can be deleted.
        held = self.held()
        # The services share one process, so the error is also raised here.
        self.assertRaises(client.OpenStackApiException, self._start_server,
                          server)
        self.assertNotEqual(
            'ACTIVE', self.api.get_server(server['id'])['status'])
        self.assertEqual(([[server['id']]], held),
                         ([*held.values()], self.held()))
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual({}, self.providers())

    def test_unreadable_parent_does_not_hide_others(self):
        (nonsense, *_others) = self.types('nvidia-471')
        (nonsense / 'available_instances').write_text('\0 many\n')
        self._run_periodics()
        provider = self.providers()['compute1_accel_0000:44:00.0']
        inventory = self._get_provider_inventory(provider['uuid'])
        self.assertEqual(3, inventory[cloud.VGPU]['total'])
        self.boot(self.vgpu)

    def types(self, name):
        """Return the sysfs directories of a type, one for each parent."""
        return sorted(self.machine.glob(
            f'sys/devices/**/mdev_supported_types/{name}'))

    def lose_mdevs(self):
        for uuid in self.mdevs():
            operations.Operations(f'{self.machine}/sys').remove_mdev(uuid)

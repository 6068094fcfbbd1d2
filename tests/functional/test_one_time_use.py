# SPDX-License-Identifier: Apache-2.0
"""A used one_time_use device is free only after an operator has freed it."""

import contextlib

import ddt
import fixtures
from nova import exception
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.compute.devices import use
from nova_accel.compute.state import local_host
from nova_accel.compute.state import placement
from nova_accel.core import errors
from tests import nvidia
from tests.functional import cloud
from tests.functional import hypervisor
from tests.functional import kernel
from tests.functional import test_openstack
from tests.functional import test_vgpu
from tests.functional import withheld

_ONCE = cloud.PAIR_SPEC[:-1] + ', "one_time_use": "yes"}'
_FREE, _RESERVED = (1, 0), (1, 1)


@ddt.ddt
class DrainTest(test_openstack.OpenstackCase, withheld.WithheldCase):
    """``openstack accel`` drains and undrains a used device."""

    DEVICE_SPEC = (_ONCE,)

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')
        self.server = self.boot(self.one)
        [self.address] = self.hostdevs(self.server)

    def go(self, thing, rounds):
        name = 'compute1' if thing == 'host' else f'compute1/{self.address}'
        for option in (('--drain', 'x'), ('--undrain',)):
            self.openstack.run(f'accel {thing} set', name, *option)
            self.rounds(rounds)

    def assertReserved(self):
        other = next(address for address in self.reserved()
                     if address != self.address)
        self.assertEqual({self.address: _RESERVED, other: _FREE},
                         self.reserved())

    @ddt.data(('device', 0), ('device', 2), ('host', 0), ('host', 2))
    @ddt.unpack
    def test_used_device(self, thing, rounds):
        self._delete_server(self.server)
        self.go(thing, rounds)
        self.assertReserved()
        self.rounds()
        self.assertReserved()

    @ddt.data(0, 1)
    def test_held_device(self, rounds):
        self.go('device', rounds)
        self.assertReserved()
        self._delete_server(self.server)
        for _round in range(3):
            self.assertReserved()
            self.rounds(1)

    def test_drained_and_freed_device_is_free_after_the_drain(self):
        self._delete_server(self.server)
        name = f'compute1/{self.address}'
        self.openstack.run('accel device set', name, '--drain', 'x')
        self.rounds()
        self.free(self.address)
        self.assertReserved()
        self.openstack.run('accel device set', name, '--undrain')
        self.rounds()
        self.assertEqual({_FREE}, set(self.reserved().values()))


@ddt.ddt
class OneHostTest(withheld.WithheldCase):

    DEVICE_SPEC = (_ONCE,)

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')

    def assertAllReserved(self):
        self.assertEqual({_RESERVED}, set(self.reserved().values()))

    def test_reverted_resize_keeps_its_device(self):
        server = self.boot(self.one)
        had = self.hostdevs(server)
        self._resize_server(server, self.flavor('one'))
        self.rounds(1)
        self.assertAllReserved()
        self.revert(server)
        self.assertKeeps(server, had)
        self.rounds(1)
        self.assertAllReserved()

    @ddt.data('undefine', 'fail_rebuild')
    def test_server_without_a_domain_keeps_its_devices(self, happens):
        server = self.boot(self.two)
        had = self.hostdevs(server)
        getattr(self, happens)(server)
        self.rounds(1)
        self.assertAllReserved()
        self.reboot(server)
        self.assertKeeps(server, had)

    def test_lost_allocations_are_restored(self):
        server = self.boot(self.two)
        had = self.hostdevs(server)
        self.placement.delete(f'/allocations/{server["id"]}')
        self.rounds(1)
        self.reboot(server)
        self.assertKeeps(server, had)
        self._delete_server(server)
        self.rounds(1)
        self.assertAllReserved()

    @ddt.data('reboot', 'start_host')
    def test_placement_is_down(self, operation):
        server = self.boot(self.two)
        had = self.hostdevs(server)
        self.rounds()
        with self.no_placement():
            getattr(self, operation)(server)
        self.assertKeeps(server, had)

    def start_host(self, server):
        self.domain(server).destroy()
        self.flags(resume_guests_state_on_host_boot=True)
        self.attempt(self.restart_compute_service, 'compute1')
        self.flags(resume_guests_state_on_host_boot=False)

    def test_failed_resize_uses_the_device(self):
        server = self.boot(self.one)
        with hypervisor.without_guests():
            self.attempt(self._resize_server, server, self.flavor('one'))
        self.rounds()
        self.reboot(server)
        self._delete_server(server)
        self.rounds()
        self.assertAllReserved()

    @ddt.data(True, False)
    def test_lost_allocations_are_restored_without_a_reservation(self, fails):
        """Restoring makes the devices free for a moment."""
        server = self.boot(self.two)
        had = self.hostdevs(server)
        self.rounds()
        self.placement.delete(f'/allocations/{server["id"]}')
        with (self.unreserved() if fails else contextlib.nullcontext()):
            self.reboot(server)
        self.reboot(server)
        self.assertKeeps(server, had)
        self.rounds()
        self._delete_server(server)
        self.computes['compute1'].manager.reset()
        self.rounds()
        self.assertAllReserved()

    def unreserved(self):
        """Return a context in which Placement rejects reservations."""
        return fixtures.MockPatchObject(placement.PlacementClient,
                                        '_mark_dirty', return_value='503')

    def test_host_is_unreadable_at_the_reservation(self):
        store = use.Use.store

        def store_unreadable(*args):
            with fixtures.MockPatchObject(
                    local_host.LocalHost, 'read_cached',
                    side_effect=errors.TreeError('sysfs_root', 'no')):
                return store(*args)

        with fixtures.MockPatchObject(use.Use, 'store', store_unreadable):
            self.boot(self.two, state='ERROR')

    @ddt.data([cloud.PAIR_SPEC], [_ONCE.replace('GPU_H100', 'GPU_NEW')], [])
    def test_changed_entry_frees_nothing(self, entries):
        self._delete_server(self.boot(self.two))
        self.rounds()
        for change in (entries, [_ONCE]):
            self.change_entries(*change)
            self.restart_compute_service('compute1')
            self.rounds()
            if change:
                self.assertAllReserved()

    def test_server_that_fails_before_its_definition_uses_nothing(self):
        with hypervisor.without_guests():
            self.boot(self.two, state='ERROR')
        self.rounds()
        self.assertEqual({_FREE}, set(self.reserved().values()))


class LiveMigrationTest(withheld.WithheldCase):

    DEVICE_SPEC = (cloud.migratable(_ONCE),)

    def setUp(self):
        super().setUp()
        for host in ('compute1', 'compute2'):
            self.start_compute(host)
        self.server = self.boot(self.two, host='compute1')

    def test_refused_migration_uses_nothing_on_the_destination(self):
        with fixtures.MockPatch(
                'nova.virt.libvirt.LibvirtDriver.'
                'check_source_migrate_data_at_dest',
                side_effect=exception.MigrationPreCheckError(reason='no')):
            self.attempt_live_migration(self.server)
        self.rounds()
        self.assertEqual({_FREE}, set(self.reserved('compute2').values()))

    def test_migration_that_fails_with_a_guest_there_uses_its_devices(self):
        def fail(_domain, xml):
            there = self.connection('compute2').createXML(xml, 0)
            self.assertEqual(2, len(self.held('compute2')))
            there.destroy()
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError, 'no', error_code=1)

        self.migration.on_move = fail
        self.attempt_live_migration(self.server)
        self.flags(host='compute2')
        self.rounds()
        self.assertEqual({}, self.held('compute2'))
        self.assertEqual({_RESERVED}, set(self.reserved('compute2').values()))

    def test_migration_is_refused_if_placement_reserves_nothing(self):
        had = self.hostdevs(self.server)
        with fixtures.MockPatchObject(
                placement.PlacementClient, 'mark_dirty',
                side_effect=errors.AssignmentError('Placement', 'is down')):
            self.attempt_live_migration(self.server)
        self.assertKeeps(self.server, had)
        self.flags(host='compute2')
        self.rounds()
        self.assertEqual({_FREE}, set(self.reserved('compute2').values()))

    def test_failed_evacuation_uses_the_devices(self):
        self.take_down('compute1')
        self.flags(host='compute2')
        with fixtures.MockPatch('nova.virt.libvirt.guest.Guest.launch',
                                side_effect=RuntimeError('no')):
            self.attempt(self._evacuate_server, self.server,
                         expected_host='compute1', expected_state='ERROR')
        self.rounds()
        self.assertEqual({_RESERVED}, set(self.reserved('compute2').values()))

    def test_migration_uses_the_devices_of_both_hosts(self):
        self._live_migrate(self.server)
        for host in ('compute1', 'compute2'):
            self.assertEqual({_RESERVED}, set(self.reserved(host).values()))


@ddt.ddt
class ColdMigrationTest(withheld.WithheldCase):

    DEVICE_SPEC = (_ONCE,)

    def setUp(self):
        super().setUp()
        for host in ('compute1', 'compute2'):
            self.start_compute(host)
        self.server = self.boot(self.two, host='compute1')

    def there(self):
        return set(self.reserved('compute2').values())

    def test_server_does_not_move_if_placement_rejects_the_reservation(self):
        with fixtures.MockPatchObject(placement.PlacementClient, '_mark_dirty',
                                      return_value='503'):
            self.attempt(self._migrate_server, self.server)
        self.assertEqual('ERROR', self.api.get_server(
            self.server['id'])['status'])

    @ddt.data('rounds', 'reboot')
    def test_migration_that_fails_before_the_definition(self, then):
        """The devices are used as soon as a guest is defined with them."""
        with hypervisor.without_guests():
            self.attempt(self._migrate_server, self.server)
        self.flags(host='compute2')
        self.rounds()
        self.assertEqual({_FREE}, self.there())
        if then == 'reboot':
            self.reboot(self.server)
        self._delete_server(self.server)
        self.rounds()
        self.assertEqual({_RESERVED if then == 'reboot' else _FREE},
                         self.there())


class GroupsTest(withheld.WithheldCase):
    """IOMMU groups of used devices are joined or divided."""

    DEVICE_SPEC = (_ONCE,)
    ADDRESSES = '0000:43:00.0', '0000:44:00.0'

    def setUp(self):
        super().setUp()
        machine = self.directory_host()
        self.groups = [machine / 'sys/bus/pci/devices' / address
                       / 'iommu_group' for address in self.ADDRESSES]
        self.targets = [group.readlink() for group in self.groups]

    def join(self, is_joined):
        self.groups[1].unlink()
        self.groups[1].symlink_to(self.targets[0 if is_joined else 1])
        if self.computes:
            self.restart_compute_service('compute1')
            self.rounds()
        else:
            self.start_compute('compute1')

    def assertFree(self, *addresses):
        self.assertEqual(set(addresses), {
            address for address, record in self.reserved().items()
            if record == _FREE})

    def test_divided(self):
        self.join(True)
        self._delete_server(self.boot(self.one))
        self.rounds()
        self.join(False)
        self.assertFree()
        self.free(self.ADDRESSES[0])
        self.assertFree(*self.ADDRESSES)

    def test_joined(self):
        self.join(False)
        self._delete_server(self.boot(self.two))
        self.rounds()
        self.free(self.ADDRESSES[0])
        self.assertFree(self.ADDRESSES[0])
        self.join(True)
        self.assertFree()


@ddt.ddt
class DividedCardTest(test_openstack.OpenstackCase, cloud.Cloud):
    """A whole card that was used is offered in another form."""

    CARD = '0000:41:00.0'
    WHOLE = (f'{{"vendor_id": "10de", "address": "{CARD}", "resource_class": '
             '"CUSTOM_GPU_H100", "one_time_use": "yes"}')
    FORMS = {
        'whole': (0, [WHOLE]),
        'one vGPU type': (8, [test_vgpu.SMALL_SPEC]),
        'two vGPU types': (8, [test_vgpu.SMALL_SPEC, test_vgpu.LARGE_SPEC]),
    }

    def setUp(self):
        super().setUp()
        self.flags(device_spec=[self.WHOLE], group='nova_accel')
        self.machine = self.directory_host(test_vgpu.MACHINE)
        self.kernel = self.useFixture(kernel.Functions(self.machine))
        self.kernel.offer_reset(self.CARD)
        self.kernel.set_num_vfs(self.CARD, 0)
        self.useFixture(nvidia.VgpuManager(self.machine))
        self.start_compute('compute1')
        self.gpu_profile('one', numa='off')
        self._delete_server(self.boot(self.flavor('one')))
        self._rounds()

    def _rounds(self):
        for _round in range(2):
            self._run_periodics()

    def _offer(self, form):
        number, entries = self.FORMS[form]
        self.kernel.set_num_vfs(self.CARD, number)
        self.flags(device_spec=entries, group='nova_accel')
        self.restart_compute_service('compute1')
        self._rounds()

    def _free(self):
        """Return the free units by provider."""
        return {name: free for name, provider in self.providers().items()
                for record in self._get_provider_inventory(
                    provider['uuid']).values()
                if (free := record['total'] - record['reserved'])}

    @ddt.data('one vGPU type', 'two vGPU types')
    def test_used_card(self, form):
        self._offer(form)
        self.assertEqual({}, self._free())
        for option in (('--drain', 'x'), ('--undrain',)):
            self.openstack.run('accel device set', f'compute1/{self.CARD}',
                               *option)
        self.assertEqual({}, self._free())
        self._offer('whole')
        self.assertEqual({}, self._free())

    @ddt.data('one vGPU type', 'two vGPU types')
    def test_card_that_is_freed(self, form):
        self._offer(form)
        self.free_used(self.providers()[
            f'compute1_accel_{self.CARD}']['uuid'])
        self.computes['compute1'].manager.reset()
        self._rounds()
        self.assertNotEqual({}, self._free())
        self._offer('whole')
        self.assertEqual({f'compute1_accel_{self.CARD}': 1}, self._free())

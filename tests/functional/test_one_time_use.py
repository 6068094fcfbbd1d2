# SPDX-License-Identifier: Apache-2.0
"""A used one_time_use device is free only after an operator has freed it."""

import ddt
import fixtures
from nova import exception

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
        self.free()
        self.assertReserved()
        self.openstack.run('accel device set', name, '--undrain')
        self.rounds()
        self.assertEqual({_FREE}, set(self.reserved().values()))

    def free(self):
        """Do what the administration guide says after a wipe."""
        self.free_used(self.providers()[
            f'compute1_accel_{self.address}']['uuid'])
        self.computes['compute1'].manager.reset()
        self.rounds()


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
            self.attempt(self._live_migrate, self.server)
        self.rounds()
        self.assertEqual({_FREE}, set(self.reserved('compute2').values()))

    def test_migration_uses_the_devices_of_both_hosts(self):
        self._live_migrate(self.server)
        for host in ('compute1', 'compute2'):
            self.assertEqual({_RESERVED}, set(self.reserved(host).values()))


@ddt.ddt
class DividedCardTest(test_openstack.OpenstackCase, cloud.Cloud):
    """A whole card that was used is offered in another form."""

    CARD = '0000:41:00.0'
    WHOLE = (f'{{"vendor_id": "10de", "address": "{CARD}", "resource_class": '
             '"CUSTOM_GPU_H100", "one_time_use": "yes"}')
    FORMS = {
        'whole': ('0', [WHOLE]),
        'one vGPU type': ('8', [test_vgpu.SMALL_SPEC]),
        'two vGPU types': ('8', [test_vgpu.SMALL_SPEC, test_vgpu.LARGE_SPEC]),
    }

    def setUp(self):
        super().setUp()
        self.flags(device_spec=[self.WHOLE], group='nova_accel')
        self.machine = self.directory_host(test_vgpu.MACHINE)
        self.kernel = self.useFixture(kernel.Functions(self.machine))
        self.kernel.offer_reset(self.CARD)
        self._set_vfs('0')
        self.useFixture(nvidia.VgpuManager(self.machine))
        self.start_compute('compute1')
        self.gpu_profile('one', numa='off')
        self._delete_server(self.boot(self.flavor('one')))
        self._rounds()

    def _set_vfs(self, number):
        self.kernel._set_vfs(self.kernel.place(self.CARD) / 'sriov_numvfs',
                             number)

    def _rounds(self):
        for _round in range(2):
            self._run_periodics()

    def _offer(self, form):
        number, entries = self.FORMS[form]
        self._set_vfs(number)
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

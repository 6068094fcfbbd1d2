# SPDX-License-Identifier: Apache-2.0
"""No server gets a device with ``clean`` before it is clean."""

import contextlib
import os
import shutil

import ddt
import fixtures
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.compute.state import device_claims
from nova_accel.compute.state import placement
from nova_accel.host import operations
from tests.functional import cleaner
from tests.functional import cloud
from tests.functional import faults
from tests.functional import kernel
from tests.functional import test_crash
from tests.functional import test_openstack
from tests.functional import withheld

SPEC = cloud.PAIR_SPEC[:-1] + ', "clean": "wipe"}'
FPGAS = cloud.DATA / 'hosts' / 'fpga-modelled.json'
_GPUS = '0000:43:00.0', '0000:44:00.0'


class Cleaned(test_openstack.OpenstackCase, withheld.WithheldCase):
    """Base of test cases with two GPUs that have a cleaner."""

    DEVICE_SPEC = (SPEC,)

    def setUp(self):
        super().setUp()
        self.set_up_cleaner()
        self.start_compute('compute1')

    def set_up_cleaner(self):
        self.directory_host()
        self.cleaner = self.useFixture(cleaner.Cleaner())
        self.flags(cleaner=[self.cleaner.option], group='nova_accel')
        self.background = self.useFixture(cloud.BackgroundWork())
        self.addCleanup(lambda: self.assertEqual([], self.cleaner.leaks))

    def rounds(self, number=2):
        """Run the periodic tasks, each with its work in the background."""
        for _round in range(number):
            self._run_periodics()
            self.background.wait()

    def reasons(self):
        return {address: ', '.join(row['Reason']) for address, row
                in self.devices().items() if row['Reason']}

    def set(self, *options, address=_GPUS[0]):
        self.openstack.run('accel device set', f'compute1/{address}',
                           *options)

    def assertFree(self, *addresses):
        self.assertEqual(set(addresses), {
            address for address, row in self.devices().items()
            if row['Status'] == 'free'})


@ddt.ddt
class CleanTest(Cleaned):

    def test_from_one_server_to_the_next(self):
        server = self.boot(self.two)
        self.rounds()
        self.assertEqual([], self.cleaner.calls())
        self.cleaner.set(hang=True)
        # Nova's helper runs the periodic tasks as well.
        self._delete_server(server)
        self.assertFree()
        self.assertEqual('ERROR', self.outcome(self.one))
        self.cleaner.set(hang=False)
        self.background.wait()
        self.rounds()
        self.assertFree(*_GPUS)
        self.assertEqual(
            {f'{step} {gpu}' for step in ('clean', 'verify') for gpu in _GPUS},
            set(self.cleaner.calls()))
        self.boot(self.two)

    def test_states(self):
        self.cleaner.set(hang=True)
        self._delete_server(self.boot(self.two))
        self.assertEqual(dict.fromkeys(_GPUS, 'cleaning'), self.reasons())
        self.assertEqual('ERROR', self.outcome(self.one))
        self.cleaner.set(hang=False, fail_verify=True)
        self.background.wait()
        self.rounds()
        self.assertEqual(dict.fromkeys(_GPUS, 'cleaning failed'),
                         self.reasons())
        self.assertEqual('ERROR', self.outcome(self.one))
        self.assertIn("ended with 4 and said 'it is broken'",
                      self.stdlog.logger.output)

    @ddt.data('fail_clean', 'fail_verify')
    def test_failure_and_another_try(self, failure):
        self.cleaner.set(**{failure: True})
        self._delete_server(self.boot(self.two))
        self.rounds(3)
        self.assertFree()
        calls = len(self.cleaner.calls())
        self.rounds()
        self.assertEqual(calls, len(self.cleaner.calls()))
        self.cleaner.set(**{failure: False})
        self.set('--clean')
        self.rounds(3)
        self.assertFree(_GPUS[0])
        self.restart_compute_service('compute1')
        self.rounds(3)
        self.assertFree(*_GPUS)

    def test_error_without_a_text_is_a_failure(self):
        # So the death of the helper may look, or a lack of memory.
        self.useFixture(fixtures.MockPatchObject(
            operations.Operations, 'clean', side_effect=MemoryError))
        self._delete_server(self.boot(self.two))
        self.rounds(3)
        self.assertEqual(dict.fromkeys(_GPUS, 'cleaning failed'),
                         self.reasons())

    def test_freed_by_an_operator(self):
        self.cleaner.set(fail_verify=True)
        self._delete_server(self.boot(self.two))
        self.rounds(3)
        (self.cleaner.folder / f'content-{_GPUS[0]}').unlink(missing_ok=True)
        self.set('--free')
        self.rounds()
        self.assertFree(_GPUS[0])
        self.boot(self.one)

    def test_clean_on_request(self):
        self.set('--clean')
        self.assertFree(_GPUS[1])
        self.rounds(3)
        self.assertFree(*_GPUS)
        self.assertEqual([f'clean {_GPUS[0]}', f'verify {_GPUS[0]}'],
                         self.cleaner.calls())

    def test_held_device_is_not_cleaned_on_request(self):
        server = self.boot(self.two)
        for option in ('--clean', '--free'):
            self.set(option)
            self.rounds()
        self.assertEqual([], self.cleaner.calls())
        self.cleaner.set(fail_clean=True)
        self._delete_server(server)
        self.assertFree()

    @ddt.data(True, False)
    def test_drain_frees_nothing(self, is_held):
        server = self.boot(self.two)
        if not is_held:
            self.cleaner.set(fail_clean=True)
            self._delete_server(server)
            self.rounds()
        for option in (('--drain', 'x'), ('--undrain',)):
            self.set(*option)
        self.cleaner.set(fail_clean=True)
        if is_held:
            self._delete_server(server)
        self.assertFree()

    @ddt.data('reboot', 'undefine', 'fail_rebuild')
    def test_server_keeps_its_devices(self, happens):
        server = self.boot(self.two)
        had = self.hostdevs(server)
        getattr(self, happens)(server)
        self.rounds()
        self.reboot(server)
        self.assertKeeps(server, had)
        self.assertEqual([], self.cleaner.calls())

    def test_reverted_resize_keeps_its_device(self):
        server = self.boot(self.one)
        had = self.hostdevs(server)
        self._resize_server(server, self.flavor('one'))
        self.rounds()
        self.assertEqual([], self.cleaner.calls())
        self.revert(server)
        self.assertKeeps(server, had)
        self.rounds(3)
        [other] = set(_GPUS) - set(had)
        self.assertFree(other)
        self.assertEqual({other}, {call.split()[1] for call
                                   in self.cleaner.calls()})

    def test_server_that_starts_during_a_report_to_placement(self):
        mark = placement.PlacementClient.mark_dirty
        update = report.SchedulerReportClient.update_from_provider_tree

        def during_a_report(client, *marked):
            def updating(*args, **more):
                mark(client, *marked)
                return update(*args, **more)

            with fixtures.MockPatchObject(
                    report.SchedulerReportClient, 'update_from_provider_tree',
                    updating):
                self._run_periodics()

        with fixtures.MockPatchObject(
                placement.PlacementClient, 'mark_dirty', during_a_report):
            server = self.boot(self.two)
        self.assertNotIn('Error updating resources',
                         self.stdlog.logger.output)
        self.cleaner.set(fail_clean=True)
        self._delete_server(server)
        self.assertFree()

    def test_cleaner_that_is_not_defined(self):
        self._delete_server(self.boot(self.two))
        self.flags(cleaner=[], group='nova_accel')
        self.rounds()
        self.assertFree()
        self.flags(cleaner=[self.cleaner.option], group='nova_accel')
        self.rounds(4)
        self.assertFree(*_GPUS)

    @ddt.data([cloud.PAIR_SPEC], [SPEC.replace('GPU_H100', 'GPU_NEW')], [])
    def test_changed_entry_frees_nothing(self, entries):
        self.cleaner.set(fail_clean=True)
        self._delete_server(self.boot(self.two))
        self.rounds()
        for change in (entries, [SPEC]):
            self.change_entries(*change)
            self.restart_compute_service('compute1')
            self.rounds()
            if change:
                self.assertFree()
            if change == [cloud.PAIR_SPEC]:
                self.assertEqual(dict.fromkeys(_GPUS, 'dirty'),
                                 self.reasons())
        self.cleaner.set(fail_clean=False)
        self.restart_compute_service('compute1')
        self.rounds(4)
        self.assertFree(*_GPUS)


class IommuGroupTest(Cleaned):
    """Both GPUs are one unit, as they share an IOMMU group."""

    def directory_host(self):
        bus = super().directory_host() / 'sys/bus/pci/devices'
        group = bus / _GPUS[1] / 'iommu_group'
        group.unlink()
        group.symlink_to(os.readlink(bus / _GPUS[0] / 'iommu_group'))

    def test_each_device_is_cleaned(self):
        server = self.boot(self.one)
        self.assertEqual(set(_GPUS), set(self.hostdevs(server)))
        self._delete_server(server)
        self.rounds(3)
        self.assertEqual(set(), self.cleaner.dirty())
        self.assertEqual({f'verify {gpu}' for gpu in _GPUS}, {
            call for call in self.cleaner.calls()
            if call.startswith('verify')})


class FpgaGroupTest(Cleaned):
    """Two FPGA cards are one unit, as they share an IOMMU group."""

    CARDS = '0000:47:00.0', '0000:48:00.0'
    DEVICE_SPEC = (
        '{"kind": "fpga", "vendor_id": "10ee", "clean": "wipe"}',)

    def directory_host(self):
        bus = super().directory_host(FPGAS) / 'sys/bus/pci/devices'
        card = (bus / self.CARDS[0]).resolve()
        shutil.copytree(card, card.with_name(self.CARDS[1]), symlinks=True)
        (bus / self.CARDS[1]).symlink_to(
            os.readlink(bus / card.name).replace(*self.CARDS))

    def test_each_card_is_cleaned(self):
        self.write_profile('card', groups=[{'resources': {'FPGA': 1}}])
        server = self.boot(self.flavor('card'))
        self.assertEqual(set(self.CARDS), set(self.hostdevs(server)))
        self._delete_server(server)
        self.rounds(3)
        self.assertEqual(set(), self.cleaner.dirty())
        self.assertEqual({f'verify {card}' for card in self.CARDS}, {
            call for call in self.cleaner.calls()
            if call.startswith('verify')})


class ResetTest(Cleaned):
    """The calls of the cleaner have the resets of the GPUs among them."""

    def directory_host(self):
        functions = self.useFixture(
            kernel.Functions(super().directory_host()))
        functions.offer_reset(*_GPUS)
        functions.on_reset = lambda address: self.cleaner.note(
            f'reset {address}')
        for address in _GPUS:
            (functions.place(address) / 'driver').unlink(missing_ok=True)

    def test_a_cleaner_that_fails_leaves_nothing_in_registers(self):
        self.cleaner.set(fail_clean=True)
        server = self.boot(self.one)
        [device] = self.hostdevs(server)
        self._delete_server(server)
        self.rounds(4)
        calls = [step for step, address in map(str.split, self.cleaner.calls())
                 if address == device]
        self.assertEqual(['reset', 'clean', 'reset'], calls[-3:])


class VirtualFunctionTest(Cleaned):
    """VFs of one card share a resource provider."""

    DEVICE_SPEC = (
        '{"vendor_id": "8086", "address": "0000:85:*.*", "num_vfs": 4, '
        '"resource_class": "CUSTOM_QAT", "clean": "wipe"}',)

    def setUp(self):
        super().setUp()
        self.write_profile('vf', groups=[{'resources': {'CUSTOM_QAT': 1}}])
        self.vf = self.flavor('vf')

    def directory_host(self):
        machine = super().directory_host(cloud.A100)
        card = self.useFixture(kernel.Functions(machine))
        for number in 0, 4:
            card.set_num_vfs('0000:85:00.0', number)

    def free_vfs(self):
        [row] = self.devices().values()
        return row['Used'], row['Free']

    def test_each_vf_is_cleaned_alone(self):
        (_none, total) = self.free_vfs()
        servers = [self.boot(self.vf) for _number in range(total)]
        self.rounds()
        self.assertEqual((total, 0), self.free_vfs())
        [left] = self.hostdevs(servers[0])
        self.cleaner.set(hang=True)
        self._delete_server(servers[0])
        self.assertEqual((total - 1, 0), self.free_vfs())
        self.cleaner.set(hang=False)
        self.background.wait()
        self.rounds(3)
        self.assertEqual((total - 1, 1), self.free_vfs())
        self.assertEqual([f'clean {left}', f'verify {left}'],
                         self.cleaner.calls())
        server = self.boot(self.vf)
        self.assertEqual({left}, set(self.hostdevs(server)))

    def test_what_was_left_since_is_not_freed(self):
        """An operator frees one VF, and a server leaves another one."""
        servers = [self.boot(self.vf) for _number in range(2)]
        self.cleaner.set(fail_clean=True)
        self._delete_server(servers[0])
        self.rounds(3)
        self.set('--free', address='0000:85:00.0')
        self._delete_server(servers[1])
        self.rounds(3)
        self.assertEqual((0, 3), self.free_vfs())
        self.set('--free', address='0000:85:00.0')
        self.rounds()
        self.assertEqual((0, 4), self.free_vfs())

    def test_dirty_vf_is_not_chosen(self):
        self.boot(self.vf)
        server = self.boot(self.vf)
        [left] = self.hostdevs(server)
        self.cleaner.set(fail_clean=True)
        self._delete_server(server)
        others = [self.boot(self.vf) for _number in range(2)]
        self.assertNotIn(left, {address for other in others
                                for address in self.hostdevs(other)})

    def test_vf_that_a_server_leaves_meanwhile_is_not_given(self):
        """The Host was read while the other server still had it."""
        other = self.boot(self.vf)
        [left] = self.hostdevs(other)
        self.cleaner.set(fail_clean=True)
        choose = device_claims.DeviceClaims.choose
        seen = []

        def leave_first(claims, *args, **how):
            if not seen:
                self._delete_server(other)
            chosen = choose(claims, *args, **how)
            seen.append([str(device.address) for device in chosen.hostdevs])
            return chosen

        with fixtures.MockPatchObject(device_claims.DeviceClaims, 'choose',
                                      leave_first):
            server = self.boot(self.vf)
        self.assertEqual([left], seen[0])
        self.assertNotIn(left, self.hostdevs(server))


@ddt.ddt
class DividedCardTest(Cleaned):
    """A card is used as a whole, and then by its VFs, or vice versa."""

    CARD = '0000:85:00.0'
    DEVICE_SPEC = (
        '{"vendor_id": "8086", "address": "0000:85:*.*", '
        '"resource_class": "CUSTOM_QAT", "clean": "wipe"}',)

    def setUp(self):
        super().setUp()
        self.write_profile('qat', groups=[{'resources': {'CUSTOM_QAT': 1}}])
        self.qat = self.flavor('qat')

    def directory_host(self):
        machine = super().directory_host(cloud.A100)
        self.kernel = self.useFixture(kernel.Functions(machine))
        self.kernel.offer_reset(self.CARD)

    def divide(self, number):
        """Change the number of VFs, and restart nova-compute."""
        self.kernel.set_num_vfs(self.CARD, number)
        self.restart_compute_service('compute1')
        self.rounds(3)

    def free_units(self):
        return sum(row['Free'] for row in self.devices().values())

    @ddt.data((0, 2), (2, 0))
    @ddt.unpack
    def test_no_form_is_free_before_the_card_is_clean(self, first, then):
        for number in 0, first:
            self.kernel.set_num_vfs(self.CARD, number)
        self.restart_compute_service('compute1')
        self.rounds()
        free = self.free_units()
        self.cleaner.set(fail_clean=True)
        self._delete_server(self.boot(self.qat))
        self.rounds()
        self.kernel.set_num_vfs(self.CARD, 0)
        self.divide(then)
        self.assertEqual(0, self.free_units())
        # The VFs of a dirty card do not stand for it; the card does.
        self.cleaner.set(fail_clean=False)
        self.divide(then)
        calls = self.cleaner.calls()
        self.rounds()
        self.assertEqual(calls, self.cleaner.calls())
        self.assertEqual(0 if then else 1, self.free_units())
        self.kernel.set_num_vfs(self.CARD, 0)
        self.divide(first)
        self.assertEqual(free, self.free_units())

    def test_card_that_was_divided_since_is_freed_by_an_operator(self):
        self.kernel.set_num_vfs(self.CARD, 0)
        self.restart_compute_service('compute1')
        self.rounds()
        self.cleaner.set(fail_clean=True)
        self._delete_server(self.boot(self.qat))
        self.divide(2)
        self.assertEqual(0, self.free_units())
        self.set('--free', address=self.CARD)
        self.rounds()
        self.assertEqual(2, self.free_units())


class CleaningCrashTest(test_crash.Crash):
    """nova-compute dies before each step of a device's use and cleaning.

    It starts again, as after a reboot of the host as well: what it knows is in
    Placement and libvirt. No server may find what another one wrote.
    """

    DEVICE_SPEC = (SPEC,)

    def setUp(self):
        self.cleaner = None
        super().setUp()

    def start_compute(self, *args, **more):
        if not self.cleaner:
            self.directory_host()
            self.cleaner = self.useFixture(cleaner.Cleaner())
            self.flags(cleaner=[self.cleaner.option], group='nova_accel')
            self.useFixture(faults.Background(self.processes))
            # The lock of a process ends with it.
            self.useFixture(fixtures.MockPatchObject(
                operations, '_locked', lambda path: contextlib.nullcontext(0)))
        return super().start_compute(*args, **more)

    def cleaning(self, server):
        """Run the periodic tasks, until the devices are free."""
        for _round in range(4):
            self.processes.start('compute1', lambda: self.run_tasks(
                'compute1', 'update_available_resource'))
            self.processes.settle()
        return server

    def fill(self):
        self.cleaning(None)
        return super().fill()

    def aftermath(self, fault, server):
        """Return the problems after a crash, and delete all servers."""
        others = [*super().fill(), *self.fill()]
        self.delete(server, *others)
        self.cleaning(None)
        problems = [*self.cleaner.leaks, *self.lost()]
        self.cleaner.leaks = []
        return [f'{fault}: {problem}' for problem in problems]

    def test_boot(self):
        self.die_at_each_step(self.boot_here)

    def test_delete(self):
        self.die_at_each_step(self.boot_here, self.deleting)

    def test_clean(self):
        self.die_at_each_step(self.boot_here, self.deleting, self.cleaning)


class HostCrashTest(CleaningCrashTest):
    """The host reboots: its guests end with nova-compute."""

    def kill(self, host):
        super().kill(host)
        for domain in self.connection(host).listAllDomains(
                fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            domain.destroy()

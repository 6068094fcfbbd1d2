# SPDX-License-Identifier: Apache-2.0
"""Health checks: new servers do not get an unhealthy device."""

import os
import shutil
import threading
import time
from unittest import mock

import ddt
import fixtures

from nova_accel.compute.state import local_host
from nova_accel.core.placement import inventory
from nova_accel.host import health
from nova_accel.host.kinds import pci
from tests.functional import cloud
from tests.functional import test_reset

#: Number of checks of each recording in QuietTest.
_ROUNDS = int(os.environ.get('NOVA_ACCEL_ROUNDS', 20))

ONE, TWO = test_reset.GPUS[:2]
PROVIDER = test_reset.PROVIDER
_NODE = '3a1b4f0e-7f0b-4f5c-9c0e-2b6f0a6d9e11'
UNHEALTHY = 'CUSTOM_NOVA_ACCEL_UNHEALTHY'
_HEALTHY = {'aer_dev_fatal': 'DLP 7\nTOTAL_ERR_FATAL 7\n',
            'aer_dev_nonfatal': 'TOTAL_ERR_NONFATAL 5000\n',
            'aer_dev_correctable': 'RxErr 9\nTOTAL_ERR_COR 90000\n',
            'current_link_width': '16\n', 'max_link_width': '16\n',
            'current_link_speed': '32.0 GT/s PCIe\n',
            'max_link_speed': '32.0 GT/s PCIe\n',
            'config': '\x00' * 64}
_ERROR = 'TOTAL_ERR_FATAL 8\n'
_WITHOUT_ONE = cloud.FOUR_SPEC.replace('[48][34]', '(44|8[34])')
_UNKNOWN = 'its health is unknown'

_CARD = '0000:44:00.0'
_VFS = tuple(f'0000:44:00.{number}' for number in range(4, 8))


class Blocked(fixtures.Fixture):
    """The kernel blocks the readers of functions, until ``over`` is set."""

    def __init__(self, *addresses):
        self.addresses, self.over = addresses, threading.Event()

    def _setUp(self):
        read = health.read

        def blocking(tree, function, vfs):
            if str(function.address) in self.addresses:
                self.over.wait(120)
            return read(tree, function, vfs)

        self.addCleanup(self.over.set)
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.host.background.WAIT', 0.5))
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.host.health.read', blocking))


class HealthCase(test_reset.Reset):

    def setUp(self):
        super().setUp()
        for address in self.functions:
            for name, content in _HEALTHY.items():
                self.write(address, name, content)
            port = self.kernel.place(address).parent
            (port / 'max_link_width').write_text('32\n')

    def write(self, address, name, content):
        (self.kernel.place(address) / name).write_text(content,
                                                       encoding='latin-1')

    def is_withheld(self):
        """Run the periodic tasks; return whether device ONE is withheld."""
        self._run_periodics()
        withheld = PROVIDER not in self.totals()
        self.assertEqual(withheld, UNHEALTHY in self.traits())
        return withheld

    def offered(self):
        """Run the periodic tasks; return the devices that are offered."""
        self._run_periodics()
        return {name.rpartition('_')[2] for name in self.totals()}

    def block(self, *addresses):
        """Block readers of functions; return the event that ends it."""
        return self.useFixture(Blocked(*addresses)).over


class HealthTest(HealthCase):

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')

    def check_withheld(self, name, fault, says, options=()):
        for option, value in dict(options).items():
            self.flags(group='nova_accel', **{option: value})
        self.assertFalse(self.is_withheld())
        self.write(ONE, name, fault)
        self.assertTrue(self.is_withheld())
        for _each in range(3):
            self.assertNotIn(ONE, self.hostdevs(self.boot(self.gpu)))
        self.boot(self.gpu, state='ERROR')
        self._run_periodics()
        self.assertEqual(1, self.said(says))

    def test_fatal_error(self):
        self.check_withheld('aer_dev_fatal', 'TOTAL_ERR_FATAL 8\n',
                            'it had a fatal PCI Express error')
        self.ahead += 3601
        self.assertFalse(self.is_withheld())
        self.assertEqual(1, self.said(f'{ONE} is healthy again'))

    def test_many_correctable_errors(self):
        self.check_withheld('aer_dev_correctable', 'TOTAL_ERR_COR 100001\n',
                            'more than 10000 correctable')

    def test_many_nonfatal_errors(self):
        self.check_withheld('aer_dev_nonfatal', 'TOTAL_ERR_NONFATAL 5101\n',
                            'more than 100 non-fatal')

    def test_narrow_link(self):
        self.check_withheld('current_link_width', '4\n',
                            f'the link of {ONE} has 4 of 16 lanes')
        self.write(ONE, 'current_link_width', '16\n')
        self.assertFalse(self.is_withheld())

    def test_slow_link_if_speed_is_checked(self):
        self.check_withheld('current_link_speed', '2.5 GT/s PCIe\n',
                            f'the link of {ONE} runs at 2.5 of 32 GT/s',
                            {'health_check_link_speed': True})

    def test_configuration_space_of_ones(self):
        self.check_withheld('config', '\xff' * 64, 'it does not answer')

    def test_nothing_is_withheld_if_checks_are_off(self):
        self.flags(group='nova_accel', health_max_fatal_errors=-1,
                   health_check_link_width=False)
        self.write(ONE, 'aer_dev_fatal', 'TOTAL_ERR_FATAL 99\n')
        self.write(ONE, 'current_link_width', '1\n')
        self.assertFalse(self.is_withheld())

    def test_server_keeps_its_unhealthy_device(self):
        held = {}
        for _each in self.functions:
            server = self.boot(self.gpu)
            held.update(dict.fromkeys(self.hostdevs(server), server))
        self.write(ONE, 'current_link_width', '4\n')
        self._run_periodics()
        self.assertIn(UNHEALTHY, self.traits())
        self._reboot_server(held[ONE], hard=True)
        self.assertEqual([ONE], list(self.hostdevs(held[ONE])))
        self.assertEqual([], self.disagreements())
        self._delete_server(held[ONE])
        self.boot(self.gpu, state='ERROR')

    def test_restart_does_not_end_a_fatal_error(self):
        self.write(ONE, 'aer_dev_fatal', 'TOTAL_ERR_FATAL 8\n')
        self.assertTrue(self.is_withheld())
        self.restart_compute_service('compute1')
        self.assertTrue(self.is_withheld())
        self.ahead += 3601
        self.assertFalse(self.is_withheld())
        # After its time the error does not withhold the device again.
        self.restart_compute_service('compute1')
        self.assertFalse(self.is_withheld())

    def test_finding_of_a_kind_withholds_the_device(self):
        with mock.patch.object(
                pci.Functions, 'examine', lambda _kind, function: (
                    ['its fan has stopped'] if str(function.address) == ONE
                    else ()), create=True):
            self.assertTrue(self.is_withheld())
        self.assertEqual(1, self.said('its fan has stopped'))
        with mock.patch.object(pci.Functions, 'examine',
                               lambda _kind, function: 1 / 0, create=True):
            self.assertFalse(self.is_withheld())
        self.assertEqual(len(self.functions), self.said('cannot examine'))
        self.assertEqual(0, self.said('Traceback'))


class BlockedTest(HealthCase):
    """The kernel blocks the reader of a card."""

    def test_card_is_withheld_until_it_is_read(self):
        self.start_compute('compute1')
        over = self.block(ONE)
        for _round in range(3):
            self.assertEqual({*self.functions} - {ONE}, self.offered())
        self.assertEqual(1, self.said(f'{ONE} (10de:2330): {_UNKNOWN}'))
        self.kernel.resets.clear()
        over.set()
        self._wait_for_assert(lambda: self.assertFalse(self.is_withheld()))
        self.assertEqual(1, self.said(f'{ONE} is healthy again'))
        self.assertEqual([ONE], self.kernel.resets)

    def test_error_of_another_card_is_noticed(self):
        self.start_compute('compute1')
        self.block(TWO)
        self.assertNotIn(TWO, self.offered())
        self.write(ONE, 'aer_dev_fatal', _ERROR)
        self.assertEqual({*self.functions} - {ONE, TWO}, self.offered())

    def test_card_is_not_offered_by_a_start(self):
        self.block(ONE)
        self.start_compute('compute1')
        self.assertNotIn(PROVIDER, self.totals())
        self.restart_compute_service('compute1')
        self.assertNotIn(PROVIDER, self.totals())
        self.assertTrue(self.is_withheld())

    def test_restart_does_not_end_an_error_of_another_card(self):
        self.start_compute('compute1')
        self.write(TWO, 'aer_dev_fatal', _ERROR)
        self.assertNotIn(TWO, self.offered())
        self.block(ONE)
        self.restart_compute_service('compute1')
        for _round in range(2):
            self.assertEqual({*self.functions} - {ONE, TWO}, self.offered())

    def test_known_problem_stays(self):
        self.start_compute('compute1')
        self.write(ONE, 'current_link_width', '4\n')
        self.assertTrue(self.is_withheld())
        over = self.block(ONE)
        self.assertTrue(self.is_withheld())
        self.assertEqual(1, self.said(f'4 of 16 lanes; {_UNKNOWN}'))
        over.set()

        def is_read():
            self.assertTrue(self.is_withheld())
            self.assertEqual(2, self.said('4 of 16 lanes; look for it'))

        self._wait_for_assert(is_read)
        self.assertEqual(0, self.said('healthy again'))

    def test_kind_blocks(self):
        over = threading.Event()
        self.addCleanup(over.set)
        self.useFixture(Blocked())
        self.useFixture(fixtures.MockPatchObject(
            pci.Functions, 'examine', lambda _kind, function: (
                over.wait(120) and () if str(function.address) == ONE
                else ()), create=True))
        self.start_compute('compute1')
        self.assertEqual({*self.functions} - {ONE}, self.offered())

    def test_all_cards_block_for_one_wait(self):
        self.block(*self.functions)
        local, took = local_host.LocalHost(), []
        for _round in range(2):
            began = time.monotonic()
            local.refresh_withheld(inventory.Node(_NODE, 'compute1'))
            took.append(time.monotonic() - began)
        self.assertEqual({cloud.GPU: 0}, local.read().units)
        self.assertLess(took[0], 4 * 0.5)
        # Readers that still run are not waited for again.
        self.assertLess(took[1], 0.5)


class UnreadTest(HealthCase):

    def refresh(self):
        self.local.refresh_withheld(inventory.Node(_NODE, 'compute1'))

    def offered(self):
        self.local.invalidate()
        return self.local.read().units.get(cloud.GPU, 0)

    def test_new_card_is_withheld_until_it_is_read(self):
        self.flags(device_spec=[_WITHOUT_ONE], group='nova_accel')
        self.local = local_host.LocalHost()
        # Otherwise the log of each start would say so.
        self.assertEqual(3, self.offered())
        self.refresh()
        self.flags(device_spec=self.entries, group='nova_accel')
        self.assertEqual(3, self.offered())
        self.refresh()
        self.assertEqual(4, self.offered())
        self.assertEqual(1, self.said(f'{ONE} (10de:2330): {_UNKNOWN}'))

    def test_card_is_withheld_if_no_thread_can_read_it(self):
        self.local = local_host.LocalHost()
        with mock.patch.object(threading.Thread, 'start', side_effect=(
                RuntimeError("can't start new thread"))):
            self.refresh()
            self.refresh()
        self.assertEqual(0, self.offered())
        self.assertEqual(1, self.said(f'Cannot read the health of {ONE}'))
        self.refresh()
        self.assertEqual(4, self.offered())

    def test_function_that_comes_back_is_a_new_one(self):
        """The kernel removed it and found it again, without its errors."""
        self.local = local_host.LocalHost()
        self.refresh()
        self.write(ONE, 'aer_dev_fatal', _ERROR)
        self.refresh()
        self.assertEqual(3, self.offered())
        link = self.machine / 'sys/bus/pci/devices' / ONE
        target = link.readlink()
        link.unlink()
        self.local.invalidate()
        self.refresh()
        self.assertEqual(0, self.said('healthy again'))
        link.symlink_to(target)
        self.local.invalidate()
        self.refresh()
        self.assertEqual(4, self.offered())


class EntryTest(HealthCase):
    """The entry changes of a card that had an error."""

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')
        self.write(ONE, 'aer_dev_fatal', _ERROR)
        self.assertTrue(self.is_withheld())

    def name(self, entry):
        self.flags(device_spec=[entry], group='nova_accel')
        self._run_periodics()

    def test_removed_and_added_again(self):
        self.name(_WITHOUT_ONE)
        self.assertNotIn(PROVIDER, self.providers())
        self.name(cloud.FOUR_SPEC)
        self.assertTrue(self.is_withheld())
        self.assertEqual(0, self.said('healthy again'))
        self.ahead += 3601
        self.assertFalse(self.is_withheld())

    def test_other_class_before_a_restart(self):
        self.name(cloud.FOUR_SPEC.replace('GPU_H100', 'GPU_NEW'))
        self.restart_compute_service('compute1')
        self.assertTrue(self.is_withheld())


class HeldEntryTest(HealthCase):

    def test_removed_before_a_restart_and_added_again(self):
        """A server has the card, and its provider stays."""
        self.start_compute('compute1')
        self.gpu_profile('four', 4, numa='off')
        self.boot(self.flavor('four'))
        self.write(ONE, 'aer_dev_fatal', _ERROR)
        self.assertTrue(self.is_withheld())
        self.flags(device_spec=[_WITHOUT_ONE], group='nova_accel')
        self._run_periodics()
        self.restart_compute_service('compute1')
        self._run_periodics()
        self.flags(device_spec=[cloud.FOUR_SPEC], group='nova_accel')
        self.assertTrue(self.is_withheld())


@ddt.ddt
class RecoveredTest(test_reset.Reset):
    """Virtual functions are reset after an error of them or of their card."""

    entries = [cloud.VF_SPECS[1]]
    recording = cloud.A100
    functions = _VFS

    def count_errors(self, addresses, number):
        for address in addresses:
            (self.kernel.place(address) / 'aer_dev_fatal').write_text(
                f'TOTAL_ERR_FATAL {number}\n')

    @ddt.data(_VFS, (_CARD,))
    def test_functions_are_reset(self, failing):
        self.count_errors(failing, 7)
        self.start_compute('compute1')
        self.assertCountEqual(_VFS, self.kernel.resets)
        self.count_errors(failing, 8)
        self._run_periodics()
        self.assertEqual({}, self.totals())
        self.ahead += 3601
        self._run_periodics()
        self.assertNotEqual({}, self.totals())
        self.assertCountEqual(2 * _VFS, self.kernel.resets)


@ddt.ddt
class VirtualFunctionTest(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.machine = self.directory_host(cloud.A100)
        self.flags(device_spec=[cloud.VF_SPECS[1]], group='nova_accel')
        self.start_compute('compute1')

    def free(self):
        inventory = self._get_provider_inventory(self.class_provider(
            'CUSTOM_VF'))['CUSTOM_VF']
        return inventory['total'] - inventory['reserved']

    def test_card_that_lost_a_virtual_function(self):
        self.assertEqual(4, self.free())
        link = self.machine / 'sys/bus/pci/devices/0000:44:00.7'
        shutil.rmtree(link.resolve())
        link.unlink()
        self._run_periodics()
        self.assertEqual(0, self.free())
        self.assertIn('1 of its virtual functions is enabled, but not there',
                      self.stdlog.logger.output)

    @ddt.data(_CARD, _VFS[0])
    def test_card_or_function_that_blocks(self, address):
        self.useFixture(Blocked(address))
        self._run_periodics()
        self.assertEqual(0, self.free())


class QuietTest(cloud.Cloud):

    def test_unchanged_recordings_raise_no_alarm(self):
        self.flags(device_spec=['{"address": {"bus": "(?!ff)"}, '
                                '"reset": "if_possible"}'],
                   allow_unsafe_host=True, group='nova_accel')
        offered = 0
        for recording in sorted(cloud.EIGHT_GPUS.parent.glob('*.json')):
            self.directory_host(recording)
            local = local_host.LocalHost()
            for _round in range(_ROUNDS):
                local.refresh_withheld(inventory.Node(_NODE, 'compute1'))
                local.invalidate()
            regions = [region for device in local.read().devices
                       for region in device.regions]
            self.assertEqual([], [region for region in regions
                                  if region.withheld], recording)
            offered += len(regions)
        self.assertGreater(offered, 10)
        self.assertNotIn('background task', self.stdlog.logger.output)

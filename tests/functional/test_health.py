# SPDX-License-Identifier: Apache-2.0
"""Health checks: new servers do not get an unhealthy device."""

import os
import shutil
import threading
from unittest import mock

import fixtures

from nova_accel.compute.state import local_host
from nova_accel.core.placement import inventory
from nova_accel.host import health
from nova_accel.host.kinds import pci
from tests.functional import cloud
from tests.functional import test_reset

#: Number of checks of each recording in QuietTest.
_ROUNDS = int(os.environ.get('NOVA_ACCEL_ROUNDS', 20))

ONE = test_reset.ONE
_NODE = '3a1b4f0e-7f0b-4f5c-9c0e-2b6f0a6d9e11'
UNHEALTHY = 'CUSTOM_NOVA_ACCEL_UNHEALTHY'
_HEALTHY = {'aer_dev_fatal': 'DLP 7\nTOTAL_ERR_FATAL 7\n',
            'aer_dev_nonfatal': 'TOTAL_ERR_NONFATAL 5000\n',
            'aer_dev_correctable': 'RxErr 9\nTOTAL_ERR_COR 90000\n',
            'current_link_width': '16\n', 'max_link_width': '16\n',
            'current_link_speed': '32.0 GT/s PCIe\n',
            'max_link_speed': '32.0 GT/s PCIe\n',
            'config': '\x00' * 64}


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


PROVIDER = test_reset.PROVIDER


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

    def test_function_that_blocks_its_reader_is_withheld(self):
        over, read = threading.Event(), health.read

        def blocking(tree, function, vfs):
            if str(function.address) == ONE:
                over.wait(60)
            return read(tree, function, vfs)
        with fixtures.MonkeyPatch('nova_accel.compute.background.WAIT', .1), \
                fixtures.MonkeyPatch('nova_accel.host.health.read', blocking):
            self.assertFalse(self.is_withheld())
            self.assertTrue(self.is_withheld())
            over.set()
        self.background.wait()
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
        self.assertIn('1 of its virtual functions are enabled, but are not '
                      'there', self.stdlog.logger.output)


class QuietTest(cloud.Cloud):

    def test_unchanged_recordings_raise_no_alarm(self):
        self.flags(device_spec=['{"reset": "if_possible"}'],
                   allow_unsafe_host=True, group='nova_accel')
        offered = 0
        for recording in sorted(cloud.EIGHT_GPUS.parent.glob('*.json')):
            self.directory_host(recording)
            local = local_host.LocalHost()
            for _round in range(_ROUNDS):
                local.refresh_withheld(inventory.Node(_NODE, 'compute1'))
                local.invalidate()
            self.assertEqual({}, local.health.withheld(
                local.read().functions), recording)
            offered += len(local.read().devices)
        self.assertGreater(offered, 10)
        self.assertNotIn('background task', self.stdlog.logger.output)

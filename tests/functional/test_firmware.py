# SPDX-License-Identifier: Apache-2.0
"""Firmware is compared: a device whose firmware has changed is withheld."""

import json
import pathlib
import time
import types

import ddt
import fixtures

from nova_accel.compute import driver
from nova_accel.compute.devices import firmware_probes
from tests.functional import cloud
from tests.functional import kernel
from tests.functional import test_openstack
from tests.functional import withheld

_DISK, _PAIR = '0000:81:00.0', ('0000:82:00.0', '0000:82:00.1')
_SPEC = ('{"vendor_id": "1b36", "product_id": "0010", "keeps_data": "yes", '
         '"resource_class": "CUSTOM_NVME", "address": "%s"}')
_CHANGED = 'CUSTOM_NOVA_ACCEL_FIRMWARE_CHANGED'
_UNKNOWN = 'CUSTOM_NOVA_ACCEL_FIRMWARE_UNKNOWN'
_CARD = '0000:44:00.0'


class FirmwareCase(withheld.Keeping, test_openstack.OpenstackCase):

    recording = cloud.A100
    entries = [_SPEC % _DISK]
    resource_class = 'CUSTOM_NVME'

    def setUp(self):
        super().setUp()
        self.flags(device_spec=self.entries, group='nova_accel')
        self.machine = self.directory_host(self.recording)
        self.kernel = self.useFixture(kernel.Functions(self.machine))
        self.kernel.offer_reset(_DISK, *_PAIR)
        self.kernel.on_unbind = self.hide
        self.write_profile('unit', groups=[
            {'resources': {self.resource_class: 1}, 'numa': 'off'}])
        self.unit = self.flavor('unit')

    def version(self, address):
        [controller] = (self.kernel.place(address) / 'nvme').iterdir()
        return controller / 'firmware_rev'

    def hide(self, address=_DISK):
        """Unbind the driver that shows the version of a disk."""
        self.version(address).unlink(missing_ok=True)
        self.kernel.bind(address, 'vfio-pci')

    def show(self, version, address=_DISK):
        """Bind the driver that shows the version of a disk."""
        self.version(address).write_text(f'{version}\n')
        self.kernel.bind(address, 'nvme')

    def change(self, *entries):
        self.flags(device_spec=list(entries), group='nova_accel')
        self.rounds()

    def used_once(self):
        """Let a server have the device, which is then bound to vfio-pci."""
        server = self.boot(self.unit)
        self.assertEqual([_DISK], [*self.hostdevs(server)])
        self.rounds(1)
        return server

    def accept(self, thing='device', name=f'compute1/{_DISK}'):
        self.openstack.run(f'accel {thing} set', name, '--accept-firmware')

    def reasons(self):
        return {address: row['Reason']
                for address, row in self.devices().items()}

    def assertOffered(self, is_offered=True, trait=_CHANGED):
        """Check what Placement has of the device."""
        [provider] = [provider for name, provider in self.providers().items()
                      if _DISK in name]
        [record] = self._get_provider_inventory(provider['uuid']).values()
        self.assertEqual((is_offered, not is_offered), (
            record['reserved'] == 0,
            trait in self._get_provider_traits(provider['uuid'])))

    def root_traits(self):
        return {trait for trait in self._get_provider_traits(
            self.compute_rp_uuids['compute1']) if '_FIRMWARE_' in trait}

    def said(self, text):
        return self.stdlog.logger.output.count(text)


@ddt.ddt
class DiskTest(FirmwareCase):

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')

    @ddt.data('at once', 'after a round', 'after a restart')
    def test_next_tenant_does_not_get_a_changed_device(self, when):
        server = self.used_once()
        self.show('10.0.14')
        if when == 'at once':
            with fixtures.MockPatchObject(driver.LibvirtDriver,
                                          'update_provider_tree'):
                self._delete_server(server)
                self.assertOffered()
                self.boot(self.unit, state='ERROR')
        else:
            self._delete_server(server)
        if when == 'after a restart':
            self.restart_compute_service('compute1')
        self.rounds(1)
        self.assertOffered(False)
        self.boot(self.unit, state='ERROR')
        self.assertEqual(1 + (when == 'after a restart'), self.said(
            f'Not offered: {_DISK} (1b36:0010): its firmware has changed: '
            "nvme was '10.0.13', and is '10.0.14'"))
        self.assertEqual(
            ["firmware changed: nvme was '10.0.13', and is '10.0.14'"],
            self.reasons()[_DISK])

    @ddt.data(('device', f'compute1/{_DISK}'), ('host', 'compute1'))
    @ddt.unpack
    def test_accepted_change_is_the_new_firmware(self, thing, name):
        self.show('2.1')
        self.rounds(1)
        self.assertOffered(False)
        self.accept(thing, name)
        self.rounds(1)
        self.assertOffered()
        self.assertEqual(
            {'CUSTOM_NOVA_ACCEL_FIRMWARE_0000_81_00_0_NVME_2_1'},
            self.root_traits())
        self.restart_compute_service('compute1')
        self.assertOffered()
        self._delete_server(self.boot(self.unit))
        self.show('10.0.13')
        self.rounds(1)
        self.assertOffered(False)

    @ddt.data('back', 'hidden', 'restarted')
    def test_only_an_operator_ends_it(self, then):
        self.show('2.1')
        self.rounds(1)
        (self.show('10.0.13') if then == 'back' else self.hide())
        if then == 'restarted':
            self.restart_compute_service('compute1')
        self.rounds()
        self.assertOffered(False)
        self.accept()
        self.rounds(1)
        self.assertOffered()

    def test_hidden_version_is_not_compared(self):
        self.hide()
        self.rounds()
        self.assertOffered()
        self.restart_compute_service('compute1')
        self._delete_server(self.boot(self.unit))
        self.show('2.1')
        self.rounds(1)
        self.assertOffered(False)

    @ddt.data('entry', 'device', 'refused')
    def test_memory_outlives_the_provider(self, gone):
        bus = self.machine / 'sys/bus/pci/devices' / _DISK
        target = bus.readlink()
        {'entry': lambda: self.flags(device_spec=[], group='nova_accel'),
         'device': bus.unlink, 'refused': lambda: self.kernel.offer_reset(
             _DISK, methods=None)}[gone]()
        self.rounds()
        self.restart_compute_service('compute1')
        self.assertEqual({}, self.providers())
        if gone == 'device':
            bus.symlink_to(target)
        self.show('2.1')
        self.kernel.offer_reset(_DISK)
        self.change(*self.entries)
        self.assertOffered(False)

    def test_firmware_that_may_change(self):
        free = _SPEC[:-1] % _DISK + ', "compare_firmware": "no"}'
        self.show('2.1')
        self.rounds(1)
        self.change(free)
        self.assertOffered()
        self.show('2.2')
        self.rounds(1)
        self.assertOffered()
        self.change(*self.entries)
        self.assertOffered(False)

    def test_device_show_has_both_versions(self):
        self.show('1.0-beta')
        self.rounds(1)
        shown = self.openstack.run('accel device show', f'compute1/{_DISK}')
        self.assertEqual(
            ['nvme 10.0.13', 'nvme 1 0 beta (d5bb79e2), not accepted'],
            shown['firmware'])

    def test_requests(self):
        """A boot sends none more; a round does so after a change only."""
        url = f'/resource_providers/{self.compute_rp_uuids["compute1"]}/traits'
        counts = []
        for version in ('10.0.13', '2.1'):
            self.show(version)
            self.rounds()
            with self.placement_requests() as requests:
                self.rounds(1)
            counts.append(sum(each == ('GET', url) or each == ('get', url)
                              for each in requests))
        self.assertEqual([0, 1], counts)


class PairTest(FirmwareCase):
    """Two disks that can only be given together."""

    entries = [_SPEC % '0000:82:00.*']

    def test_firmware_of_the_second_changes(self):
        self.start_compute('compute1')
        self.assertEqual(
            {'CUSTOM_NOVA_ACCEL_FIRMWARE_0000_82_00_0_NVME_10_0_13',
             'CUSTOM_NOVA_ACCEL_FIRMWARE_0000_82_00_1_OF_0000_82_00_0_NVME_'
             '10_0_13'}, self.root_traits())
        self.show('2.1', _PAIR[1])
        self.rounds(1)
        self.boot(self.unit, state='ERROR')
        self.assertIn("firmware changed: nvme was '10.0.13', and is '2.1'",
                      self.reasons()[_PAIR[0]])
        self.accept(name=f'compute1/{_PAIR[0]}')
        self.rounds(1)
        self.assertEqual(2, len(self.hostdevs(self.boot(self.unit))))


class PartCase:
    """Parts of a card, whose firmware is that of the card."""

    def setUp(self):
        super().setUp()
        self.show('113-D67301-063')
        self.start_compute('compute1')

    def show(self, version):
        (self.kernel.place(_CARD) / 'vbios_version').write_text(f'{version}\n')

    def test_server_keeps_its_part(self):
        server = self.boot(self.unit)
        had = self.hostdevs(server)
        self.show('113-D67301-064')
        self.rounds(1)
        self.boot(self.unit, state='ERROR')
        self.reboot(server)
        self.assertKeeps(server, had)
        self.restart_compute_service('compute1')
        self.reboot(server)
        self.assertKeeps(server, had)
        self.assertEqual([], self.disagreements())
        self._delete_server(server)
        self.boot(self.unit, state='ERROR')
        self.accept(name=f'compute1/{_CARD}')
        self.rounds(1)
        self.boot(self.unit)


class VirtualFunctionTest(PartCase, FirmwareCase):

    entries = [cloud.VF_SPECS[1]]
    resource_class = 'CUSTOM_VF'


class MdevTest(PartCase, FirmwareCase):

    entries = [cloud.VGPU_SPEC]
    resource_class = cloud.VGPU


@ddt.ddt
class ProbeTest(FirmwareCase):
    """A command tells the firmware."""

    entries = [_SPEC[:-1] % _DISK + ', "firmware_probe": "disk"}']

    def setUp(self):
        super().setUp()
        self.said_by = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.print('v1')
        self.command = ['/bin/sh', '-c', 'echo >>$0/runs; cat $0/$1',
                        str(self.said_by), '{address}']
        self.define(self.command)
        self.hide()
        self.start_compute('compute1')

    def define(self, command):
        self.flags(group='nova_accel', firmware_probe=[json.dumps(
            {'name': 'disk', 'command': command})])

    def print(self, text):
        (self.said_by / _DISK).write_text(text)

    @property
    def runs(self):
        return len((self.said_by / 'runs').read_text().splitlines())

    @ddt.data('round', 'claim')
    def test_runs_before_each_new_server(self, where):
        """A round may come between two servers, or not."""
        self.assertEqual(1, self.runs)
        if where == 'claim':
            self.useFixture(fixtures.MockPatchObject(
                firmware_probes.FirmwareProbes, 'run_due'))
        server = self.boot(self.unit)
        self.reboot(server)
        self.rounds()
        self.assertEqual(1, self.runs)
        self._delete_server(server)
        server = self.boot(self.unit)
        self.assertEqual(2, self.runs)
        self.print('v2\nof today\n')
        self._delete_server(server)
        self.boot(self.unit, state='ERROR')
        self.rounds(1)
        self.assertOffered(False)
        self.assertEqual(1, self.said(
            f'Not offered: {_DISK} (1b36:0010): its firmware has changed: '
            "probe disk was 'v1 ("))
        self.accept()
        self.rounds(1)
        self.assertOffered()
        self.boot(self.unit)

    def test_each_disk_of_a_unit_is_asked(self):
        for disk in _PAIR:
            (self.said_by / disk).write_text('v1')
            self.hide(disk)
        self.change(self.entries[0].replace(_DISK, '0000:82:00.*'))
        server = self.boot(self.unit)
        (self.said_by / _PAIR[1]).write_text('v2')
        self._delete_server(server)
        self.boot(self.unit, state='ERROR')
        self.assertLess(0, self.said("probe disk was 'v1 ("))

    def test_other_probe(self):
        """What another command prints is no change."""
        self.flags(group='nova_accel', firmware_probe=[json.dumps(
            {'name': name, 'command': ['/bin/echo', name]})
            for name in ('disk', 'new')])
        self.change(self.entries[0].replace('"disk"', '"new"'))
        self.assertOffered()
        self.assertEqual({'DISK_V1', 'NEW_NEW'}, {
            trait.split('PROBE_')[1].split('__')[0]
            for trait in self.root_traits() if 'PROBE' in trait})

    @ddt.data('/bin/false', '/bin/true')
    def test_unknown_firmware(self, command):
        """A command fails, or prints nothing."""
        server = self.boot(self.unit)
        self.define([command])
        self._delete_server(server)
        self.boot(self.unit, state='ERROR')
        self.rounds()
        self.assertOffered(False, _UNKNOWN)
        self.assertEqual(1, self.said(
            'its firmware is unknown, firmware_probe "disk": '))
        self.define(self.command)
        now = time.monotonic()
        with fixtures.MockPatchObject(
                firmware_probes, 'time', types.SimpleNamespace(
                    monotonic=lambda: now + 601)):
            self.rounds(1)
        self.assertOffered(trait=_UNKNOWN)
        self.boot(self.unit)

# SPDX-License-Identifier: Apache-2.0
"""Physical address bits of guests whose devices have large BARs."""

import fixtures
from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.host import tree
from tests.functional import cloud
from tests.unit import build


class LargeBars(cloud.Cloud):

    #: Version of libvirt.
    LIBVIRT = 10_000_000
    #: Address bits of the host's CPU in libvirt's capabilities, or None if
    #: they are not there.
    BITS = 52
    #: Content of the ``resource`` attribute of each card, with its BARs.
    RESOURCE = build.H100_RESOURCE

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.glance.images[cloud.IMAGE]['properties'].update(
            hw_machine_type='q35', hw_firmware_type='uefi')
        place = self.directory_host()
        recording = tree.open_tree(cloud.EIGHT_GPUS)
        for path, text in recording.files.items():
            if path.endswith('/device') and text.strip() == '0x2330':
                (place / path).with_name('resource').write_text(
                    self.RESOURCE)
        capabilities = fakelibvirt.Connection.getCapabilities
        said = f'<maxphysaddr mode="emulate" bits="{self.BITS}"/>'
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Connection.getCapabilities',
            lambda connection: capabilities(connection).replace(
                '<vendor>Intel</vendor>', '<vendor>Intel</vendor>'
                + (said if self.BITS else ''))))
        self.start_compute('compute1', libvirt_version=self.LIBVIRT)
        self.gpu_profile('one')
        self.gpu_profile('two', count=2)

    def width(self, server):
        """Return the attributes of the maxphysaddr elements of a guest."""
        domain = etree.fromstring(self.domain(server).defined_xml)
        return [dict(width.attrib)
                for width in domain.findall('./cpu/maxphysaddr')]

    def explicit_flavor(self, profile, bits):
        # Nova's validators do not know these extra specs. Older microversions
        # skip the validators.
        self.api.microversion, latest = '2.85', self.api.microversion
        try:
            return self.flavor(profile, extra_spec={
                'hw:maxphysaddr_mode': 'emulate',
                'hw:maxphysaddr_bits': str(bits)})
        finally:
            self.api.microversion = latest

    def warnings(self):
        return [line for line in self.log.output.splitlines()
                if 'physical address bits its firmware' in line]


class SetTest(LargeBars):

    def test_address_bits_as_the_devices_need(self):
        one, two = self.flavor('one'), self.flavor('two')
        server = self.boot(one)
        self.assertEqual([{'mode': 'emulate', 'bits': '41'}],
                         self.width(server))
        self._delete_server(server)
        server = self.boot(two)
        wide = [{'mode': 'emulate', 'bits': '42'}]
        self.assertEqual(wide, self.width(server))
        self.assertIn('Server gets 42 physical address bits, since the BARs '
                      'of its devices need a window of 385 GiB',
                      self.log.output)
        self._reboot_server(server, hard=True)
        self.assertEqual(wide, self.width(server))
        self.assertEqual([], self.warnings())

    def test_address_bits_of_the_flavor_are_kept(self):
        server = self.boot(self.explicit_flavor('one', 42))
        self.assertEqual([{'mode': 'emulate', 'bits': '42'}],
                         self.width(server))
        self.assertEqual([], self.warnings())

    def test_too_few_address_bits_of_the_flavor_are_logged(self):
        server = self.boot(self.explicit_flavor('two', 41))
        self.assertEqual([{'mode': 'emulate', 'bits': '41'}],
                         self.width(server))
        self.assertIn('since hw:maxphysaddr_mode emulate gives it 41. ',
                      self.warnings()[0])

    def test_guest_without_devices_is_unchanged(self):
        self.assertEqual([], self.width(self.boot(self.flavor())))

    def test_bios_guest_needs_fewer_address_bits(self):
        del self.glance.images[cloud.IMAGE]['properties']['hw_firmware_type']
        self.assertEqual([], self.width(self.boot(self.flavor('one'))))
        self.assertEqual([], self.warnings())

    def test_too_few_bits_are_logged_when_switched_off(self):
        self.flags(set_address_bits=False, group='nova_accel')
        self.assertEqual([], self.width(self.boot(self.flavor('two'))))
        [warning] = self.warnings()
        self.assertIn('set_address_bits is off', warning)
        self.assertIn('need a window of 385 GiB; without 42 physical', warning)
        self.assertIn('its flavor hw:maxphysaddr_mode=emulate and '
                      'hw:maxphysaddr_bits=42 (', warning)


class NarrowHostTest(LargeBars):

    BITS = 41

    def test_host_with_too_few_address_bits_is_logged(self):
        flavor = self.flavor('two')
        self.assertEqual([], self.width(self.boot(flavor)))
        self.assertIn('firmware can use 41 on this host', self.warnings()[0])


class HugeBarsTest(LargeBars):

    RESOURCE = build.resource((1 << 46, build.WIDE_MEMORY))

    def test_bars_too_large_for_any_firmware_are_logged(self):
        self.assertEqual([], self.width(self.boot(self.flavor('one'))))
        self.assertIn('need a window of 65536 GiB, more than its firmware '
                      'supports', self.log.output)
        self.assertNotIn('maxphysaddr_bits', self.log.output)


class SilentHostTest(LargeBars):

    BITS = None

    def test_libvirt_without_address_bits_is_logged(self):
        self.assertEqual([], self.width(self.boot(self.flavor('two'))))
        self.assertIn('does not report how many', self.warnings()[0])


class OldLibvirtTest(LargeBars):

    LIBVIRT = 8_006_000

    def test_too_old_libvirt_is_logged(self):
        self.assertEqual([], self.width(self.boot(self.flavor('one'))))
        self.assertIn('older than 8.7.0', self.warnings()[0])


class UnknownBarsTest(cloud.Cloud):

    def test_nothing_is_logged(self):
        log = self.useFixture(fixtures.FakeLogger())
        self.start_compute('compute1')
        self.gpu_profile('two', count=2)
        server = self.boot(self.flavor('two'))
        self.assertNotIn('maxphysaddr', self.domain(server).defined_xml)
        self.assertNotIn('physical address bits', log.output)

# SPDX-License-Identifier: Apache-2.0
"""GPUs of a guest that know which of them are behind one PCIe switch."""

import fixtures
from lxml import etree

from nova_accel.core.guest import cliques
from nova_accel.host import libvirt_xml
from tests.functional import cloud
from tests.functional import test_live_migration


class Cliques(cloud.Cloud):
    """Two pairs of GPUs, each behind a switch."""

    QEMU = 8_001_000
    MACHINE_TYPE = 'q35'

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.flags(hw_machine_type=[f'x86_64={self.MACHINE_TYPE}'],
                   group='libvirt')
        self.start_compute('compute1', libvirt_version=8_002_000,
                           qemu_version=self.QEMU)
        self.gpu_profile('peers', count=4, numa='off', gpu_cliques=True)
        self.gpu_profile('others', count=4, numa='off')

    def cliques(self, server, host='compute1'):
        """Return the clique of each GPU of a guest, by PCI bus."""
        xml = self.domain(server, host).defined_xml
        _uuid, held = libvirt_xml.parse(xml)
        return {f'{device.address.bus:x}': device.clique for device in held}

    def assert_peers(self, server):
        found = self.cliques(server)
        self.assertEqual({'43', '44', '83', '84'}, set(found))
        self.assertEqual({'0', '1'}, {found['43'], found['83']})
        self.assertEqual((found['43'], found['83']),
                         (found['44'], found['84']))

    def assert_no_peers(self, server):
        self.assertEqual({''}, set(self.cliques(server).values()))
        self.assertNotIn('override', self.domain(server).defined_xml)


class GpuCliquesTest(Cliques):

    def test_cliques_after_each_new_definition(self):
        server = self.boot(self.flavor('peers'))
        self.assert_peers(server)
        self._reboot_server(server, hard=True)
        self.assert_peers(server)
        self._rebuild_server(server, cloud.IMAGE)
        self.assert_peers(server)

    def test_override_names_the_aliases_of_the_gpus(self):
        server = self.boot(self.flavor('peers'))
        domain = etree.fromstring(self.domain(server).defined_xml)
        [override] = domain.findall(f'{libvirt_xml.QEMU}override')
        self.assertEqual(
            set(self.hostdevs(server).values()),
            {device.get('alias') for device in override})
        self.assertEqual(
            {(cliques.PROPERTY, 'unsigned')},
            {(found.get('name'), found.get('type')) for found
             in override.iter(f'{libvirt_xml.QEMU}property')})

    def test_gpus_of_two_switches_are_no_peers(self):
        self.gpu_profile('apart', count=2, numa='off', gpu_cliques=True,
                         affinity=[{'distinct': 'pcie_switch'}])
        self.assert_no_peers(self.boot(self.flavor('apart')))
        self.assertIn('no two of its devices are NVIDIA GPUs behind one PCIe '
                      'switch', self.log.output)


class ResizeTest(Cliques):

    DEVICE_SPEC = (cloud.GPU_SPEC,)

    def test_resized_server_has_what_its_flavor_says(self):
        self.flags(allow_resize_to_same_host=True)
        self.gpu_profile('pair', count=2, gpu_cliques=True,
                         affinity=[{'same': 'pcie_switch'}])
        server = self.boot(self.flavor('pair'))
        pair = self.cliques(server)
        self.assertEqual(['0', '0'], [*pair.values()])
        self._resize_server(server, self.flavor('others'))
        self.assert_no_peers(server)
        self._revert_resize(server)
        self.assertEqual(pair, self.cliques(server))


class OldQemuTest(Cliques):

    QEMU = 8_000_005

    def test_guest_starts_without_cliques(self):
        self.assert_no_peers(self.boot(self.flavor('peers')))
        self.assertIn('The GPUs of this server get no cliques, which its '
                      "profile asks for, since this host's libvirt is older "
                      'than 8.2.0 or its QEMU than 8.1.0', self.log.output)


class OtherMachineTypeTest(Cliques):

    MACHINE_TYPE = 'pc'

    def test_guest_starts_without_cliques(self):
        self.assert_no_peers(self.boot(self.flavor('peers')))
        self.assertIn('its machine type is not q35', self.log.output)


class LiveMigrationTest(test_live_migration.MovingTest):

    def setUp(self):
        super().setUp()
        self.flags(hw_machine_type=['x86_64=q35'], group='libvirt')

    def test_guest_that_knows_its_peers_stays(self):
        self.gpu_profile('peers', count=2, gpu_cliques=True,
                         affinity=[{'same': 'pcie_switch'}])
        server = self.boot(self.flavor('peers'), host='compute1')
        self.fail_to_move(server, 'gpu_cliques in the profile')

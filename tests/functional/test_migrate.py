# SPDX-License-Identifier: Apache-2.0
"""``nova-accel migrate pci``, from PCI devices of Nova to nova_accel."""

import json
import pathlib

import fixtures
from nova import context
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.cmd import main
from tests.functional import cloud
from tests.functional import openstack

_IDS = {'vendor_id': fakelibvirt.PCI_VEND_ID,
        'product_id': fakelibvirt.PCI_PROD_ID}
_CLASS = 'CUSTOM_PCI_{vendor_id}_{product_id}'.format(**_IDS).upper()
#: The recorded GPUs, with the resource class that the plan gives to the
#: devices of the fake libvirt.
_SPEC = cloud.PAIR_SPEC.replace(cloud.GPU, _CLASS)


class MigratePciTest(cloud.Cloud):

    ADDITIONAL_FILTERS = ['NUMATopologyFilter', 'PciPassthroughFilter',
                          'AcceleratorFilter']
    DEVICE_SPEC = ()

    def setUp(self):
        super().setUp()
        alias = json.dumps({'name': 'a', **_IDS})
        self.flags(device_spec=[json.dumps(_IDS)], alias=[alias], group='pci')
        self.conf = pathlib.Path(self.profiles, 'nova.conf')
        self.conf.write_text(f'[pci]\nalias = {alias}\ndevice_spec = '
                             f'{json.dumps(_IDS)}\n')
        client = openstack.Openstack(
            self.api.base_url, self.placement_fixture.endpoint, 'admin')
        self.useFixture(fixtures.MockPatch(
            'openstack.connect', return_value=client.cloud.sdk_connection))

    def migrate(self, first=1):
        """Apply the plan from a step on; write profiles for nova-api."""
        self.assertEqual(0, main.main([
            '--config-file', str(self.conf), 'migrate', 'pci', '--apply',
            '--directory', self.profiles, '--from', str(first)]))

    def novas_devices_are_free(self, host):
        admin = context.get_admin_context()
        return [device.is_available()
                for device in objects.PciDeviceList.get_by_compute_node(
                    admin, objects.ComputeNode.get_by_nodename(
                        admin, host).id)]

    def test_server_moves_from_an_alias_to_a_profile(self):
        self.start_compute('old', pci_info=fakelibvirt.HostPCIDevicesInfo(
            num_pci=1))
        flavor = self.flavor(extra_spec={'pci_passthrough:alias': 'a:1'})
        server = self.boot(flavor, host='old')
        self.assertEqual([False], self.novas_devices_are_free('old'))
        self.flags(device_spec=[], group='pci')
        self.flags(device_spec=[_SPEC], group='nova_accel')
        self.start_compute('new')
        self.migrate()
        self.migrate(6)
        self.assertEqual(
            {'accel:device_profile': 'a'},
            self.api.api_get(f'/flavors/{flavor}/os-extra_specs').body[
                'extra_specs'])
        self.assertEqual(1, len(self.hostdevs(self.boot(flavor), 'new')))
        # The server's own flavor now has the profile, and a resize needs
        # another flavor.
        self._resize_server(server, self.flavor('a'))
        self.assertEqual(1, len(self.hostdevs(server, 'new')))
        self._confirm_resize(server)
        self.assertEqual([True], self.novas_devices_are_free('old'))
        self.assertEqual([], self.disagreements('new'))

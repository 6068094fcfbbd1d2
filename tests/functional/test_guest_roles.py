# SPDX-License-Identifier: Apache-2.0
"""What guests are told of their devices, after each operation."""

import base64
import json
import pathlib

import fixtures
from lxml import etree
from nova.api.metadata import base as metadata
import nova.conf
from nova.virt.libvirt import driver

from nova_accel.core import hostdev
from nova_accel.core.guest import nccl_topology
from nova_accel.host import libvirt_xml
from tests.functional import cloud
from tests.functional import test_guest_topology

CONF = nova.conf.CONF


def document(domain):
    """Return the document of a domain, None if it has none."""
    found = etree.fromstring(domain.defined_xml).find(
        'sysinfo[@type="fwcfg"]/entry')
    return found if found is None else json.loads(base64.b64decode(found.text))


def attributes(domain):
    """Return the attributes of each device in a document, by address."""
    return {found['resource.kubernetes.io/pciBusID']: found
            for request in document(domain)['requests']
            for device in request['devices']
            for found in [{key: value for key, typed
                           in device['attributes'].items()
                           for value in typed.values()}]}


class RolesCase(test_guest_topology.TopologyCase):

    def flavor_of(self, count, cells=2):
        return super().flavor_of(count, cells)

    def service(self, server):
        """Return the devices of which the metadata service tells a guest."""
        return json.loads(metadata.get_metadata_by_instance_id(
            server['id'], '10.0.0.2').lookup(
                '/openstack/latest/meta_data.json'))['devices']

    def told(self, server):
        """Return the tags of each device in the metadata, by address."""
        return {device['address']: dict(
            tag.removeprefix('accel.').partition('=')[::2]
            for tag in device['tags'] if tag != 'accel')
            for device in self.service(server)
            if 'accel' in device.get('tags', ())}

    def assertTold(self, server, count=2, host='compute1', document=True):
        """Check that the guest is told where its domain has each device."""
        domain = self.domain(server, host)
        buses = libvirt_xml.guest_buses_of(domain.defined_xml)
        held = hostdev.ours(libvirt_xml.parse(domain.XMLDesc(0))[1])
        places = {str(place.address): place.path for place in (
            buses.position(device.guest_address) for device in held)}
        self.assertEqual(count, len(places))
        told = self.told(server)
        self.assertEqual(places, {address: tags['path']
                                  for address, tags in told.items()})
        for tags in told.values():
            self.assertIn(f'-{tags["provider"]}-',
                          ' '.join(device.alias for device in held))
        if document:
            self.assertEqual(
                {address: (tags['path'], tags['provider'], tags['group'],
                           tags['class'], int(tags['host_numa_node']))
                 for address, tags in told.items()},
                {address: tuple(found[key] for key in (
                    'path', 'provider', 'group', 'resourceClass',
                    'hostNumaNode'))
                 for address, found in attributes(domain).items()})


class RolesTest(RolesCase):

    def setUp(self):
        super().setUp()
        self.server = self.boot_on_both()

    def test_server_is_created(self):
        self.assertTold(self.server)
        self.assertEqual({'0', '1'}, {
            tags['host_numa_node'] for tags in self.told(self.server).values()
            })
        found = document(self.domain(self.server))
        self.assertEqual([{'id': 0, 'cpus': '0'}, {'id': 1, 'cpus': '1'}],
                         found['numaCells'])
        nccl_topology.check(found['ncclTopology'])
        self.assertEqual(
            {(tags['numa_cell'], address)
             for address, tags in self.told(self.server).items()},
            {(cpu.get('numaid'), device.get('busid'))
             for cpu in etree.fromstring(found['ncclTopology'])
             for device in cpu.iter('pci')})

    def test_hard_reboot(self):
        self._reboot_server(self.server, hard=True)
        self.assertTold(self.server)

    def test_suspend_and_resume(self):
        self._suspend_server(self.server)
        self._resume_server(self.server)
        self.assertTold(self.server)

    def test_rebuild(self):
        self._rebuild_server(self.server, self.glance.
                             auto_disk_config_enabled_image['id'])
        self.assertTold(self.server)

    def test_shelve_and_unshelve(self):
        self._shelve_server(self.server)
        self._unshelve_server(self.server)
        self.assertTold(self.server)

    def test_rescue_and_unrescue(self):
        # nova-compute stores the domain XML in this directory, which the
        # harness does not create.
        pathlib.Path(CONF.instances_path, self.server['id']).mkdir()
        self._rescue_server(self.server)
        self.assertTold(self.server)
        self._unrescue_server(self.server)
        self.assertTold(self.server)

    def test_resize_is_reverted_and_confirmed(self):
        self.start('compute2')
        before = self.told(self.server)
        for action in self._revert_resize, self._confirm_resize:
            self._resize_server(self.server, self.flavor_of(3))
            self.assertTold(self.server, 3, 'compute2')
            self.flags(host='compute1')
            action(self.server)
            if action == self._revert_resize:
                self.assertTold(self.server)
                self.assertEqual(before, self.told(self.server))
        self.assertTold(self.server, 3, 'compute2')

    def test_resize_from_and_to_a_flavor_without_devices_is_reverted(self):
        self.start('compute2')
        plain = self.flavor(extra_spec={'hw:numa_nodes': '2'}, vcpu=2)
        self._resize_server(self.server, plain)
        self.flags(host='compute1')
        self._revert_resize(self.server)
        self.assertTold(self.server)
        other = self.boot(plain, host='compute1')
        self._resize_server(other, self.flavor_of(1))
        self.assertEqual(1, len(self.told(other)))
        self.flags(host='compute1')
        self._revert_resize(other)
        self.assertEqual({}, self.told(other))
        self.assertIsNone(document(self.domain(other)))


class TextsTest(RolesCase):

    def setUp(self):
        super().setUp()
        self.write_profile('named', groups=[
            {'name': 'a', 'count': 2, 'resources': {cloud.GPU: 1}},
            {'resources': {cloud.GPU: 1}}])
        self.named = self.flavor('named', vcpu=2, extra_spec={
            'hw:numa_nodes': '2'})

    def test_groups_have_the_names_of_the_profile(self):
        server = self.boot(self.named)
        self.assertEqual(['ACCEL2', 'a', 'a'], sorted(
            tags['group'] for tags in self.told(server).values()))
        self.assertEqual({'a': 2, 'accel2': 1}, {
            request['name']: len(request['devices'])
            for request in document(self.domain(server))['requests']})

    def test_config_drive_is_as_the_service(self):
        create = driver.LibvirtDriver._create_configdrive
        drives = []

        def write(ours, context, instance, *args, **kwargs):
            create(ours, context, instance, *args, **kwargs)
            # The harness has no images, so Nova writes no drive.
            drives.append(dict(metadata.InstanceMetadata(
                instance).metadata_for_config_drive()))

        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.driver.LibvirtDriver._create_configdrive',
            write))
        server = self.boot(self.named)
        [drive] = drives
        self.assertEqual(
            self.service(server),
            json.loads(drive['openstack/latest/meta_data.json'])['devices'])
        self.assertTold(server, 3)

    def test_document_can_be_off(self):
        self.flags(guest_device_document=False, group='nova_accel')
        server = self.boot(self.named)
        self.assertIsNone(document(self.domain(server)))
        self.assertTold(server, 3, document=False)
        self.flags(guest_device_document=True, group='nova_accel')
        self._reboot_server(server, hard=True)
        self.assertTold(server, 3)

    def test_facts_of_the_host_are_not_in_the_document_of_a_guest_that_moves(
            self):
        self.flags(device_spec=[cloud.migratable(cloud.GPU_SPEC)],
                   group='nova_accel')
        server = self.boot(self.named)
        self.assertTold(server, 3, document=False)
        for found in attributes(self.domain(server)).values():
            self.assertEqual({'group', 'resourceClass', 'path', 'numaCell',
                              'resource.kubernetes.io/pciBusID'}, set(found))

    def test_metadata_is_that_of_the_new_host_after_a_live_migration(self):
        self.flags(device_spec=[cloud.migratable(cloud.GPU_SPEC)],
                   group='nova_accel')
        self.start('compute2')
        self.gpu_profile('two', 2)
        server = self.boot(self.flavor('two', vcpu=2, extra_spec={
            'hw:numa_nodes': '2'}), host='compute1')
        before = self.told(server)
        self._live_migrate(server)
        self.assertTold(server, host='compute2', document=False)
        self.assertNotEqual(before, self.told(server))

    def test_topology_file_that_nccl_cannot_read_is_left_out(self):
        self.useFixture(fixtures.MockPatch(
            'nova_accel.core.guest.nccl_topology.check',
            side_effect=ValueError('too large')))
        server = self.boot(self.named)
        self.assertTold(server, 3)
        self.assertNotIn('ncclTopology', document(self.domain(server)))

    def test_failure_does_not_stop_a_boot(self):
        self.useFixture(fixtures.MockPatch(
            'nova_accel.core.guest.device_role.roles',
            side_effect=ValueError('a bug')))
        server = self.boot(self.named)
        self.assertEqual({}, self.told(server))

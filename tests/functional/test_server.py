# SPDX-License-Identifier: Apache-2.0
"""The devices of a server, from the API request to the domain's XML."""

import fixtures
from lxml import etree

from nova_accel.compute.state import local_host
from nova_accel.host import reader
from tests.functional import cloud


class ServerTest(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')
        self.gpu_profile('h100')
        self.gpu_profile('pair', count=2)

    def test_create(self):
        server = self.boot(self.flavor('h100'))
        [(address, alias)] = self.hostdevs(server).items()
        [(provider, resources)] = self.allocated(server).items()
        self.assertEqual({cloud.GPU: 1}, resources)
        self.assertEqual(f'compute1_accel_{address}', provider)
        uuid = self.providers()[provider]['uuid']
        self.assertEqual(f'ua-accel-ACCEL0-{uuid}-0-10de2330', alias)

    def test_xml(self):
        server = self.boot(self.flavor('h100'))
        [(address, alias)] = self.hostdevs(server).items()
        domain = etree.fromstring(self.domain(server).defined_xml)
        [hostdev] = domain.findall('./devices/hostdev')
        self.assertEqual(
            f'<hostdev mode="subsystem" type="pci" managed="yes"><source>'
            f'<address domain="0x0000" bus="0x{address[5:7]}" slot="0x00" '
            f'function="0x0"/></source><alias name="{alias}"/></hostdev>',
            ''.join(etree.tostring(hostdev, encoding='unicode').split('\n'))
            .replace('  ', ''))

    def test_flavor_of_the_server_has_the_expanded_profile(self):
        server = self.boot(self.flavor('h100'))
        kept = self.api.get_server(server['id'])['flavor']['extra_specs']
        self.assertNotIn('accel:device_profile', kept)
        self.assertEqual('h100', kept['nova_accel:profile'])
        self.assertEqual('1', kept[f'resources_ACCEL0:{cloud.GPU}'])

    def test_flavor_is_shown_as_written(self):
        flavor = self.flavor('h100')
        self.boot(flavor)
        self.assertEqual(
            {'accel:device_profile': 'h100'},
            self.api.get_flavor(flavor)['extra_specs'])

    def test_pair_is_on_one_numa_node(self):
        for _time in range(2):
            server = self.boot(self.flavor('pair'))
            buses = {address[5:7] for address in self.hostdevs(server)}
            self.assertIn(buses, ({'43', '44'}, {'83', '84'}))

    def test_no_two_servers_on_one_device(self):
        flavor = self.flavor('h100')
        servers = [self.boot(flavor)['id'] for _time in range(4)]
        held = self.held()
        self.assertEqual(4, len(held))
        self.assertCountEqual(
            servers, [server for [server] in held.values()])

    def test_server_on_a_full_host_is_in_error(self):
        flavor = self.flavor('h100')
        for _time in range(4):
            self.boot(flavor)
        server = self.boot(flavor, state='ERROR')
        self.assertIn('No valid host', server['fault']['message'])
        self.assertEqual(4, len(self.held()))

    def test_delete_frees_the_device(self):
        flavor = self.flavor('h100')
        servers = [self.boot(flavor) for _time in range(4)]
        [freed] = self.hostdevs(servers[3])
        self._delete_server(servers[3])
        self.assertNotIn(freed, self.held())
        self.assertEqual([freed], list(self.hostdevs(self.boot(flavor))))

    def test_restart_keeps_held_devices(self):
        flavor = self.flavor('h100')
        before = self.boot(flavor)
        held = self.held()
        self.restart_compute_service('compute1')
        self.assertEqual(held, self.held())
        after = self.boot(flavor)
        self.assertFalse(set(self.hostdevs(before))
                         & set(self.hostdevs(after)))

    def test_hard_reboot_keeps_the_device(self):
        server = self.boot(self.flavor('pair'))
        held = self.hostdevs(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(held, self.hostdevs(server))

    def test_hard_reboot_without_a_definition_asks_placement(self):
        server = self.boot(self.flavor('pair'))
        held = self.hostdevs(server)
        domain = self.domain(server)
        domain.destroy()
        domain.undefine()
        self._reboot_server(server, hard=True)
        self.assertEqual(held, self.hostdevs(server))

    def test_server_without_profile_has_no_hostdev(self):
        server = self.boot(self.flavor())
        self.assertEqual({}, self.hostdevs(server))
        self.assertEqual({}, self.allocated(server))

    def test_class_on_the_flavor_needs_no_profile(self):
        flavor = self.flavor(extra_spec={f'resources:{cloud.GPU}': '1'})
        server = self.boot(flavor)
        [alias] = self.hostdevs(server).values()
        self.assertTrue(alias.startswith('ua-accel-flavor-'), alias)

    def test_held_devices_make_nova_try_the_next_host(self):
        self.start_compute('compute2')
        # A domain that Nova did not create has all cards of compute1.
        addresses = ''.join(
            f'<hostdev mode="subsystem" type="pci" managed="yes"><source>'
            f'<address domain="0x0000" bus="0x{bus}" slot="0x00" '
            f'function="0x0"/></source></hostdev>'
            for bus in (43, 44, 48, 49, 83, 84, 88, 89))
        self.connection().defineXML(
            '<domain type="qemu"><name>mine</name><uuid>'
            '0a6f4c7e-4a86-4f5e-8f0f-1d3fb0c4d2a1</uuid><os><type>hvm</type>'
            f'</os><memory>1</memory><vcpu>1</vcpu><devices>{addresses}'
            '</devices></domain>')
        server = self.boot(self.flavor('h100'))
        self.assertEqual('compute2', server['OS-EXT-SRV-ATTR:host'])

    def test_fault_has_the_reason_and_the_log_the_device(self):
        flavor = self.flavor('h100')
        servers = [self.boot(flavor) for _time in range(4)]
        [address] = self.hostdevs(servers[0])
        # Placement loses the allocations of a running server.
        self.placement.delete(f'/allocations/{servers[0]["id"]}')
        # Name the host, so that Nova tries no other one.
        failed = self.boot(flavor, state='ERROR', az='nova:compute1')
        self.assertIn('0 are free: … is held by …',
                      failed['fault']['message'])
        self.assertIn(f'{address} is held by {servers[0]["id"]}',
                      self.stdlog.logger.output)
        self.assertEqual([servers[0]['id']], self.held()[address])

    def test_class_on_the_flavor_and_a_missing_device(self):
        machine = self.directory_host()
        self.restart_compute_service('compute1')
        for bus in ('43', '44', '83', '84'):
            (machine / f'sys/bus/pci/devices/0000:{bus}:00.0').unlink()
        # nova-compute has not reported this yet, so Placement has four units.
        flavor = self.flavor(extra_spec={f'resources:{cloud.GPU}': '1'})
        server = self.boot(flavor, state='ERROR', az='nova:compute1')
        self.assertIn(f'this host has no device of {cloud.GPU}',
                      server['fault']['message'])

    def test_class_on_the_flavor_and_placement_fails_at_spawn(self):
        """The boot fails if Placement's answer fails.

        Nova treats a failed answer as no allocations.
        """
        self.flags(device_spec=[], group='nova_accel')
        self.useFixture(fixtures.MockPatch(
            'nova.scheduler.client.report.SchedulerReportClient.'
            'get_allocations_for_consumer', return_value={}))
        flavor = self.flavor(extra_spec={f'resources:{cloud.GPU}': '1'})
        server = self.boot(flavor, state='ERROR', az='nova:compute1')
        self.assertIn('Placement returned no allocations for it',
                      server['fault']['message'])

    def test_spawn_uses_the_host_read_for_its_claim(self):
        """spawn does not read sysfs again after the claim.

        It takes long to read hundreds of functions.
        """
        driver = self.computes['compute1'].driver
        reads, read, spawn = [], reader.read, driver.spawn
        self.useFixture(fixtures.MockPatchObject(
            reader, 'read', lambda *args, **kwargs: (
                reads.append('read'), read(*args, **kwargs))[1]))
        self.useFixture(fixtures.MockPatchObject(
            driver, 'spawn', lambda *args, **kwargs: (
                reads.append('spawn'), spawn(*args, **kwargs),
                reads.append('spawned'))[1]))
        # On a busy machine the claim can be long ago.
        self.useFixture(fixtures.MockPatchObject(
            local_host, 'CACHE_SECONDS', 60))
        self.boot(self.flavor('pair'))
        self.assertEqual(['spawned'], reads[reads.index('spawn') + 1:][:1])
        self.assertIn('read', reads[:reads.index('spawn')])

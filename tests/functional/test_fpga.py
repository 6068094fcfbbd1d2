# SPDX-License-Identifier: Apache-2.0
"""FPGA regions, requested by function or programmed for a server."""

import hashlib
import io
import json
import pathlib

import fixtures
from nova import exception
from nova.tests.functional.api import client

from nova_accel.core import naming
from tests.functional import cleaner
from tests.functional import cloud
from tests.functional import fpga

#: A host with three cards. The first has two functions of one region. The
#: second has two functions, each with its own region. The third has an FPGA
#: manager that accepts bitstreams.
FPGAS = cloud.DATA / 'hosts' / 'fpga-modelled.json'
SHARED = 'compute1_accel_0000:45:00.0'
PORTS = [f'compute1_accel_0000:46:00.0_FPGA_region{n}' for n in (0, 1)]
WHOLE = 'compute1_accel_0000:47:00.0'

LOOPBACK = 'd8424dc4a4a3c413f89e433683f9040b'
STREAM = 'f7df405cbd7acf7222f144b0b93acd18'
CRYPTO = '3a3b3c3d3e3f30313233343536373839'
IMAGE = 'a6a12670-7014-4cff-a563-cea949b57fb3'
OTHER_IMAGE = 'b069d97a-010a-4057-b70d-eca2b337fc9c'
REGION = '9926ab6d6c925a68aabca7d84c545738'


def trait(function):
    return f'CUSTOM_FPGA_FUNCTION_ID_{function.upper()}'


class Fpgas(cloud.Cloud):
    """Base of test cases with FPGAs. Each test offers the cards it needs."""

    def setUp(self):
        super().setUp()
        self.machine = self.directory_host(FPGAS)
        self.kernel = self.useFixture(fpga.Kernel(self.machine))

    def offer(self, *specs):
        self.flags(device_spec=[json.dumps(spec) for spec in specs],
                   group='nova_accel')

    def offer_shared(self, text='show $1 $2', **more):
        """Offer the card with a shared region, programmed by a command."""
        self.offer({'vendor_id': '8086', 'product_id': '09c5', 'program': [
            self.kernel.command(text), '{address}', '{bitstream}'], **more})
        self.start_compute('compute1')

    def offer_crypto(self, **more):
        """Offer that card; return a flavor with a bitstream for it."""
        self.image(fpga.bitstream(CRYPTO),
                   properties={'accel:function_id': CRYPTO})
        self.offer_shared(**more)
        return self.with_bitstream()

    def define_other_domain(self):
        """Define a domain that is not Nova's, with a function of that card.
        """
        return self.connection().defineXML(
            '<domain type="qemu"><name>mine</name><uuid>'
            '0a6f4c7e-4a86-4f5e-8f0f-1d3fb0c4d2a1</uuid><os><type>hvm</type>'
            '</os><memory>1</memory><vcpu>1</vcpu><devices><hostdev '
            'mode="subsystem" type="pci" managed="yes"><source><address '
            'domain="0x0000" bus="0x45" slot="0x00" function="0x2"/></source>'
            '</hostdev></devices></domain>')

    def image(self, content, image=IMAGE, **more):
        """Upload a bitstream to Glance."""
        properties = more.pop('properties', {})
        self.glance.create(None, {
            'id': image, 'name': 'bitstream', 'size': len(content),
            'os_hash_algo': 'sha512',
            'os_hash_value': hashlib.sha512(content).hexdigest(),
            'properties': properties, **more}, io.BytesIO(content))

    def with_bitstream(self, image=IMAGE, **more):
        """Return a flavor whose profile names a bitstream."""
        name = f'bitstream-{image}-{len(self.profile_files())}'
        self.write_profile(name, groups=[
            {'resources': {'FPGA': 1}, 'bitstream': image, **more}])
        return self.flavor(name)

    def profile_files(self):
        return list(pathlib.Path(self.profiles).iterdir())

    def with_function(self, function):
        self.write_profile(f'function-{function}', groups=[
            {'resources': {'FPGA': 1}, 'function': function}])
        return self.flavor(f'function-{function}')

    def traits(self, name):
        """Return the traits of a provider that are specific to FPGAs."""
        return {trait for trait in self._get_provider_traits(
            self.providers()[name]['uuid'])
            if not trait.startswith((naming.MARKER_TRAIT, 'OWNER_NOVA'))}

    def total(self, name):
        provider = self.providers().get(name)
        inventory = provider and self._get_provider_inventory(
            provider['uuid']).get('FPGA')
        return inventory['total'] - inventory['reserved'] if inventory else 0

    def boot_as(self, project, flavor, state='ACTIVE'):
        """Boot a server of another project."""
        api = client.TestOpenStackClient(
            project, self.api.base_url, project_id=project, roles=['member'])
        api.microversion = self.microversion
        return self.boot(flavor, state, api=api)

    def fault(self, server):
        return self.api.get_server(server['id'])['fault']['message']

    def said(self):
        """Return the log of nova-compute."""
        return self.stdlog.logger.output

    def cached(self):
        return [path for path in pathlib.Path(
            self.state_path, 'nova_accel/bitstreams').glob('*')
            if not path.name.endswith('.json')]


class FunctionTest(Fpgas):
    """Regions that are already programmed."""

    def setUp(self):
        super().setUp()
        self.offer({'kind': 'fpga', 'vendor_id': '8086', 'product_id': '09c5'},
                   {'kind': 'fpga', 'vendor_id': '8086', 'product_id': '0b31'},
                   {'kind': 'fpga', 'vendor_id': '10ee'})
        self.start_compute('compute1')

    def test_a_provider_for_each_region(self):
        self.assertEqual([2, 1, 1, 1], [
            self.total(name) for name in (SHARED, *PORTS, WHOLE)])
        self.assertEqual({
            'CUSTOM_FPGA_INTEL', 'CUSTOM_FPGA_INTEL_PAC_ARRIA10',
            trait(LOOPBACK),
            f'CUSTOM_FPGA_FUNCTION_ID_INTEL_{LOOPBACK.upper()}',
            f'CUSTOM_FPGA_REGION_ID_{REGION.upper()}',
            f'CUSTOM_FPGA_REGION_INTEL_{REGION.upper()}'},
            self.traits(SHARED))
        self.assertEqual(
            [{trait(LOOPBACK)}, {trait(STREAM)}],
            [self.traits(name) & {trait(LOOPBACK), trait(STREAM)}
             for name in PORTS])
        self.assertEqual({'CUSTOM_FPGA_XILINX', 'CUSTOM_FPGA_PRODUCT_ID_5000'},
                         self.traits(WHOLE))

    def test_server_requests_a_function(self):
        flavor = self.with_function(STREAM)
        server = self.boot(flavor)
        self.assertEqual(['0000:46:00.2'], list(self.hostdevs(server)))
        self.assertEqual({PORTS[1]: {'FPGA': 1}}, self.allocated(server))
        # No other region has the function.
        self.boot(flavor, state='ERROR')
        self._delete_server(server)
        self._run_periodics()
        self.boot(flavor)

    def test_profile_in_cyborgs_format(self):
        pathlib.Path(self.profiles, 'theirs.json').write_text(json.dumps([{
            'name': 'theirs', 'groups': [{
                'resources:FPGA': '1',
                'trait:CUSTOM_FPGA_INTEL_PAC_ARRIA10': 'required',
                f'trait:CUSTOM_FPGA_FUNCTION_ID_INTEL_{LOOPBACK.upper()}':
                    'required'}]}]))
        flavor = self.flavor('theirs')
        held = {address for _number in range(2)
                for address in self.hostdevs(self.boot(flavor))}
        self.assertEqual({'0000:45:00.1', '0000:45:00.2'}, held)
        self.boot(flavor, state='ERROR')

    def test_programmed_region_of_a_guest_is_kept(self):
        server = self.boot(self.with_function(STREAM))
        self.bind_vfio('0000:46:00.2')
        self._run_periodics()
        self.assertIn(trait(STREAM), self.traits(PORTS[1]))
        self._reboot_server(server, hard=True)

    def test_region_programmed_by_another_program(self):
        server = self.boot(self.with_function(LOOPBACK))
        [address] = self.hostdevs(server)
        self.kernel.show(f'{address[:-1]}0', CRYPTO)
        # The services share one process, so the error is also raised here.
        self.assertRaises(
            client.OpenStackApiException, self.api.post_server_action,
            server['id'], {'reboot': {'type': 'HARD'}})
        self._wait_for_state_change(server, 'ERROR')
        self.assertIn(trait(LOOPBACK), self.said())
        self.assertIn(f'function {CRYPTO} is programmed now', self.said())

    def test_entry_without_program_refuses_a_bitstream(self):
        self.image(fpga.bitstream(CRYPTO))
        self.boot(self.with_bitstream(), state='ERROR')
        self.assertIn('has no "program"', self.said())
        self.assertIn('CUSTOM_FPGA_XILINX', self.traits(WHOLE))

    def test_unreadable_region_does_not_hide_others(self):
        self.port('0000:46:00.1').write_bytes(b'\xff\x00garbage')
        self._run_periodics()
        self.assertEqual([2, 0, 1, 1], [
            self.total(name) for name in (SHARED, *PORTS, WHOLE)])
        self.assertIn('garbage', self.said())
        self.port('0000:46:00.1').write_text(f'{LOOPBACK}\n')
        self._run_periodics()
        self.assertEqual(1, self.total(PORTS[0]))

    def port(self, function):
        [path] = (self.machine / 'sys/bus/pci/devices' / function).glob(
            'fpga_region/*/dfl-port.*/afu_id')
        return path

    def bind_vfio(self, function):
        """Bind a function to vfio-pci, so that sysfs has no FPGA region."""
        device = (self.machine / 'sys/bus/pci/devices' / function).resolve()
        for link in (self.machine / 'sys/class/fpga_region').iterdir():
            if device in link.resolve().parents:
                link.unlink()
        (device / 'driver').unlink()
        (device / 'driver').symlink_to('../../bus/pci/drivers/vfio-pci')


class CommandTest(Fpgas):
    """Regions that a vendor's command programs."""

    def test_region_is_programmed_and_shared(self):
        self.image(fpga.bitstream(CRYPTO),
                   properties={'accel:function_id': CRYPTO.upper(),
                               'accel:region_type_id': REGION.upper()})
        self.offer_shared()
        flavor = self.with_bitstream()
        first = self.boot(flavor)
        self.assertEqual(['0000:45:00.0'], self.kernel.by_command())
        self._run_periodics()
        self.assertIn(trait(CRYPTO), self.traits(SHARED))
        self.assertNotIn(trait(LOOPBACK), self.traits(SHARED))
        # The other PCI function of the region goes to a server with the same
        # bitstream.
        second = self.boot(flavor)
        self.assertEqual({'0000:45:00.1', '0000:45:00.2'},
                         {*self.hostdevs(first), *self.hostdevs(second)})
        self._reboot_server(first, hard=True)
        self.assertEqual(['0000:45:00.0'], self.kernel.by_command())
        for server in (first, second):
            self._delete_server(server)
        self._run_periodics()
        # The region stays programmed, for servers that request the function.
        self.boot(self.with_function(CRYPTO))
        self.assertEqual(1, len(self.cached()))

    def test_region_is_programmed_again_for_another_project(self):
        flavor = self.offer_crypto()
        for count, boot in enumerate((
                self.boot, lambda flavor: self.boot_as('rival', flavor),
                self.boot), 1):
            for _server in range(2):
                server = boot(flavor)
                self._reboot_server(server, hard=True)
                self.assertEqual(count, len(self.kernel.by_command()))
                self._delete_server(server)
                self._run_periodics()

    def test_region_is_programmed_again_after_it_was_shared(self):
        flavor = self.offer_crypto()
        server = self.boot(flavor)
        rival = self.boot_as('rival', flavor)
        self._reboot_server(server, hard=True)
        self._delete_server(rival)
        self.assertEqual(1, len(self.kernel.by_command()))
        self._reboot_server(server, hard=True)
        self.assertEqual(2, len(self.kernel.by_command()))

    def test_region_is_programmed_again_after_a_restart(self):
        flavor = self.offer_crypto()
        servers = [self.boot(flavor) for _number in range(2)]
        self.restart_compute_service('compute1')
        self._reboot_server(servers[0], hard=True)
        self.assertEqual(1, len(self.kernel.by_command()))
        self._delete_server(servers[1])
        self._reboot_server(servers[0], hard=True)
        self.assertEqual(2, len(self.kernel.by_command()))

    def test_region_is_programmed_again_after_a_domain_of_others(self):
        flavor = self.offer_crypto()
        self._delete_server(self.boot(flavor))
        domain = self.define_other_domain()
        self._run_periodics()
        domain.undefine()
        self._run_periodics()
        self.boot(flavor)
        self.assertEqual(2, len(self.kernel.by_command()))

    def test_region_is_programmed_again_after_its_cleaner(self):
        wipe = self.useFixture(cleaner.Cleaner())
        self.flags(cleaner=[wipe.option], group='nova_accel')
        self.useFixture(cloud.BackgroundWork())
        flavor = self.offer_crypto(clean='wipe')
        self._delete_server(self.boot(flavor))
        for _round in range(3):
            self._run_periodics()
        self.assertEqual(['clean 0000:45:00.0', 'verify 0000:45:00.0'],
                         wipe.calls())
        self.boot(flavor)
        self.assertEqual(2, len(self.kernel.by_command()))

    def test_region_that_another_server_holds_is_not_programmed(self):
        self.image(fpga.bitstream(CRYPTO))
        self.offer_shared()
        held = self.boot(self.with_function(LOOPBACK))
        server = self.boot(self.with_bitstream(), state='ERROR')
        self.assertEqual([], self.kernel.by_command())
        self.assertIn(f'hold the region: {held["id"]}', self.said())
        self.assertEqual({}, self.allocated(server))
        self._run_periodics()
        # The region is still offered.
        self.boot(self.with_function(LOOPBACK))
        self._delete_server(held)

    def test_region_that_another_domain_holds_is_not_programmed(self):
        self.image(fpga.bitstream(CRYPTO))
        self.offer_shared(address='0000:45:00.1')
        self.define_other_domain()
        self.boot(self.with_bitstream(), state='ERROR')
        self.assertIn('hold the region: 0a6f4c7e-4a86-4f5e-8f0f-1d3fb0c4d2a1',
                      self.said())
        self.assertEqual([], self.kernel.by_command())

    def test_free_region_is_preferred(self):
        command = [self.kernel.command('show $1 $2'), '{address}',
                   '{bitstream}', '{region}']
        self.offer(*({'vendor_id': '8086', 'product_id': product_id,
                      'program': command} for product_id in ('09c5', '0b31')))
        self.start_compute('compute1')
        self.write_profile('a10', groups=[
            {'resources': {'FPGA': 1}, 'traits': {
                'CUSTOM_FPGA_INTEL_PAC_ARRIA10': 'required'}}])
        self.boot(self.flavor('a10'))
        self._run_periodics()
        self.image(fpga.bitstream(CRYPTO))
        for _number in range(2):
            server = self.boot(self.with_bitstream())
            [provider] = self.allocated(server)
            self.assertIn(provider, PORTS)
            self._delete_server(server)
            self._run_periodics()

    def test_region_is_shared_if_the_image_names_no_function(self):
        self.image(fpga.bitstream(CRYPTO))
        self.offer_shared()
        self.boot(self.with_bitstream())
        self.boot(self.with_bitstream())
        self.assertEqual(['0000:45:00.0'], self.kernel.by_command())

    def test_held_region_is_not_programmed_after_restart(self):
        self.image(fpga.bitstream(CRYPTO))
        self.offer_shared()
        first = self.boot(self.with_bitstream())
        # sysfs does not show the bitstream, so it is unknown after a restart.
        self.restart_compute_service('compute1')
        self.boot(self.with_bitstream(), state='ERROR')
        self.assertIn(f'hold the region: {first["id"]}', self.said())
        self.assertEqual(['0000:45:00.0'], self.kernel.by_command())

    def test_two_servers_of_one_request(self):
        self.image(fpga.bitstream(CRYPTO))
        self.offer_shared()
        server = self._build_server(
            image_uuid=cloud.IMAGE, flavor_id=self.with_bitstream(),
            networks='none')
        self.api.post_server({'server': {**server, 'min_count': 2}})
        for server in self.api.get_servers():
            self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(['0000:45:00.0'], self.kernel.by_command())

    def test_two_bitstreams_in_one_server(self):
        self.image(fpga.bitstream(CRYPTO))
        self.image(fpga.bitstream(STREAM), OTHER_IMAGE)
        self.offer_shared()
        self.write_profile('both', groups=[
            {'resources': {'FPGA': 1}, 'bitstream': image}
            for image in (IMAGE, OTHER_IMAGE)])
        self.boot(self.flavor('both'), state='ERROR')
        self.assertEqual([], self.kernel.by_command())

    def test_region_is_programmed_again_after_a_host_reboot(self):
        self.image(fpga.bitstream(CRYPTO))
        self.offer_shared()
        servers = [self.boot(self.with_bitstream()) for _number in range(2)]
        for server in servers:
            self.domain(server).destroy()
        self.kernel.show('0000:45:00.0', LOOPBACK)
        self.restart_compute_service('compute1')
        # Glance does not answer, so the cached bitstream is used.
        self.useFixture(fixtures.MockPatchObject(
            self.glance, 'show', side_effect=exception.GlanceConnectionFailed(
                server='x', reason='down')))
        for server in servers:
            self._reboot_server(server, hard=True)
        self.assertEqual(['0000:45:00.0'] * 2, self.kernel.by_command())

    def test_suspended_server_keeps_the_region(self):
        self.image(fpga.bitstream(CRYPTO),
                   properties={'accel:function_id': CRYPTO})
        self.image(fpga.bitstream(STREAM), OTHER_IMAGE)
        self.offer_shared()
        server = self.boot(self.with_bitstream())
        self._suspend_server(server)
        self.boot(self.with_bitstream(OTHER_IMAGE), state='ERROR')
        self._resume_server(server)
        self.assertEqual(['0000:45:00.0'], self.kernel.by_command())

    def test_failed_command_withholds_the_region(self):
        self.image(fpga.bitstream(CRYPTO))
        self.offer_shared('printf "\\377\\000no\\n"; exit 3')
        server = self.boot(self.with_bitstream(), state='ERROR')
        self.assertEqual({}, self.allocated(server))
        self.assertIn('ended with 3 and said', self.said())
        for _round in range(2):
            self._run_periodics()
            self.assertEqual(0, self.total(SHARED))
        # The operator programs the region.
        self.kernel.show('0000:45:00.0', STREAM)
        self._run_periodics()
        self.assertEqual(2, self.total(SHARED))
        self.boot(self.with_function(STREAM))

    def test_command_that_hangs_is_killed(self):
        self.image(fpga.bitstream(CRYPTO))
        self.offer_shared('sleep 100 & echo wait; sleep 100',
                          program_timeout=3)
        self.boot(self.with_bitstream(), state='ERROR')
        self.assertIn('was killed: it was not done after 3 seconds and said '
                      "'wait'", self.said())
        self._run_periodics()
        self.assertEqual(0, self.total(SHARED))

    def test_command_that_succeeds_without_programming(self):
        self.image(fpga.bitstream(CRYPTO),
                   properties={'accel:function_id': CRYPTO})
        self.offer_shared('exit 0')
        self.boot(self.with_bitstream(), state='ERROR')
        self.assertIn(f'the region shows function {LOOPBACK}, not {CRYPTO}',
                      self.said())

    def test_command_that_does_not_exist(self):
        self.image(fpga.bitstream(CRYPTO))
        self.offer({'vendor_id': '8086', 'product_id': '09c5',
                    'program': ['/nowhere/program', '{bitstream}']})
        self.start_compute('compute1')
        self.boot(self.with_bitstream(), state='ERROR')
        self.assertIn("'/nowhere/program' cannot be run", self.said())
        # The command did not start, so the region is still offered.
        self._run_periodics()
        self.assertEqual(2, self.total(SHARED))

    def test_bitstream_for_another_region(self):
        self.image(fpga.bitstream(CRYPTO),
                   properties={'accel:region_id': 'f' * 32})
        self.offer_shared()
        self.boot(self.with_bitstream(), state='ERROR')
        self.assertIn(f'is made for region {"f" * 32}', self.said())
        self.assertEqual([], self.kernel.by_command())
        self._run_periodics()
        self.assertEqual(2, self.total(SHARED))

    def test_bitstream_for_a_card_of_another_vendor(self):
        self.image(fpga.bitstream(CRYPTO), properties={'vendor': 'Xilinx'})
        self.offer_shared()
        self.boot(self.with_bitstream(), state='ERROR')
        self.assertIn("is made for cards of 'Xilinx'", self.said())


class RevertTest(Fpgas):

    def test_region_kept_for_a_revert_is_not_programmed(self):
        for image, function in (IMAGE, LOOPBACK), (OTHER_IMAGE, CRYPTO):
            self.image(fpga.bitstream(function), image=image, properties={
                'accel:function_id': function})
        # The region of each host shows the right function already.
        self.offer_shared('exit 0')
        other = self.directory_host(FPGAS)
        for afu in other.glob('sys/devices/**/afu_id'):
            afu.write_text(f'{CRYPTO}\n')
        self.start_compute('compute2')
        self._run_periodics()
        wants = self.with_bitstream(OTHER_IMAGE)
        server = self.boot(self.with_bitstream(IMAGE), host='compute1')
        self._resize_server(server, wants)
        self.boot(wants, host='compute1', state='ERROR')
        self.assertIn(f'hold the region: {server["id"]}', self.said())
        self.flags(host='compute1')
        self._revert_resize(server)
        self.assertEqual(1, len(self.hostdevs(server)))


class GlanceTest(Fpgas):
    """Bitstreams that cannot be downloaded or are not valid."""

    def setUp(self):
        super().setUp()
        self.offer_shared()

    def assertNotProgrammed(self, *said):
        self.boot(self.with_bitstream(), state='ERROR')
        for text in said:
            self.assertIn(text, self.said())
        self.assertEqual([], self.kernel.by_command())
        self.assertEqual([], self.cached())
        self._run_periodics()
        self.assertEqual(2, self.total(SHARED))

    def test_no_such_image(self):
        self.assertNotProgrammed(f'bitstream {IMAGE}',
                                 'cannot be read from Glance')

    def test_programmed_region_needs_no_image(self):
        self.image(fpga.bitstream(CRYPTO), properties={
            'accel:function_id': CRYPTO})
        server = self.boot(self.with_bitstream())
        had = self.hostdevs(server)
        for path in self.cached():
            path.unlink()
        self.glance.delete(None, IMAGE)
        self._reboot_server(server, hard=True)
        self.assertEqual(had, self.hostdevs(server))

    def test_truncated_image(self):
        self.image(fpga.bitstream(CRYPTO), os_hash_value=hashlib.sha512(
            fpga.bitstream(CRYPTO, 'more')).hexdigest())
        self.assertNotProgrammed('the data from Glance is damaged')

    def test_image_of_2_gb(self):
        self.image(fpga.bitstream(CRYPTO), size=2 << 30)
        with fixtures.MockPatchObject(self.glance, 'download') as download:
            self.assertNotProgrammed(f'has {2 << 30} bytes',
                                     'max_bitstream_size')
            download.mock.assert_not_called()

    def test_image_larger_than_its_size(self):
        self.flags(max_bitstream_size=1, group='nova_accel')
        self.image(fpga.bitstream(CRYPTO, 'x' * (1 << 20)), size=10)
        self.assertNotProgrammed('more than 10 bytes')

    def test_image_without_a_hash(self):
        self.image(fpga.bitstream(CRYPTO), os_hash_algo=None,
                   os_hash_value=None)
        self.assertNotProgrammed('no hash')

    def test_image_with_an_md5_checksum(self):
        content = fpga.bitstream(CRYPTO)
        self.image(content, os_hash_algo=None, os_hash_value=None,
                   checksum=hashlib.md5(content).hexdigest())
        self.boot(self.with_bitstream())
        self.assertEqual(['0000:45:00.0'], self.kernel.by_command())

    def test_deactivated_image(self):
        self.image(fpga.bitstream(CRYPTO), status='deactivated')
        self.assertNotProgrammed('is deactivated, not active')

    def test_image_with_invalid_properties(self):
        self.image(fpga.bitstream(CRYPTO),
                   properties={'accel:function_id': 'aes\n128'})
        self.boot(self.with_bitstream(), state='ERROR')
        self.assertIn("accel:function_id 'aes\\n128' is not a uuid",
                      self.said())
        self.assertEqual([], self.kernel.by_command())

    def test_damaged_copy_is_downloaded_again(self):
        self.image(fpga.bitstream(CRYPTO))
        server = self.boot(self.with_bitstream())
        [copy] = self.cached()
        copy.write_bytes(b'nonsense')
        self._delete_server(server)
        self.boot(self.with_bitstream())
        self.assertEqual(fpga.bitstream(CRYPTO), copy.read_bytes())

    def test_device_of_another_kind_is_not_programmed(self):
        self.offer({'vendor_id': '8086', 'product_id': '09c5',
                    'resource_class': 'FPGA'})
        self.restart_compute_service('compute1')
        self.image(fpga.bitstream(CRYPTO))
        self.assertNotProgrammed(
            'is of kind pci, which cannot be programmed')


class ExtraSpecTest(Fpgas):
    """Validation of ``nova_accel:bitstream_*`` by the flavors API."""

    def test_image_must_be_a_uuid(self):
        self.start_compute('compute1')
        flavor = self.flavor()
        for key, value, valid in (
                ('nova_accel:bitstream_ACCEL0', IMAGE, True),
                ('nova_accel:bitstream_ACCEL0', 'aes', False),
                ('nova_accel:bitstream_GPU0', IMAGE, False)):
            body = {'extra_specs': {key: value}}
            if valid:
                self.admin_api.post_extra_spec(flavor, body)
            else:
                self.assertRaises(
                    client.OpenStackApiException,
                    self.admin_api.post_extra_spec, flavor, body)


class ManagerTest(Fpgas):
    """Regions that the kernel's FPGA manager programs."""

    def test_manager_programs_the_region(self):
        self.image(fpga.bitstream(CRYPTO))
        self.offer({'vendor_id': '10ee', 'program': 'fpga_manager'})
        self.start_compute('compute1')
        server = self.boot(self.with_bitstream())
        self.assertEqual(['0000:47:00.0'], list(self.hostdevs(server)))
        self.assertEqual([('0000:47:00.0', fpga.bitstream(CRYPTO))],
                         self.kernel.programmed)
        # The file is removed when the kernel does not need it any more.
        self.assertEqual([], list((self.machine / 'lib/firmware').iterdir()))

    def test_refused_bitstream_withholds_the_region(self):
        self.image(b'for something else')
        self.offer({'vendor_id': '10ee', 'program': 'fpga_manager'})
        self.start_compute('compute1')
        self.boot(self.with_bitstream(), state='ERROR')
        self.assertIn("is in state 'write error'", self.said())
        self._run_periodics()
        self.assertEqual(0, self.total(WHOLE))
        # After a restart the region is still not offered.
        self.restart_compute_service('compute1')
        self._run_periodics()
        self.assertEqual(0, self.total(WHOLE))
        (self.machine / 'sys/class/fpga_manager/fpga2/state').write_text(
            'operating\n')
        self._run_periodics()
        self.assertEqual(1, self.total(WHOLE))

    def test_kernel_without_the_firmware_attribute(self):
        self.image(fpga.bitstream(CRYPTO))
        self.offer({'vendor_id': '8086', 'product_id': '09c5',
                    'program': 'fpga_manager'})
        self.start_compute('compute1')
        self.boot(self.with_bitstream(), state='ERROR')
        self.assertIn('fpga0 has no attribute "firmware" in this kernel',
                      self.said())
        self._run_periodics()
        self.assertEqual(2, self.total(SHARED))

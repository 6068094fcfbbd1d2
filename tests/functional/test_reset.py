# SPDX-License-Identifier: Apache-2.0
"""Device resets: a server gets a device only after a successful reset."""

import contextlib
import threading
import time

import fixtures
from nova import objects
from nova.tests.functional.api import client

from nova_accel.compute.state import device_claims
from nova_accel.compute.state import kept_claims
from nova_accel.compute.state import libvirt_domains
from nova_accel.core import errors
from tests.functional import cloud
from tests.functional import kernel

GPUS = tuple(f'0000:{bus}:00.0' for bus in
             ('43', '44', '83', '84'))
ONE = GPUS[0]
PROVIDER = f'compute1_accel_{ONE}'


class Reset(cloud.Cloud):
    """Base of test cases with GPUs that have a reset and no driver."""

    entries = [cloud.FOUR_SPEC]
    recording = cloud.EIGHT_GPUS
    functions = GPUS

    def setUp(self):
        super().setUp()
        self.ahead, now = 0, time.monotonic
        self.useFixture(fixtures.MonkeyPatch(
            'time.monotonic', lambda: now() + self.ahead))
        self.flags(device_spec=self.entries, group='nova_accel')
        self.machine = self.directory_host(self.recording)
        self.kernel = self.useFixture(kernel.Functions(self.machine))
        self.kernel.on_reset = self.check_nobody_has
        self.background = self.useFixture(cloud.BackgroundWork())
        self.kernel.offer_reset(*self.functions)
        for address in self.functions:
            (self.kernel.place(address) / 'driver').unlink(missing_ok=True)
        self.gpu_profile('gpu', numa='off')
        self.gpu = self.flavor('gpu')

    def check_nobody_has(self, address):
        """Check that no domain has a device that is reset."""
        for host in self.computes:
            self.assertNotIn(address, self.held(host))

    def totals(self):
        """Return the units that are not reserved, by provider."""
        found = {name: next((record['total'] - record['reserved'] for record in
                             self._get_provider_inventory(
                                 provider['uuid']).values()), 0)
                 for name, provider in self.providers().items()}
        return {name: number for name, number in found.items() if number}

    def traits(self):
        return self._get_provider_traits(self.providers()[PROVIDER]['uuid'])

    def said(self, text):
        return self.stdlog.logger.output.count(text)

    @contextlib.contextmanager
    def slow(self):
        """Make resets end only at the end of the context."""
        over = threading.Event()
        self.kernel.on_reset = lambda address: over.wait(60)
        with fixtures.MonkeyPatch('nova_accel.host.background.WAIT', 0.1):
            try:
                yield
            finally:
                over.set()
        self.kernel.on_reset = self.check_nobody_has

    def later(self):
        """Advance the clock until a failed reset is tried again."""
        self.ahead += 601
        self._run_periodics()


class WholeTest(Reset):

    entries = [cloud.GPU_SPEC[:-1] + f', "address": "{ONE}"}}']
    functions = [ONE]

    def test_reset_at_start_and_after_each_server(self):
        self.start_compute('compute1')
        self.assertEqual([ONE], self.kernel.resets)
        server = self.boot(self.gpu)
        self._run_periodics()
        self._stop_server(server)
        self._run_periodics()
        self._start_server(server)
        self._reboot_server(server, hard=True)
        self.assertEqual([ONE], self.kernel.resets)
        self._delete_server(server)
        self._run_periodics()
        self._run_periodics()
        self.assertEqual([ONE] * 2, self.kernel.resets)

    def test_slow_reset_ends_before_the_next_server(self):
        self.start_compute('compute1')
        server = self.boot(self.gpu)
        with self.slow():
            self._delete_server(server)
            self.assertEqual([ONE], self.kernel.resets)
        self.boot(self.gpu)
        self.assertEqual([ONE] * 2, self.kernel.resets)

    def test_slow_reset_does_not_delay_other_servers(self):
        self.start_compute('compute1')
        server = self.boot(self.gpu)
        self.kernel.broken = {ONE}
        with self.slow():
            self._delete_server(server)
            self._delete_server(self.boot(self.flavor()))
            self._run_periodics()
            # The result of the reset is not known yet.
            self.assertEqual({PROVIDER: 1}, self.totals())
            # The reset takes longer than the time until the next try.
            self.ahead += 601
        self.background.wait()
        self._run_periodics()
        self._run_periodics()
        self.assertEqual(({}, 2), (self.totals(), self.kernel.tries))
        self.kernel.broken = set()
        self.later()
        self.boot(self.gpu)

    def test_held_device_is_not_reset_at_restart(self):
        self.start_compute('compute1')
        server = self.boot(self.gpu)
        self.restart_compute_service('compute1')
        self._run_periodics()
        self.assertEqual([ONE], self.kernel.resets)
        self._delete_server(server)
        self.assertEqual([ONE] * 2, self.kernel.resets)
        # A new process does not know of the last reset.
        self.restart_compute_service('compute1')
        self.assertEqual([ONE] * 3, self.kernel.resets)

    def test_unsafe_host_offers_no_devices(self):
        """An existing server keeps its device on a host that became unsafe."""
        self.start_compute('compute1')
        server = self.boot(self.gpu)
        (self.machine / 'proc').mkdir(exist_ok=True)
        (self.machine / 'proc/cmdline').write_text('pcie_acs_override=id:1\n')
        self.restart_compute_service('compute1')
        self._reboot_server(server, hard=True)
        self.assertEqual([ONE], [*self.held('compute1')])
        self.assertEqual({}, self.totals())
        self.assertEqual(1, self.said(
            f'Not offered: {ONE} (10de:2330): the IOMMU groups of this host '
            'cannot be trusted'))
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual({}, self.totals())
        self.flags(allow_unsafe_host=True, group='nova_accel')
        self._run_periodics()
        self.boot(self.gpu)

    def test_device_whose_reset_fails_at_start_is_not_offered(self):
        self.kernel.broken = {ONE}
        self.start_compute('compute1')
        self.assertEqual({}, self.totals())
        self.assertEqual(1, self.said(
            f'Not offered: {ONE} (10de:2330): its reset failed: '
            'Inappropriate ioctl for device; the reset is tried again'))
        self.kernel.broken = set()
        self._run_periodics()
        self.assertEqual({}, self.totals())
        self.later()
        self.assertEqual({PROVIDER: 1}, self.totals())
        self.boot(self.gpu)

    def test_device_whose_reset_fails_after_delete_is_not_offered(self):
        self.start_compute('compute1')
        server = self.boot(self.gpu)
        self.kernel.broken = {ONE}
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual({}, self.totals())
        self.assertIn('CUSTOM_NOVA_ACCEL_RESET_FAILED', self.traits())
        self.boot(self.gpu, state='ERROR')
        self.assertEqual({}, self.held())
        self.kernel.broken = set()
        self.later()
        self.boot(self.gpu)
        self.assertNotIn('CUSTOM_NOVA_ACCEL_RESET_FAILED', self.traits())

    def test_device_whose_reset_fails_at_spawn_is_not_offered(self):
        self.kernel.bind(ONE, 'nvidia')
        self.kernel.broken = {ONE}
        self.start_compute('compute1')
        self.assertEqual({PROVIDER: 1}, self.totals())
        server = self.boot(self.gpu, state='ERROR')
        self.assertEqual({}, self.held())
        self.assertIn(
            f'Server gets no devices: device {ONE} (10de:2330): is not '
            'offered: its reset failed', self.stdlog.logger.output)
        self._delete_server(server)
        self._run_periodics()
        self.assertEqual({}, self.totals())
        # The operator repairs the device and binds its driver again.
        self.kernel.broken = set()
        self.kernel.bind(ONE, 'nvidia')
        self.later()
        self.assertEqual('nvidia', self.kernel.driver(ONE))
        self.assertEqual({}, self.totals())
        self.assertEqual(1, self.said('unbind nvidia, which was bound again'))
        self.restart_compute_service('compute1')
        self.assertEqual({PROVIDER: 1}, self.totals())
        self.boot(self.gpu)

    def test_failed_device_with_allocations_is_reserved(self):
        self.start_compute('compute1')
        server = self.boot(self.gpu)
        self.kernel.broken = {ONE}
        with self.slow():
            self._delete_server(server)
            self.placement.put(f'/allocations/{server["id"]}', {
                'allocations': {self.providers()[PROVIDER]['uuid']: {
                    'resources': {cloud.unit(cloud.GPU): 1}}},
                'project_id': 'x', 'user_id': 'x',
                'consumer_generation': None}, version='1.28')
        self.background.wait()
        self._run_periodics()
        self.assertEqual({}, self.totals())
        self.assertIn('CUSTOM_NOVA_ACCEL_RESET_FAILED', self.traits())

    def test_owner_without_a_domain_waits_for_a_reset(self):
        self.start_compute('compute1')
        server = self.boot(self.gpu)
        had = self.hostdevs(server)
        self.domain(server).destroy()
        self.domain(server).undefine()
        self.restart_compute_service('compute1')
        self.kernel.broken.add(ONE)
        # In the harness, nova-api answers after nova-compute has failed.
        self.assertRaises(
            client.OpenStackApiException, self.api.post_server_action,
            server['id'], {'reboot': {'type': 'HARD'}})
        server = self._wait_for_state_change(server, 'ERROR')
        self.assertEqual({}, self.hostdevs(server))
        self.kernel.broken.clear()
        self.later()
        self._reboot_server(server, hard=True)
        self.assertEqual(had, self.hostdevs(server))

    def test_device_in_reset_is_not_chosen(self):
        self.start_compute('compute1')
        server = self.boot(self.gpu)
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.compute.state.device_claims._PATIENCE', 0.1))
        with self.slow():
            self._delete_server(server)
            self.boot(self.gpu, state='ERROR')
        self.assertIn('held by nova-compute for a reset',
                      self.stdlog.logger.output)

    def test_device_in_reset_is_not_claimed_again(self):
        self.start_compute('compute1')
        server = self.boot(self.gpu)
        claims = device_claims.DeviceClaims(
            libvirt_domains.LibvirtDomains(
                self.computes['compute1'].driver._host),
            kept_claims.KeptClaims(lambda: 'compute1'))
        instance = objects.Instance(uuid=server['id'])
        held = claims.held(instance)
        self._delete_server(server)
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.compute.state.device_claims._PATIENCE', 0.1))
        with claims.set_aside((held[0].address,)):
            self.assertRaisesRegex(
                errors.AssignmentError, 'is being reset',
                claims.ensure_claimed, instance, held)
        claims.ensure_claimed(instance, held)
        self.assertEqual(held, claims.get(instance))

    def test_device_with_a_host_driver_is_reset_at_spawn(self):
        self.kernel.bind(ONE, 'nvidia')
        self.start_compute('compute1')
        self._run_periodics()
        self.assertEqual(({PROVIDER: 1}, []),
                         (self.totals(), self.kernel.resets))
        drivers = []
        self.kernel.on_reset = lambda address: drivers.append(
            self.kernel.driver(address))
        self.boot(self.gpu)
        self.assertEqual(([ONE], [None]), (self.kernel.resets, drivers))

    def test_device_that_a_program_has_open_is_not_reset(self):
        self.kernel.bind(ONE, 'vfio-pci')
        (self.kernel.place(ONE) / 'enable').write_text('1\n')
        self.start_compute('compute1')
        self.assertEqual(({}, []), (self.totals(), self.kernel.resets))
        self.assertEqual(1, self.said('a program has it open'))

    def test_device_without_a_reset_method_is_refused(self):
        self.kernel.offer_reset(ONE, methods=None)
        self.start_compute('compute1')
        self.assertEqual({}, self.totals())
        self.assertEqual(1, self.said('it cannot be reset by itself'))
        self.flags(device_spec=[
            self.entries[0][:-1] + ', "reset": "if_possible"}'],
            group='nova_accel')
        self._run_periodics()
        self._run_periodics()
        self.assertEqual({PROVIDER: 1}, self.totals())
        self.assertEqual(1, self.said('cannot be reset by itself, and is '
                                      'offered as'))
        self.boot(self.gpu)

    def test_unmanaged_device_needs_a_vfio_driver(self):
        self.flags(device_spec=[
            self.entries[0][:-1] + ', "managed": "no"}'], group='nova_accel')
        self.kernel.bind(ONE, 'nvidia')
        self.start_compute('compute1')
        self.assertEqual({}, self.totals())
        self.assertEqual(1, self.said('its driver is nvidia, which is not '
                                      'a vfio driver'))
        self.kernel.bind(ONE, 'nvgrace_gpu_vfio_pci')
        self._run_periodics()
        self.assertEqual({PROVIDER: 1}, self.totals())
        self.boot(self.gpu)


class SeveralTest(Reset):

    def test_device_whose_reset_fails_does_not_affect_others(self):
        self.kernel.broken = {ONE}
        self.start_compute('compute1')
        self.assertEqual([1] * 3, list(self.totals().values()))
        self.assertNotIn(PROVIDER, self.totals())

    def test_hanging_unbind_delays_only_its_own_server(self):
        begun, over = threading.Event(), threading.Event()

        def hang(_address):
            if not begun.is_set():
                begun.set()
                over.wait(60)

        self.addCleanup(over.set)
        for address in GPUS:
            self.kernel.bind(address, 'nvidia')
        self.kernel.on_unbind = hang
        self.start_compute('compute1')
        waiting = self.api.post_server({'server': self._build_server(
            image_uuid=cloud.IMAGE, flavor_id=self.gpu, networks='none')})
        self.assertTrue(begun.wait(60))
        self._delete_server(self.boot(self.gpu))
        self._run_periodics()
        self._delete_server(self.boot(self.flavor()))
        self.assertEqual('BUILD', self.api.get_server(
            waiting['id'])['status'])
        over.set()
        self._wait_for_state_change(waiting, 'ACTIVE')

    def test_another_device_replaces_those_whose_reset_fails(self):
        """All resets but one fail; the server gets that device, allocated."""
        for address in GPUS:
            self.kernel.bind(address, 'nvidia')
        self.kernel.broken = set(GPUS[:-1])
        self.start_compute('compute1')
        self.write_profile('two', groups=[
            {'resources': {cloud.GPU: 1}, 'count': 2, 'numa': 'off'}])
        self.boot(self.flavor('two'), state='ERROR')
        self.restart_compute_service('compute1')
        server = self.boot(self.gpu)
        self.assertEqual([GPUS[-1]], [*self.hostdevs(server)])
        self.assertEqual({f'compute1_accel_{GPUS[-1]}': {cloud.GPU: 1}},
                         self.allocated(server))

    def test_slow_resets_do_not_delay_the_report(self):
        with self.slow():
            self.start_compute('compute1')
            self.assertEqual([1] * 4, list(self.totals().values()))
            self.assertEqual([], self.kernel.resets)
        for _server in range(4):
            self.boot(self.gpu)
        self.assertCountEqual(GPUS, self.kernel.resets)

    def test_driver_bound_while_other_devices_are_reset(self):
        with self.slow():
            self.start_compute('compute1')
            self.kernel.bind(GPUS[-1], 'nvidia')
        self.background.wait()
        self._run_periodics()
        self.assertCountEqual(GPUS[:-1], self.kernel.resets)
        self.assertEqual('nvidia', self.kernel.driver(GPUS[-1]))


class PoolTest(Reset):

    entries = ['{"vendor_id": "8086", "product_id": "37c9", '
               f'"resource_class": "{cloud.GPU}"}}']
    recording = cloud.A100
    functions = ('0000:85:01.0', '0000:85:01.1')

    def test_vf_whose_reset_fails_leaves_the_pool(self):
        self.start_compute('compute1')
        pool = 'compute1_accel_0000:85:00.0'
        self.assertEqual({pool: 2}, self.totals())
        server = self.boot(self.gpu)
        [failing] = self.hostdevs(server)
        self.kernel.broken = {failing}
        self._delete_server(server)
        self.assertEqual({pool: 1}, self.totals())
        self.assertNotIn(failing, self.hostdevs(self.boot(self.gpu)))
        self.boot(self.gpu, state='ERROR')
        self.kernel.broken = set()
        self.later()
        self.assertEqual({pool: 2}, self.totals())
        self.assertIn(failing, self.hostdevs(self.boot(self.gpu)))

    def test_another_vf_replaces_one_whose_reset_fails(self):
        for address in self.functions:
            self.kernel.bind(address, 'c6xxvf')
        self.kernel.broken = {self.functions[0]}
        self.start_compute('compute1')
        server = self.boot(self.gpu)
        self.assertEqual([self.functions[1]], [*self.hostdevs(server)])
        self._run_periodics()
        self.assertEqual({'compute1_accel_0000:85:00.0': 1}, self.totals())
        self.boot(self.gpu, state='ERROR')

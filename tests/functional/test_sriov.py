# SPDX-License-Identifier: Apache-2.0
"""The number of VFs of a card, which an entry's ``num_vfs`` sets."""

from nova.tests.functional.api import client

from tests.functional import cloud
from tests.functional import kernel

CARD = '0000:85:00.0'
PROVIDER = f'compute1_accel_{CARD}'


class SriovTest(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.machine = self.directory_host(cloud.A100)
        self.kernel = self.useFixture(kernel.Functions(self.machine))
        self.write_profile('vf', groups=[{'resources': {'CUSTOM_QAT': 1}}])
        self.vf = self.flavor('vf')

    def start(self, number, **more):
        """Start or restart nova-compute with an entry that sets num_vfs."""
        self.name(number)
        if 'compute1' in self.computes:
            self.restart_compute_service('compute1')
        else:
            self.start_compute('compute1', **more)

    def name(self, number):
        self.flags(device_spec=[
            '{"vendor_id": "8086", "product_id": "37c8", "address": '
            f'"0000:85:*.*", "num_vfs": {number}, '
            '"resource_class": "CUSTOM_QAT"}'], group='nova_accel')

    def number(self, card=CARD):
        return int((self.kernel.place(card) / 'sriov_numvfs').read_text())

    def total(self):
        """Return the total of the card's provider, the only one."""
        [(name, provider)] = self.providers().items()
        self.assertEqual(PROVIDER, name)
        [inventory] = self._get_provider_inventory(
            provider['uuid']).values()
        return inventory['total']

    def by_hand(self, number):
        for wanted in (0, number):
            self.kernel.set_num_vfs(CARD, wanted)

    def said(self, text):
        return self.stdlog.logger.output.count(text)

    def test_vfs_enabled_by_hand_on_a_held_pf(self):
        """A server has the PF, and the operator enables VFs.

        No server gets the VFs, and the server of the PF does not start.
        """
        self.by_hand(0)
        self.flags(device_spec=[
            '{"vendor_id": "8086", "address": "0000:85:*.*", '
            '"resource_class": "CUSTOM_QAT"}'], group='nova_accel')
        self.start_compute('compute1')
        server = self.boot(self.vf)
        self.assertEqual({CARD}, set(self.hostdevs(server)))
        self._stop_server(server)
        self.by_hand(4)
        self._run_periodics()
        self.boot(self.vf, state='ERROR')
        # The services share one process, so the error is also raised here.
        self.assertRaises(client.OpenStackApiException,
                          self.api.post_server_action, server['id'],
                          {'os-start': None})
        self.assertEqual({CARD}, set(self.hostdevs(server)))
        self.assertIn('has 4 virtual functions and 0 mdevs by now',
                      self.stdlog.logger.output)
        self.by_hand(0)
        self._reboot_server(server, hard=True)

    def test_smaller_number_and_a_host_reboot(self):
        self.start(6)
        servers = [self.boot(self.vf) for _function in range(6)]
        before = [self.hostdevs(server) for server in servers]
        self._delete_server(servers.pop())
        before.pop()
        self.start(2)
        self.assertEqual(6, self.number())
        for server in servers:
            self.domain(server).destroy()
        self.by_hand(0)
        self.restart_compute_service('compute1')
        self.assertEqual(5, self.number())
        self.assertEqual(1, self.said('it gets 5 virtual functions, though '
                                      '[nova_accel] device_spec #1 says'))
        for server in servers:
            self._reboot_server(server, hard=True)
        self.assertEqual(before, [self.hostdevs(server)
                                  for server in servers])

    def test_number_of_vfs_of_the_entry_is_set(self):
        self.start(5)
        self.assertEqual((5, 5), (self.number(), self.total()))
        held = {address for _number in range(5)
                for address in self.hostdevs(self.boot(self.vf))}
        self.assertEqual(5, len(held))
        self.assertNotIn(CARD, held)
        self.boot(self.vf, state='ERROR')

    def test_all_vfs_are_enabled(self):
        self.start('"all"')
        self.assertEqual((16, 16), (self.number(), self.total()))

    def test_vfs_are_enabled_after_a_host_reboot(self):
        self.start(4)
        server = self.boot(self.vf)
        before = self.hostdevs(server)
        self.domain(server).destroy()
        self.by_hand(0)
        self.restart_compute_service('compute1')
        self.assertEqual((4, 4), (self.number(), self.total()))
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.hostdevs(server))

    def test_number_is_not_changed_while_a_vf_is_held(self):
        self.start(4)
        server = self.boot(self.vf)
        self._stop_server(server)
        self.start(6)
        self.assertEqual((4, 4), (self.number(), self.total()))
        self.assertEqual(1, self.said('a domain holds 0000:85:01.'))
        self._delete_server(server)
        self.start(6)
        self.assertEqual((6, 6), (self.number(), self.total()))

    def test_number_changed_by_hand_is_logged_and_kept(self):
        self.start(4)
        self.by_hand(2)
        self._run_periodics()
        self._run_periodics()
        self.assertEqual((2, 2), (self.number(), self.total()))
        self.assertEqual(1, self.said('has 2 virtual functions, and '
                                      '[nova_accel] device_spec #1 says'))
        self.start(4)
        self.assertEqual((4, 4), (self.number(), self.total()))

    def test_more_vfs_than_the_card_supports(self):
        self.start(17)
        self.assertEqual((2, 2), (self.number(), self.total()))
        self.assertEqual(1, self.said('says num_vfs 17: it can have 16'))

    def test_more_vfs_than_the_host_has_resources_for(self):
        self.kernel.room = 8
        self.start(10)
        self.assertEqual((2, 2), (self.number(), self.total()))
        self.assertEqual(1, self.said(
            f'Device {CARD} cannot have 10 virtual functions: [Errno 12]'))

    def test_driver_that_enables_another_number(self):
        """The driver enables all VFs, as Intel's QAT driver (adf_sriov.c)."""
        self.kernel.all_or_none = True
        self.start(8)
        self.assertEqual((16, 16), (self.number(), self.total()))
        self.assertEqual(1, self.said(
            f'Device {CARD} has 16 virtual functions, though num_vfs is 8'))
        self.assertEqual(1, self.said('write num_vfs 16, or "all"'))
        self.start(16)
        self.assertEqual(1, self.said('its driver made so many'))

    def test_resize_within_the_pool(self):
        """Servers resize to more and fewer VFs, and confirm or revert."""
        self.flags(allow_resize_to_same_host=True)
        self.start(6)
        flavors = {}
        for count in (1, 2):
            self.write_profile(f'vfs-{count}', groups=[
                {'resources': {'CUSTOM_QAT': 1}, 'count': count}])
            flavors[count] = self.flavor(f'vfs-{count}')
        for before, after in ((2, 1), (1, 2)):
            for end in (self._confirm_resize, self._revert_resize):
                server = self.boot(flavors[before])
                self._resize_server(server, flavors[after])
                self.assertEqual(after, len(self.hostdevs(server)))
                end(server)
                left = after if end == self._confirm_resize else before
                self.assertEqual(left, len(self.hostdevs(server)))
                self.assertEqual({PROVIDER: {'CUSTOM_QAT': left}},
                                 self.allocated(server))
                self._reboot_server(server, hard=True)
                self.assertEqual(left, len(self.hostdevs(server)))
                self._delete_server(server)

    def test_card_that_nova_claims_is_unchanged(self):
        self.flags(device_spec=['{"address": "0000:85:*.1"}'], group='pci')
        self.start(4)
        self.assertEqual((2, 1), (self.number(), self.total()))
        self.assertEqual(1, self.said(
            '[pci] device_spec #1 claims 0000:85:01.1'))

    def test_card_that_fails_does_not_affect_others(self):
        self.flags(device_spec=[
            '{"address": "0000:00:01.0", "num_vfs": 2}',
            '{"product_id": "37c8", "num_vfs": 3}'], group='nova_accel')
        self.start_compute('compute1')
        self.assertEqual((3, 3), (self.number(), self.total()))
        self.assertEqual(1, self.said('it can have no virtual functions'))

    def test_recording_is_not_changed(self):
        self.flags(sysfs_root=str(cloud.A100), group='nova_accel')
        self.start(4)
        self.assertEqual(2, self.total())
        self.assertEqual(1, self.said('cannot have 4 virtual functions: '
                                      'sysfs_root: is a recording'))

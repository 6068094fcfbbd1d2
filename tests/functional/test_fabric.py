# SPDX-License-Identifier: Apache-2.0
"""The partition of a server is active before its guest runs."""

import ddt
import fixtures

from nova_accel.compute.devices import prepare as preparation
from nova_accel.core.placement import device_traits
from nova_accel.host import fmpm
from tests.functional import cloud
from tests.functional import fabric
from tests.functional import withheld

_NIC = ('{"vendor_id": "8086", "product_id": "10c9", '
        '"resource_class": "CUSTOM_NIC"}')


class FabricCase(withheld.Keeping, cloud.Cloud):

    DEVICE_SPEC = (cloud.GPU_SPEC,)
    RESTART_MODE = False

    def setUp(self):
        super().setUp()
        self.directory_host()
        self.fabric = self.useFixture(fabric.Fabric(
            self.connection, restart_mode=self.RESTART_MODE))
        self.flags(fabric_manager=self.fabric.option, group='nova_accel')
        self.start_compute('compute1')
        for count in (1, 2, 4, 8):
            self.gpu_profile(f'gpus{count}', count, numa='off', **{
                'affinity': [{'same': 'link_domain'}]} if count > 1 else {})
        self.flavors = {count: self.flavor(f'gpus{count}')
                        for count in (1, 2, 4, 8)}
        self.addCleanup(
            lambda: self.assertEqual([], self.fabric.unconnected))

    def assertActive(self, *servers):
        """Check that the partitions of these servers are active, no others."""
        self.assertEqual(
            sorted(sorted(self.hostdevs(server)) for server in servers),
            sorted(map(sorted, self.fabric.active())))


@ddt.ddt
class FabricTest(FabricCase):

    def test_from_boot_to_deletion(self):
        servers = [self.boot(self.flavors[count]) for count in (4, 2, 1)]
        self.assertActive(*servers)
        self._delete_server(servers[0])
        self._run_periodics()
        self.assertActive(*servers[1:])
        servers = [*servers[1:], self.boot(self.flavors[4])]
        self.assertActive(*servers)

    def test_failed_activation(self):
        self.fabric.manager.set(bad_links=[1])
        server = self.boot(self.flavors[8], state='ERROR')
        self.assertNotIn('artition', server['fault']['message'])
        self.assertIn('NVLINK_ERROR', self.stdlog.logger.output)
        self._delete_server(server)
        self._run_periodics()
        self.assertActive()
        self.fabric.manager.set(bad_links=[])
        self.assertActive(self.boot(self.flavors[8]))

    @ddt.data('reboot', 'stop_and_start', 'restart', 'restart_host')
    def test_server_keeps_its_partition(self, happens):
        server = self.boot(self.flavors[4])
        if happens == 'stop_and_start':
            self._stop_server(server)
            self._run_periodics()
            self._start_server(server)
        elif happens == 'restart':
            self.restart_compute_service('compute1')
            self._run_periodics()
        elif happens == 'restart_host':
            self._stop_server(server)
            self.fabric.manager.restart()
            self.restart_compute_service('compute1')
            self._start_server(server)
        else:
            self.reboot(server)
        self.assertActive(server)

    def test_partition_that_was_left(self):
        self.fabric.manager.set(active=[0])
        server = self.boot(self.flavors[1])
        self.assertActive(server)
        self.fabric.manager.set(active=[*self.fabric.manager.active, 1, 2])
        self.boot(self.flavors[8], state='ERROR')
        self._run_periodics()
        [[card]] = [self.hostdevs(server)]
        self.assertEqual(1, len([members for members in self.fabric.active()
                                 if len(members) == 4]))
        self.assertIn({card}, self.fabric.active())

    def test_manager_that_does_not_run(self):
        server = self.boot(self.flavors[4])
        self.fabric.manager.stop()
        self.boot(self.flavors[4], state='ERROR')
        self.assertIn('Failed to connect', self.stdlog.logger.output)
        self._run_periodics()
        self.assertActive(server)
        for option in '{', self.fabric.option:
            self.flags(fabric_manager=option, group='nova_accel')
            self.reboot(server)
            # The owner does not need to know what a fabric manager is.
            self.assertEqual(
                'Failed to deploy instance: the links between its devices '
                'cannot be made usable now',
                self.api.get_server(server['id'])['fault']['message'])
            self.set_active(server)

    def test_card_that_may_belong_to_the_fabric(self):
        self.flags(fabric_manager=self.fabric.manager.option(
            modules={'1': fabric.MODULES[1]}), group='nova_accel')
        self._run_periodics()
        self.boot(self.flavors[8], state='ERROR')

    def test_partition_that_is_activated_meanwhile(self):
        activate = fmpm.Fmpm.activate

        def twice(*args):
            activate(*args)
            activate(*args)

        self.useFixture(fixtures.MockPatchObject(fmpm.Fmpm, 'activate',
                                                 twice))
        self.assertActive(self.boot(self.flavors[4]))

    def test_card_without_a_partition(self):
        self.fabric.manager.set(gone=[3])
        self.rounds()
        servers = [self.boot(self.flavors[1]) for _single in range(7)]
        self.assertActive(*servers)
        self.assertIn('the fabric manager has no partition with it',
                      self.stdlog.logger.output)
        self.boot(self.flavors[1], state='ERROR')

    def test_server_whose_card_has_no_partition_does_not_start(self):
        server = self.boot(self.flavors[8])
        # The manager was restarted, and does not see a card.
        self.fabric.manager.set(gone=[3], active=[])
        self.rounds()
        self.reboot(server)
        self.assertEqual(
            'ERROR', self.api.get_server(server['id'])['status'])
        self.fabric.manager.set(gone=[])
        self.reboot(server)
        self.assertActive(server)

    def test_partitions_of_cards_that_are_not_offered(self):
        # The host itself can use them.
        self.flags(device_spec=[cloud.FOUR_SPEC], group='nova_accel')
        for number in 6, 0:
            self.fabric.manager.set(active=[number])
            self.rounds()
            self.assertEqual([number], self.fabric.manager.active)
        self.boot(self.flavors[1], state='ERROR')
        self.assertIn('partition 0 is active, and another server has a card '
                      'of it, or one is not offered',
                      self.stdlog.logger.output)

    def test_device_of_no_fabric_needs_no_manager(self):
        self.flags(device_spec=[cloud.GPU_SPEC, _NIC], group='nova_accel')
        self.rounds()
        self.fabric.manager.stop()
        self.write_profile('nic', groups=[{'resources': {'CUSTOM_NIC': 1}}])
        self.useFixture(fixtures.MockPatchObject(self.fabric, '_check'))
        self.boot(self.flavor('nic'))

    def test_partition_with_another_servers_card(self):
        server = self.boot(self.flavors[1])
        [card] = self.hostdevs(server)
        self.fabric.manager.set(active=[0])
        self.boot(self.flavors[2], state='ERROR')
        self.assertIn('another server has a card of it',
                      self.stdlog.logger.output)

    def test_failed_links(self):
        # Module 3 is in the partitions 0, 1, 3 and 9.
        servers = [self.boot(self.flavors[2])
                   for _pair in range(4)]
        for server in servers:
            self._delete_server(server)
        self.fabric.manager.set(links={3: 17})
        for _round in range(2):
            self._run_periodics()
        fault = self.boot(self.flavors[8], state='ERROR')['fault']
        self.assertIn('links of some devices have failed', fault['message'])
        servers = [self.boot(self.flavors[2]) for _pair in range(3)]
        self.boot(self.flavors[2], state='ERROR')
        servers += [self.boot(self.flavors[1]) for _single in range(2)]
        self.assertActive(*servers)
        self.assertEqual(
            {f'compute1_accel_{fabric.MODULES[3]}'},
            {name for name, provider in self.providers().items()
             if device_traits.FAULTY in self._get_provider_traits(
                 provider['uuid'])})

    def test_server_keeps_a_partition_with_failed_links(self):
        server = self.boot(self.flavors[8])
        self.fabric.manager.set(links={3: 17})
        self._run_periodics()
        self.reboot(server)
        self.assertActive(server)


class ForgetfulTest(FabricCase):
    """The fabric manager forgets all when it restarts."""

    def test_restart_of_the_manager(self):
        server = self.boot(self.flavors[4])
        self.fabric.manager.restart()
        self._run_periodics()
        self.assertIn('has forgotten it. Reboot the server',
                      self.stdlog.logger.output)
        self.reboot(server)
        self.assertActive(server)


class RestoredTest(FabricCase):
    """The fabric manager is told what was active before its restart."""

    RESTART_MODE = True

    def test_restart_of_the_manager(self):
        servers = [self.boot(self.flavors[count]) for count in (2, 4)]
        self._stop_server(servers[0])
        self.fabric.manager.restart()
        self._run_periodics()
        self.assertActive(servers[1])
        self._start_server(servers[0])
        self.assertActive(*servers)

    def test_restart_before_a_boot(self):
        server = self.boot(self.flavors[4])
        self.fabric.manager.restart()
        self.assertActive(server, self.boot(self.flavors[4]))

    def test_restart_right_before_an_activation(self):
        server = self.boot(self.flavors[4])
        prepare = preparation.Preparation.prepare

        def restarted(*args):
            self.fabric.manager.restart()
            prepare(*args)

        self.useFixture(fixtures.MockPatchObject(
            preparation.Preparation, 'prepare', restarted))
        self.assertActive(server, self.boot(self.flavors[4]))

    def test_restart_with_nova_compute(self):
        server = self.boot(self.flavors[4])
        self.fabric.manager.restart()
        self.restart_compute_service('compute1')
        self._run_periodics()
        self.assertActive(server)

# SPDX-License-Identifier: Apache-2.0
"""The audit, which reports where sysfs, Placement and libvirt disagree."""

import contextlib
import io
import re
import time
from unittest import mock

import fixtures
from nova.cmd import manage
import nova.conf
from nova.tests.functional.api import client

from nova_accel.core import errors
from nova_accel.core.placement import providers
from tests.functional import cloud

CONF = nova.conf.CONF

PROVIDER = 'compute1_accel_0000:43:00.0'

#: A UUID that no server and no migration has.
NOBODY = '5e5d6d0f-5c5d-4a5a-9e0e-0a3d5b1c2d3e'


class Audited(cloud.Cloud):
    """Base of test cases with one GPU on compute1 that can be removed.

    :cvar entries: entries of device_spec
    """

    entries = [cloud.GPU_SPEC[:-1] + ', "address": "0000:43:00.0"}']

    def setUp(self):
        super().setUp()
        self.flags(check_interval=1, device_spec=self.entries,
                   group='nova_accel')
        self.skip_time()
        self.machine = self.directory_host()
        self.start_compute('compute1')
        self.gpu_profile('gpu')
        self.gpu = self.flavor('gpu')

    def skip_time(self):
        """Replace the clock, so that ``look`` can make an audit due."""
        self.ahead, now = 0, time.monotonic
        self.useFixture(fixtures.MonkeyPatch(
            'time.monotonic', lambda: now() + self.ahead))

    def look(self):
        self.ahead += 2
        self._run_periodics()

    def found(self):
        """Return the findings of ``nova-accel host check``.

        Check that nova-compute logs the same findings.
        """
        self.look()
        self.look()
        findings = self.disagreements()
        self.assertCountEqual(findings, self.said())
        return findings

    def said(self):
        """Return the unresolved findings in the log; check for duplicates."""
        said = []
        for level, line in re.findall(
                r'(WARNING|INFO) \[nova_accel\.compute\.reporting\.audit\] '
                r'(.*)',
                self.stdlog.logger.output):
            if level == 'WARNING':
                self.assertNotIn(line, said)
                said.append(line)
            else:
                said.remove(line.removeprefix('Resolved: '))
        return said

    def state(self, name=PROVIDER):
        """Return a provider's total, reserved units and reason traits."""
        provider = self._providers('compute1')[name]['uuid']
        [inventory] = self._get_provider_inventory(provider).values()
        return (inventory['total'], inventory['reserved'],
                {trait for trait in self._get_provider_traits(provider)
                 if trait in providers.REASONS})

    def allocations(self, consumer):
        """Return a consumer's allocations in the format of a PUT request."""
        return self.placement.get(f'/allocations/{consumer}',
                                  version='1.28').body

    def allocate(self, consumer, allocations):
        self.assertEqual(204, self.placement.put(
            f'/allocations/{consumer}',
            {**allocations, 'consumer_generation': None},
            version='1.28').status)

    def leave_to(self, consumer, server):
        """Delete a server, and give its allocations to another consumer."""
        left = self.allocations(server['id'])
        self._delete_server(server)
        self.allocate(consumer, left)

    def define(self, server, host='compute1', **changes):
        """Define a copy of a server's domain of compute1.

        :param changes: pairs of a text and its replacement in the XML
        """
        xml = self.domain(server).defined_xml
        for before, after in changes.values():
            self.assertIn(before, xml)
            xml = xml.replace(before, after)
        return self.connection(host).defineXML(xml)


class DisputedTest(Audited):

    def test_consistent_host_has_no_findings(self):
        server = self.boot(self.gpu)
        self.assertEqual([], self.found())
        self._stop_server(server)
        self.assertEqual([], self.found())
        self._delete_server(server)
        self.assertEqual([], self.found())
        self.assertEqual((1, 0, set()), self.state())

    def test_held_device_without_allocation_is_withheld(self):
        server = self.boot(self.gpu)
        held = self.hostdevs(server)
        self.placement.delete(f'/allocations/{server["id"]}')
        [finding] = self.found()
        self.assertIn(f'resource provider {PROVIDER}: 1 of its units is '
                      f'held, 0 are allocated: {server["id"]} should not '
                      'have it; ', finding)
        self.assertEqual((1, 1, {providers.DISPUTED}), self.state())
        # The server keeps the device, and no other server gets it.
        other = self.boot(self.gpu, state='ERROR')
        self.assertIn('No valid host', other['fault']['message'])
        self.assertEqual(held, self.hostdevs(server))
        # Apply the remedy of the finding.
        self.assertIn('shelve and unshelve it', finding)
        self._shelve_server(server)
        self.look()
        self.assertEqual((1, 0, set()), self.state())
        self._unshelve_server(server)
        self.assertEqual([], self.found())
        self.assertEqual({PROVIDER: {cloud.GPU: 1}}, self.allocated(server))

    def test_disputed_until_the_server_is_deleted(self):
        server = self.boot(self.gpu)
        self.placement.delete(f'/allocations/{server["id"]}')
        self.assertEqual(1, len(self.found()))
        self._delete_server(server)
        self.assertEqual([], self.found())
        self.assertEqual((1, 0, set()), self.state())
        self.boot(self.gpu)

    def test_finding_is_reported_again_after_restart(self):
        server = self.boot(self.gpu)
        self.placement.delete(f'/allocations/{server["id"]}')
        self.restart_compute_service('compute1')
        self.assertEqual((1, 1, {providers.DISPUTED}), self.state())
        self.assertEqual([PROVIDER], [*self.providers()])

    def test_no_audit_when_check_interval_is_0(self):
        self.flags(check_interval=0, group='nova_accel')
        server = self.boot(self.gpu)
        self.placement.delete(f'/allocations/{server["id"]}')
        self.look()
        self.assertEqual([], self.said())
        self.assertEqual((1, 0, set()), self.state())

    def test_leftover_of_a_failed_move(self):
        server = self.boot(self.gpu)
        self.start_compute('compute2')
        self.define(server, 'compute2')
        self.look()
        [line] = self.said()
        self.assertIn('resource provider compute2_accel_0000:43:00.0', line)
        self.assertIn('if the server is on another host, or '
                      'deleted, undefine its domain here', line)
        self.boot(self.gpu, state='ERROR')
        [leftover] = self.held_by_domain('compute2')
        self.domain({'id': leftover}, 'compute2').undefine()
        self.look()
        self.assertEqual([], self.said())
        self.assertEqual('compute2', self.boot(self.gpu)[
            'OS-EXT-SRV-ATTR:host'])

    def test_allocations_that_a_move_left(self):
        """The audit deletes a migration's allocations that Nova left.

        Nova leaves them when a server is deleted while it moves.
        """
        self.start_compute('compute2')
        server = self.boot(self.gpu, host='compute1')
        address = set(self.hostdevs(server))
        self._migrate_server(server)
        [migration] = self.api.api_get(
            f'/os-migrations?instance_uuid={server["id"]}').body['migrations']
        left = self.allocations(migration['uuid'])
        self.flags(host='compute1')
        self._delete_server(server)
        self.allocate(migration['uuid'], left)
        [held] = [name for name in self.providers()
                  if name.removeprefix('compute1_accel_') in address]
        provider = self.providers()[held]['uuid']
        self.assertEqual({cloud.GPU: 1}, self._get_provider_usages(provider))
        self.look()
        self.assertEqual({cloud.GPU: 0}, self._get_provider_usages(provider))

    def test_domain_that_nova_does_not_know(self):
        server = self.boot(self.gpu)
        twin = '0a6f4c7e-4a86-4f5e-8f0f-1d3fb0c4d2a1'
        self.define(server, uuid=(server['id'], twin),
                    name=('instance-', 'twin-'))
        self.assertEqual([
            'device 0000:43:00.0: is in the definitions of '
            f'{" and ".join(sorted([twin, server["id"]]))}; delete or move '
            'all of them but one; they cannot run at the same time'],
            self.found())
        # The device has an allocation, so no unit is withheld.
        self.assertEqual((1, 0, set()), self.state())
        self._delete_server(server)
        [finding] = self.found()
        self.assertIn(f'{twin} should not have it', finding)
        self.assertEqual((1, 1, {providers.DISPUTED}), self.state())

    def test_allocation_without_held_device(self):
        server = self.boot(self.gpu)
        self.assertEqual([], self.found())
        domain = self.domain(server)
        domain.destroy()
        domain.undefine()
        self.look()
        # An operation in progress looks the same, so one audit is not enough.
        self.assertEqual([], self.said())
        [finding] = self.found()
        self.assertIn(f'resource provider {PROVIDER}: 1 of its units is '
                      f'allocated, 0 are held: {server["id"]} should have '
                      'it', finding)
        self.assertEqual((1, 0, set()), self.state())
        self.assertIn('hard reboot the server', finding)
        self._reboot_server(server, hard=True)
        self.assertEqual([], self.found())


    def test_missing_device_with_an_unknown_consumer(self):
        """The command in the remedy also removes the class's allocation."""
        self.leave_to(NOBODY, self.boot(self.gpu))
        (self.machine / 'sys/bus/pci/devices/0000:43:00.0').unlink()
        [command] = [match[1] for finding in self.disagreements() if (
            match := re.search('allocation unset (.*) <server>', finding))]
        left = self.allocations(NOBODY)['allocations']
        for provider in re.findall(r'--provider (\S+)', command):
            left.pop(provider)
        self.assertEqual([self.compute_rp_uuids['compute1']], list(left))

    def test_failed_audit_is_repeated_in_the_next_round(self):
        server = self.boot(self.gpu)
        self.placement.delete(f'/allocations/{server["id"]}')
        self.flags(check_interval=600, group='nova_accel')
        with fixtures.MonkeyPatch(
                'nova_accel.compute.state.placement.'
                'PlacementClient.allocations_of_provider',
                mock.Mock(side_effect=errors.AccelError('Placement', 'no'))):
            self.restart_compute_service('compute1')
        self.look()
        self.assertEqual((1, 1, {providers.DISPUTED}), self.state())


class NovaManageTest(Audited):
    """``nova-manage placement`` with nova_accel's resource providers."""

    def manage(self, command, *args, **kwargs):
        """Return the exit code and the output of a command."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = getattr(manage.PlacementCommands(), command)(
                *args, verbose=True, **kwargs)
        return code, printed.getvalue()

    def ours(self):
        """Return the UUIDs of nova_accel's resource providers."""
        return {provider['uuid']
                for provider in self._providers('compute1').values()}

    def test_audit_of_an_unknown_consumer(self):
        self.leave_to(NOBODY, self.boot(self.gpu))
        code, printed = self.manage('audit', delete=True)
        self.assertEqual(4, code)
        self.assertIn(f'Deleted allocations for consumer UUID {NOBODY} on '
                      f'Resource Provider {self.compute_rp_uuids["compute1"]}',
                      printed)
        self.assertEqual(self.ours(),
                         set(self.allocations(NOBODY)['allocations']))
        self.boot(self.gpu, state='ERROR')
        # A server that is being scheduled looks the same, so the audit waits.
        self.look()
        self.look()
        self.assertEqual([], self.said())
        self.ahead += CONF.long_rpc_timeout
        self.look()
        [line] = self.said()
        self.assertIn(
            f'consumer {NOBODY}: has allocations of {PROVIDER}, '
            f'compute1_accel_{cloud.GPU}, and no server and no migration of '
            'this cell has this uuid; ', line)
        self.assertIn('"openstack resource provider allocation delete '
                      f'{NOBODY}"', line)
        self.look()
        self.assertEqual([line], self.said())
        # Do what the command in the remedy does.
        self.placement.delete(f'/allocations/{NOBODY}')
        self.look()
        self.assertEqual([], self.said())
        self.boot(self.gpu)

    def test_audit_of_a_deleted_server(self):
        server = self.boot(self.gpu)
        self.leave_to(server['id'], server)
        self.assertEqual(4, self.manage('audit', delete=True)[0])
        self.assertEqual(self.ours(),
                         set(self.allocations(server['id'])['allocations']))
        self.look()
        self.assertEqual({}, self.allocations(server['id'])['allocations'])
        self.boot(self.gpu)

    def test_heal_allocations(self):
        plain, server = self.boot(self.flavor()), self.boot(self.gpu)
        for instance in (plain, server):
            self.placement.delete(f'/allocations/{instance["id"]}')
        # Nova allocates the class from the compute node's own provider.
        self.assertEqual(3, self.heal(server))
        self.assertEqual(0, self.heal(plain))
        self.assertEqual([self.compute_rp_uuids['compute1']],
                         list(self.allocations(plain['id'])['allocations']))
        # The reboot comes before an audit, which would withhold the device.
        self._reboot_server(server, hard=True)
        self.assertEqual({PROVIDER: {cloud.GPU: 1}}, self.allocated(server))

    def heal(self, server):
        code, _printed = self.manage('heal_allocations',
                                     instance_uuid=server['id'])
        return code


class PoolTest(Audited):

    entries = ['{"vendor_id": "8086", "product_id": "37c9", '
               '"resource_class": "CUSTOM_QAT"}']

    def directory_host(self):
        return super().directory_host(cloud.A100)

    def test_held_device_of_a_removed_entry_is_reported(self):
        self.write_profile('vf', groups=[{'resources': {'CUSTOM_QAT': 1}}])
        [address] = self.hostdevs(self.boot(self.flavor('vf')))
        other = {'0': '1', '1': '0'}[address[-1]]
        self.flags(device_spec=[
            f'{{"address": "{address[:-1]}{other}", '
            '"resource_class": "CUSTOM_QAT"}'], group='nova_accel')
        self.restart_compute_service('compute1')
        [finding] = self.found()
        self.assertIn('no entry names it any more', finding)

    def test_other_vfs_of_a_disputed_pool_are_offered(self):
        self.write_profile('vf', groups=[{'resources': {'CUSTOM_QAT': 1}}])
        vf = self.flavor('vf')
        server = self.boot(vf)
        self.placement.delete(f'/allocations/{server["id"]}')
        self.assertEqual(1, len(self.found()))
        self.assertEqual((2, 1, {providers.DISPUTED}),
                         self.state('compute1_accel_0000:85:00.0'))
        self.boot(vf)
        self.boot(vf, state='ERROR')
        self.assertEqual([1, 1], [*map(len, self.held().values())])


class GoneTest(Audited):

    # Two GPUs, and the slot to which a test moves one of them.
    entries = [cloud.GPU_SPEC[:-1] + ', "address": {"bus": "4[34a]"}}']

    def setUp(self):
        super().setUp()
        self.server = self.boot(self.gpu)
        [self.address] = self.hostdevs(self.server)
        self.name = f'compute1_accel_{self.address}'

    def sysfs(self, address):
        return self.machine / 'sys/bus/pci/devices' / address

    def take_away(self):
        self.sysfs(self.address).unlink()
        [finding] = self.found()
        self.assertEqual(
            f'device {self.address} of server {self.server["id"]}: is not '
            'there any more; put the card back where it was, or move the '
            'server: it cannot be started here', finding)

    def move(self, to='0000:4a:00.0'):
        """Move the card to another slot, as with a host that is off."""
        link = self.sysfs(self.address)
        place = link.resolve()
        # The base class replaces os.rename with a mock.
        place.replace(place.with_name(to))
        self.sysfs(to).symlink_to(link.readlink().with_name(to))
        link.unlink()

    def settle(self):
        self.assertEqual([], self.found())
        self.assertNotIn(self.name, self.providers())

    def test_device_that_disappears(self):
        self.take_away()
        self.assertEqual((1, 1, {providers.MISSING}), self.state(self.name))
        # Servers can still use the other device.
        other = self.boot(self.gpu)
        self.assertEqual(2, len(self.providers()))
        self._stop_server(self.server)
        self._delete_server(self.server)
        self.settle()
        self.assertEqual(1, len(self.hostdevs(other)))

    def test_last_device_of_its_class_that_disappears(self):
        for path in self.sysfs(self.address).parent.iterdir():
            path.unlink()
        self.assertEqual(1, len(self.found()))
        self.assertEqual((1, 1, {providers.MISSING}), self.state(self.name))
        self.assertEqual((2, 2, {providers.MISSING}),
                         self.state(f'compute1_accel_{cloud.GPU}'))
        self._delete_server(self.server)
        self.settle()
        self.assertEqual({}, self._providers('compute1'))

    def test_device_that_comes_back(self):
        place = self.sysfs(self.address).readlink()
        self.take_away()
        self.sysfs(self.address).symlink_to(place)
        self.assertEqual([], self.found())
        self.assertEqual((1, 0, set()), self.state(self.name))

    def test_cold_migration_away_from_a_missing_device(self):
        self.flags(sysfs_root=str(cloud.EIGHT_GPUS), group='nova_accel')
        self.start_compute('compute2')
        self.take_away()
        self._migrate_server(self.server)
        # The computes share CONF.host. The driver compares it with the host
        # to clean up.
        self.flags(host='compute1')
        self._confirm_resize(self.server)
        self.assertEqual(1, len(self.hostdevs(self.server, 'compute2')))
        self.settle()

    def test_resize_away_from_a_missing_device(self):
        self.flags(allow_resize_to_same_host=True)
        self.take_away()
        self._resize_server(self.server, self.flavor())
        self._confirm_resize(self.server)
        self.assertEqual({}, self.hostdevs(self.server))
        self.settle()

    def test_card_that_moved(self):
        self.move()
        self.restart_compute_service('compute1')
        self.assertEqual(1, len(self.found()))
        self.assertEqual((1, 1, {providers.MISSING}), self.state(self.name))
        self.assertEqual((1, 0, set()),
                         self.state('compute1_accel_0000:4a:00.0'))
        self._delete_server(self.server)
        self.settle()

    def test_server_whose_card_moved_cannot_be_started(self):
        self._stop_server(self.server)
        self.move()
        self.restart_compute_service('compute1')
        # The services share one process, so the error is also raised here.
        self.assertRaises(client.OpenStackApiException, self._start_server,
                          self.server)
        event = self._wait_for_instance_action_event(
            self.server, 'start', 'compute_start_instance', 'Error')
        self.assertIn('device …: is not there any more', event['details'])
        self.assertEqual('SHUTOFF', self.api.get_server(
            self.server['id'])['status'])
        self._delete_server(self.server)
        self.settle()

# SPDX-License-Identifier: Apache-2.0
"""Crashes of nova-compute before each of its effects, and a restart.

Afterwards no device is lost, no device has two servers, and each server can be
deleted.
"""

import itertools

from tests.functional import cloud
from tests.functional import faults


class Crash(faults.MortalCloud):
    """Base of test cases with hosts of two devices each.

    A server has both devices of its host.
    """

    HOSTS = ('compute1',)
    DEVICE_SPEC = (cloud.migratable(cloud.PAIR_SPEC),)

    PATIENCE = 5

    #: Whether to count equal effects in a row separately.
    EVERY = False

    def setUp(self):
        super().setUp()
        for host in self.HOSTS:
            self.start_compute(host)
        self.gpu_profile('pair', count=2)
        self.pair = self.flavor('pair')

    def die_at_each_step(self, *operations, victim='compute1'):
        """Kill the victim before its first effect, its second, and so on.

        :param operations: operations on a server, beginning with its boot;
            the victim dies in the last one
        :param victim: host of the nova-compute to kill
        """
        problems = []
        for nth in itertools.count(1):
            fault = faults.Fault(victim, nth, self.EVERY)
            server = self.live(fault, *operations)
            if not fault.struck:
                break
            problems += self.aftermath(fault, server)
        self.assertNotEqual('ERROR', self.find(server, 'status'),
                            'the server failed without a crash')
        self.delete(server)
        self.assertEqual(len(self.HOSTS), len(self.fill()))
        self.assertNotEqual(1, nth, 'nova-compute had no effect')
        self.assertEqual('', '\n'.join(problems))

    def live(self, fault, *operations):
        """Perform operations on a server, with a fault in the last one.

        Restart the nova-compute that died, and return the server.
        """
        *before, last = operations
        server = None
        for operation in before:
            server = operation(server)
            self.processes.settle()
        self.processes.fault = fault
        server = last(server)
        self.processes.settle()
        self.processes.fault = None
        if fault.struck:
            self.kill(fault.host)
            self.restart_compute_service(fault.host)
            self.processes.settle()
            self.run_periodic_tasks()
        return server

    def boot_here(self, _none):
        return self.request(host='compute1')

    def doing(self, **action):
        """Return an operation that requests an action of a server."""
        def do(server):
            self.api.post_server_action(server['id'], action)
            return server
        return do

    def deleting(self, server):
        self.api.delete_server(server['id'])
        return server

    # Checks afterwards

    def aftermath(self, fault, server):
        """Return the problems after a crash, and delete all servers."""
        problems = [*self.short(server), *self.shared()]
        others = self.fill()
        problems += self.shared()
        self.delete(server, *others)
        self.run_periodic_tasks()
        problems += [*self.stuck(server, *others), *self.lost()]
        if problems:
            self.heal()
        return [f'{fault}: {problem}' for problem in problems]

    def short(self, server):
        """Yield the problems of a server that runs without all its devices.

        Reboot it, too. If the server was interrupted, first set its state to
        active, as an administrator does. Nova may refuse the reboot, but the
        server must not run without its devices.
        """
        status = self.find(server, 'status')
        host = self.find(server, 'OS-EXT-SRV-ATTR:host')
        here = host and self.held(host)
        if status == 'ACTIVE' and here and self.running_short(server, host):
            yield 'runs without devices'
        settled = status in ('ACTIVE', 'SHUTOFF', 'SUSPENDED')
        if host and not settled and status != 'VERIFY_RESIZE':
            self.act(server, {'os-resetState': {'state': 'active'}})
        if not self.act(server, {'reboot': {'type': 'HARD'}}):
            return
        now = self.find(server, 'status')
        if now == 'ACTIVE' and self.running_short(server, host):
            yield f'was {status}, and runs without devices after a reboot'
        if now == 'ERROR' and here and settled:
            yield f'was {status}, and its reboot failed: ' + self.find(
                server, 'fault')['message']

    def running_short(self, server, host):
        return len(self.attached(server, host)) != 2

    def shared(self):
        for host in self.HOSTS:
            for address, holders in self.held(host).items():
                if len(holders) > 1:
                    yield f'{address} of {host} is held by {holders}'

    def stuck(self, *servers):
        for server in servers:
            if status := self.find(server, 'status'):
                yield f'cannot be deleted: {status}'

    def lost(self):
        """Yield devices that are still held, used or reserved."""
        for host in self.HOSTS:
            if held := self.held(host):
                yield f'definitions of {host} hold {held}'
            for name, provider in self._providers(host).items():
                used = self._get_provider_usages(provider['uuid'])
                records = self._get_provider_inventory(provider['uuid'])
                if any(used.values()) or any(
                        record['reserved'] for record in records.values()):
                    yield f'{name} has {records}, of which {used} is used'

    # Actions

    def request(self, **more):
        return self.api.post_server({'server': self._build_server(
            image_uuid=cloud.IMAGE, flavor_id=self.pair, networks='none',
            **more)})

    def fill(self):
        """Request as many servers as fit, and return those that run."""
        servers = [self.request() for _host in self.HOSTS]
        self.processes.settle()
        running = [server for server in servers
                   if self.find(server, 'status') == 'ACTIVE']
        self.delete(*(server for server in servers if server not in running))
        return running

    def heal(self):
        """Remove all domains and allocations after a problem."""
        for host in self.computes:
            for domain in list(self.connection(host)._vms.values()):
                domain.destroy()
                domain.undefine()
            for provider in self.providers(host).values():
                for consumer in self._get_allocations_by_provider_uuid(
                        provider['uuid']):
                    self.placement.delete(f'/allocations/{consumer}')


class CrashTest(Crash):

    def test_spawn(self):
        self.die_at_each_step(self.boot_here)

    def test_destroy(self):
        self.die_at_each_step(self.boot_here, self.deleting)

    def test_hard_reboot(self):
        self.die_at_each_step(self.boot_here,
                              self.doing(reboot={'type': 'HARD'}))

    def test_rebuild(self):
        self.die_at_each_step(self.boot_here,
                              self.doing(rebuild={'imageRef': cloud.IMAGE}))

    def test_suspend(self):
        self.die_at_each_step(self.boot_here, self.doing(suspend=None))

    def test_resume(self):
        self.die_at_each_step(self.boot_here, self.doing(suspend=None),
                              self.doing(resume=None))


class MoveCrashTest(Crash):

    HOSTS = ('compute1', 'compute2')

    def setUp(self):
        super().setUp()
        self.away = self.boot_here, self.doing(migrate=None)
        self.confirmed = *self.away, self.doing(confirmResize=None)
        self.reverted = *self.away, self.doing(revertResize=None)
        self.live_migrated = self.boot_here, self.doing(**{
            'os-migrateLive': {'host': None, 'block_migration': 'auto'}})

    def test_migrate_source(self):
        self.die_at_each_step(*self.away)

    def test_migrate_destination(self):
        self.die_at_each_step(*self.away, victim='compute2')

    def test_confirm(self):
        self.die_at_each_step(*self.confirmed)

    def test_revert_source(self):
        self.die_at_each_step(*self.reverted)

    def test_revert_destination(self):
        self.die_at_each_step(*self.reverted, victim='compute2')

    def test_live_migrate_source(self):
        self.die_at_each_step(*self.live_migrated)

    def test_live_migrate_destination(self):
        self.die_at_each_step(*self.live_migrated, victim='compute2')


class EveryCrashTest(CrashTest):
    EVERY = True


class EveryMoveCrashTest(MoveCrashTest):
    EVERY = True

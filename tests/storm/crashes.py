# SPDX-License-Identifier: Apache-2.0
"""A storm in which nova-computes are killed in the middle of operations.

A server keeps its devices. Servers in ERROR, and those that Nova leaves in
the middle of a resize, are not checked.
"""

import collections

from nova_accel.core import held_devices
from tests.functional import faults
from tests.storm import storm

#: Operations that keep the devices of a server.
KEEPING = frozenset({'reboot', 'rebuild', 'resume', 'start', 'stop',
                     'suspend'})
#: Operations after which a server can have devices on two hosts.
MOVES = frozenset({'confirm', 'live', 'migrate', 'resize', 'revert'})


class CrashStorm(storm.Storm):
    """A storm with crashes of nova-compute."""

    #: Seconds to wait for an answer of a killed nova-compute.
    PATIENCE = 20

    # Steps

    def _restart(self):
        host = self._random.choice(storm.HOSTS)
        self._log.write(f'nova-compute of {host} dies')
        self._kill_and_start(host)

    def _kill_and_start(self, host):
        self.kill(host)
        self._start_again(host)
        self.run_periodic_tasks()

    def _die_amid(self):
        """Kill a nova-compute in the middle of an operation."""
        operation, host = self._one()
        had = self._by_server()[operation.server]
        fault = faults.Fault(host, self._random.randint(1, 6))
        self.processes.fault = fault
        self._do([operation])
        self.processes.fault = None
        if not fault.struck:
            self._clear_sources([operation])
            return
        self._log.write(f'{fault}')
        self._kill_and_start(host)
        self._look_after(operation)
        if had and operation.name in KEEPING:
            self._check_kept(operation.server, had)

    def _check_kept(self, uuid, had):
        """Check that a server has its devices at least after a reboot."""
        if uuid in self._servers() and self._by_server()[uuid] != had:
            self._do([self._act('reboot', self._servers()[uuid])])
            if (has := self._by_server()[uuid]) != had:
                raise storm.Violation(f'{uuid} had {sorted(had)}, and has '
                                      f'{sorted(has)} after a crash')

    def _one(self) -> tuple[storm.Operation, str]:
        """Choose an operation, and a host that usually is involved in it."""
        host = self._random.choice(storm.HOSTS)
        servers = sorted((server for server in self._servers().values()
                          if server['OS-EXT-SRV-ATTR:host']),
                         key=lambda server: server['created'])
        if not servers or self._random.random() < 0.2:
            return self._boot(self._random.choice(
                list(filter(None, self.PROFILES)))), host
        server = self._random.choice(servers)
        operation = self._something(server)
        if operation.name not in MOVES or self._random.random() < 0.5:
            host = server['OS-EXT-SRV-ATTR:host']
        return operation, host

    def _look_after(self, operation):
        """Delete a server that a crash left in an interrupted state.

        Also delete a server whose deletion was interrupted. Nova forgets the
        deletion if it had to confirm a resize first.
        """
        server = self._servers().get(operation.server)
        if server and (operation.name in MOVES | {'delete'}
                       or server['OS-EXT-STS:task_state']
                       or server['status'] not in storm.CHOICES):
            self._do([self._delete(server)])
            self.run_periodic_tasks()

    def _do(self, operations):
        before = self._by_server()
        self._failed = {uuid for uuid, server in self._servers().items()
                        if server['status'] == 'ERROR'}
        super()._do(operations)
        if self.processes.fault:
            return
        self._clear_sources(operations)
        after, servers = self._by_server(), self._servers()
        for operation in operations:
            server = servers.get(operation.server)
            if (not server or operation.name not in KEEPING
                    or self._is_broken(server)):
                continue
            had, has = before[server['id']], after[server['id']]
            if had != has and had:
                raise storm.Violation(f'{server["id"]} had {sorted(had)}, '
                                      f'and has {sorted(has)}')

    def _clear_sources(self, operations):
        """Remove the domains and allocations that Nova leaves behind.

        A server is in ERROR if it failed to start on the destination of a
        resize. Nova then deletes it on the destination only.
        """
        servers = self._servers()
        for operation in operations:
            uuid = operation.server
            if uuid in servers or uuid not in self._failed:
                continue
            for host in storm.HOSTS:
                for domain in list(self.connection(host)._vms.values()):
                    if domain.UUIDString() == uuid:
                        self._log.write(f'{uuid} is undefined on {host}')
                        domain.undefine()
            for migration in self._migrations(uuid):
                self.placement.delete(f'/allocations/{migration["uuid"]}')
            self.run_periodic_tasks()

    def _migrations(self, uuid):
        return self.api.api_get(
            f'/os-migrations?instance_uuid={uuid}').body['migrations']

    def _by_server(self):
        found = collections.defaultdict(set)
        for place, uuid in self._held().items():
            found[uuid].add(place)
        return found

    # Checks

    def _rightly_held(self, server, held):
        uuid = server['id']
        if not self._is_broken(server):
            return super()._rightly_held(server, held)
        # Nova can leave its devices on two hosts.
        return {place: uuid for place, holder in held.items()
                if holder == uuid}

    def _check_promises(self, rightly):
        """Check that each server holds as many units as it has allocated."""
        held = collections.Counter()
        for host in storm.HOSTS:
            for _uuid, device in held_devices.each(self.held_by_domain(host)):
                held[device.provider,
                     rightly[host, str(device.address)]] += 1
        promised = collections.Counter()
        for host in storm.HOSTS:
            for provider in self.providers(host).values():
                for consumer, allocation in (
                        self._get_allocations_by_provider_uuid(
                            provider['uuid']).items()):
                    promised[provider['uuid'], consumer] += sum(
                        allocation['resources'].values())
        broken = self._broken_consumers()
        for counter in held, promised:
            for key in [key for key in counter if key[1] in broken]:
                del counter[key]
        wrong = [key for key in sorted(held.keys() | promised.keys())
                 if held[key] != promised[key]]
        if wrong:
            names = {provider['uuid']: name for host in storm.HOSTS
                     for name, provider in self._providers(host).items()}
            raise storm.Violation('\n'.join(
                f'{consumer} holds {held[provider, consumer]} of '
                f'{names.get(provider, provider)}, and has allocations of '
                f'{promised[provider, consumer]}'
                for provider, consumer in wrong))

    def _is_broken(self, server):
        """Whether a server is in ERROR, or left in the middle of a resize.

        If a server fails to start on the destination of a resize, Nova gives
        it its old flavor back, but not its old allocations
        (``ComputeManager.finish_resize``). If no host is found, Nova gives it
        both back. If a server in ERROR is rebooted before its resize is
        confirmed, Nova can neither confirm nor revert the resize.
        """
        return server['status'] == 'ERROR' or any(
            migration['status'] == 'error' and migration['dest_compute']
            and migration['migration_type'] == 'resize'
            or migration['status'] == 'finished'
            and server['status'] != 'VERIFY_RESIZE'
            for migration in self._migrations(server['id']))

    def _broken_consumers(self):
        """Return the broken servers and their migrations."""
        broken = {uuid for uuid, server in self._servers().items()
                  if self._is_broken(server)}
        return broken.union(*(
            {migration['uuid'] for migration in self._migrations(uuid)}
            for uuid in broken))

# SPDX-License-Identifier: Apache-2.0
"""A storm: random operations on servers, on four hosts with eight devices.

After each step each device is in at most one domain, the allocations are the
same devices as the hostdevs, and each server has all its devices.
"""

import collections
import collections.abc
import dataclasses
import random
import threading

from nova.tests.functional.api import client

from tests.functional import cloud
from tests.functional import faults

HOSTS = ('compute1', 'compute2', 'compute3', 'compute4')

#: Operations on a server by its status. An operation that is here twice is
#: chosen twice as often.
CHOICES = {
    'ACTIVE': ('delete', 'delete', 'resize', 'resize', 'migrate', 'shelve',
               'live', 'live', 'rebuild', 'reboot', 'stop', 'suspend'),
    'SHUTOFF': ('delete', 'start', 'start', 'resize', 'migrate', 'shelve',
                'rebuild', 'reboot'),
    'VERIFY_RESIZE': ('confirm', 'confirm', 'revert', 'revert', 'delete'),
    'SUSPENDED': ('resume', 'resume', 'delete', 'reboot', 'shelve'),
    'SHELVED_OFFLOADED': ('unshelve', 'unshelve', 'delete'),
    'ERROR': ('delete', 'reboot'),
}

ACTIONS = {
    'confirm': {'confirmResize': None},
    'evacuate': {'evacuate': {}},
    'live': {'os-migrateLive': {'host': None, 'block_migration': 'auto'}},
    'migrate': {'migrate': None},
    'reboot': {'reboot': {'type': 'HARD'}},
    'rebuild': {'rebuild': {'imageRef': cloud.IMAGE}},
    'resume': {'resume': None},
    'revert': {'revertResize': None},
    'shelve': {'shelve': None},
    'start': {'os-start': None},
    'stop': {'os-stop': None},
    'suspend': {'suspend': None},
    'unshelve': {'unshelve': None},
}


class Violation(Exception):
    """Raised when the state after a step is wrong."""


@dataclasses.dataclass
class Log:
    """A log of operations, and their numbers by name and outcome."""

    step: int = 0
    lines: list[str] = dataclasses.field(default_factory=list)
    counts: dict[str, collections.Counter] = dataclasses.field(
        default_factory=dict)

    def write(self, line):
        self.lines.append(f'{self.step}: {line}')

    def count(self, name, outcome):
        self.counts.setdefault(name, collections.Counter())[outcome] += 1


@dataclasses.dataclass
class Operation:
    """An operation on a server.

    :param name: name of the operation
    :param call: function that performs it
    :param server: UUID of the server, if it exists already
    :param words: details for the log
    :param refused: status code of the response, if nova-api refuses it
    """

    name: str
    call: collections.abc.Callable[[], dict | None]
    server: str | None = None
    words: str = ''
    refused: str = ''

    def perform(self):
        try:
            answer = self.call()
        except client.OpenStackApiException as error:
            self.refused = str(error.response.status_code)
        else:
            self.server = self.server or (answer or {}).get('id')


class Storm(faults.MortalCloud):
    """A storm of random operations on four hosts."""

    DEVICE_SPEC = (cloud.migratable(cloud.GPU_SPEC),)

    #: Number of devices by profile.
    PROFILES = {'': 0, 'one': 1, 'two': 2, 'three': 3}
    #: Numbers of concurrent operations, to choose from.
    AT_ONCE = (1, 1, 2, 3, 4)

    def setUp(self):
        super().setUp()
        # The shortlist of a server has two of the four hosts, so that hosts
        # are ranked at each boot.
        self.flags(shortlist_size=1, group='nova_accel')
        for host in HOSTS:
            self.start_compute(host)
        for profile, count in self.PROFILES.items():
            if count:
                self._write_profile(profile, count)
        self._flavors = {profile: self.flavor(profile)
                         for profile in self.PROFILES}
        # Number of devices that a server in VERIFY_RESIZE has on its source.
        self._before: dict[str, int] = {}

    def _write_profile(self, name, count):
        self.gpu_profile(name, count, numa='preferred')

    def blow(self, seed: int, steps: int, log: Log):
        """Perform the steps of a seed.

        :raises Violation: after the first step with a wrong state
        """
        self._random = random.Random(seed)
        self._log = log
        for log.step in range(1, steps + 1):
            self._step()
            self._check()
        self._clear()

    # Operations

    def _step(self):
        if self._random.random() < 0.04:
            self._lose_a_host()
        else:
            self._do(self._several())

    def _several(self) -> list[Operation]:
        """Choose concurrent operations, each on a different server."""
        servers = sorted(self._servers().values(),
                         key=lambda server: server['created'])
        self._random.shuffle(servers)
        return [
            *(self._some(servers) for _time in range(
                self._random.choice(self.AT_ONCE))),
            *(self._audit(host) for host in HOSTS
              if self._random.random() < 0.05)]

    def _some(self, servers) -> Operation:
        if not servers or self._random.random() < 0.5 - len(servers) / 50:
            return self._boot(self._random.choice(list(self.PROFILES)))
        return self._something(servers.pop())

    def _something(self, server) -> Operation:
        name = self._random.choice(CHOICES.get(server['status'], ['delete']))
        if name == 'delete':
            return self._delete(server)
        if name in ('migrate', 'resize'):
            self._before[server['id']] = self._size(server)
        if name == 'resize':
            return self._resize(server, self._random.choice([
                profile for profile in self.PROFILES
                if profile != _profile(server)]))
        return self._act(name, server)

    def _boot(self, profile):
        return Operation('boot', lambda: self.api.post_server({
            'server': self._build_server(
                image_uuid=cloud.IMAGE, flavor_id=self._flavors[profile],
                networks='none')}), words=profile or 'plain')

    def _delete(self, server):
        return Operation('delete', lambda: self.api.delete_server(
            server['id']), server['id'])

    def _resize(self, server, profile):
        return Operation('resize', lambda: self.api.post_server_action(
            server['id'], {'resize': {'flavorRef': self._flavors[profile]}}),
            server['id'], f'to {profile or "plain"}')

    def _act(self, name, server):
        return Operation(name, lambda: self.api.post_server_action(
            server['id'], ACTIONS[name]), server['id'])

    def _audit(self, host):
        return Operation('audit', lambda: self.run_tasks(
            host, 'update_available_resource'), words=host)

    def _lose_a_host(self):
        """Power off a host, evacuate its servers, and start it again."""
        host = self._random.choice(HOSTS)
        self._log.write(f'{host} loses its power')
        self._power_off(host)
        [service] = self.api.get_services(host=host, binary='nova-compute')
        self.api.put_service(service['id'], {'forced_down': True})
        self._do([self._act('evacuate', server)
                  for server in self._servers().values()
                  if server['OS-EXT-SRV-ATTR:host'] == host
                  and server['status'] in ('ACTIVE', 'SHUTOFF')])
        self._start_again(host)
        self.api.put_service(service['id'], {'forced_down': False})
        self.run_periodic_tasks()

    def _power_off(self, host):
        for domain in self.connection(host)._vms.values():
            domain.destroy()
        self.kill(host)

    def _start_again(self, host):
        """Start a host's nova-compute after it was killed."""
        self.restart_compute_service(host)
        self.processes.settle()

    def _do(self, operations):
        threads = [threading.Thread(target=operation.perform)
                   for operation in operations]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.processes.settle()
        servers = self._servers()
        for operation in operations:
            server = servers.get(operation.server)
            outcome = operation.refused or (
                server['status'] if server else 'done')
            self._log.count(operation.name, outcome)
            self._log.write(' '.join(filter(None, (
                operation.name, operation.server, operation.words, '->',
                outcome,
                server and server['OS-EXT-SRV-ATTR:host']))))

    def _clear(self):
        """Delete all servers, and check that no devices are in use."""
        self._do([self._delete(server)
                  for server in self._servers().values()])
        self.run_periodic_tasks()
        if left := self._servers():
            raise Violation('not deleted: ' + ', '.join(
                f'{uuid}, {server["status"]} on '
                f'{server["OS-EXT-SRV-ATTR:host"]}, '
                f'{server["OS-EXT-STS:task_state"]}'
                for uuid, server in left.items()))
        self._check()

    # Checks

    def _servers(self):
        return {server['id']: server for server in self.api.get_servers()}

    def _check(self):
        held = self._held()
        rightly = {}
        for server in self._servers().values():
            rightly.update(self._rightly_held(server, held))
        if set(held) != set(rightly):
            raise Violation('devices in needless domains: ' + ', '.join(
                f'{host} {address} of {held[host, address]}'
                for host, address in sorted(set(held) - set(rightly))))
        self._check_promises(rightly)

    def _check_promises(self, rightly):
        """Check that the allocations are the devices of the domains.

        :param rightly: the consumer of each device, by host and address
        """
        promised = self._promised()
        if rightly != promised:
            raise Violation(
                f'held, but not allocated: {_only(rightly, promised)}; '
                f'allocated, but not held: {_only(promised, rightly)}')

    def _rightly_held(self, server, held):
        """Return the devices of a server, also on the source of a resize.

        :returns: the consumer of each device, by host and address
        """
        uuid, status = server['id'], server['status']
        places = [(server['OS-EXT-SRV-ATTR:host'], uuid, self._size(server))]
        if status == 'VERIFY_RESIZE':
            places.append((*self._source(uuid), self._before[uuid]))
        found = {}
        for host, consumer, size in places:
            here = {place: consumer for place, holder in held.items()
                    if holder == uuid and place[0] == host}
            if len(here) != size and status not in (
                    'ERROR', 'SHELVED_OFFLOADED'):
                raise Violation(f'{uuid} is {status}, and has {sorted(here)} '
                                f'on {host} instead of {size} devices')
            found.update(here)
        if status == 'ACTIVE':
            self._check_running(server, len(found))
        return found

    def _check_running(self, server, size):
        """Check that a running guest has all devices of its definition."""
        host = server['OS-EXT-SRV-ATTR:host']
        if (has := len(self.attached(server, host))) != size:
            raise Violation(f'{server["id"]} runs with {has} devices of '
                            f'{size}')

    def _held(self):
        """Return the server of each hostdev, by host and address."""
        found = {}
        for host in HOSTS:
            for address, holders in self.held(host).items():
                if len(holders) > 1:
                    raise Violation(f'{address} of {host} is held by '
                                    f'{", ".join(holders)}')
                found[host, address] = holders[0]
        return found

    def _promised(self):
        """Return the consumer of each device, by host and address."""
        return {(host, name.removeprefix(f'{host}_accel_')): consumer
                for host in HOSTS
                for name, provider in self.providers(host).items()
                for consumer in self._get_allocations_by_provider_uuid(
                    provider['uuid'])}

    def _source(self, uuid):
        [migration] = self.api.api_get(
            f'/os-migrations?instance_uuid={uuid}&status=finished'
        ).body['migrations']
        return migration['source_compute'], migration['uuid']

    def _size(self, server) -> int:
        """Return the number of devices in a server's flavor."""
        return self.PROFILES[_profile(server)]


def _profile(server) -> str:
    return server['flavor']['extra_specs'].get('nova_accel:profile', '')


def _only(left, right) -> str:
    return ', '.join(
        f'{host} {address} by {consumer}'
        for (host, address), consumer in sorted(left.items())
        if right.get((host, address)) != consumer) or 'nothing'

# SPDX-License-Identifier: Apache-2.0
"""Steps of operations and kills, each followed by a check."""

import collections
from collections.abc import Collection
from collections.abc import Sequence
import dataclasses
import time

from tests.integration import steps
from tests.integration.machine import clock
from tests.integration.nested import inside
from tests.integration.nested import scene
from tests.integration.storm import never
from tests.integration.storm import operations
from tests.integration.storm import sights

#: Services of the cloud and of a machine that are killed.
IN_CLOUD = ('nova-scheduler', 'rabbitmq', 'mariadb', 'placement')
IN_MACHINE = ('nova-compute', 'libvirtd')

#: Up to how many seconds after the requests a kill comes.
_LATEST = 12
#: Seconds of the machines without a change of a server, after which operations
#: that are not over never will be. One that lost a message is over only when
#: its caller gives up, after a minute.
_PATIENCE = 150
#: Seconds until a guest that has just started is up.
_BOOTS = 120
_PAUSE = 2
#: Operations that leave a domain on the source if they fail.
_LEAVING = ('resize', 'migrate', 'revert', 'confirm')


class Violation(Exception):
    """Raised with what must never happen and did."""


@dataclasses.dataclass
class Record:
    """What a storm has done.

    :param counts: of operations, by name and outcome
    :param kills: of services, by name
    :param left: how many servers Nova left in the middle of an operation, or
        after a move that failed
    :param rebooted: how many servers were rebooted after a kill
    :param read: how many devices guests have looked at
    """

    operations: int = 0
    steps: int = 0
    counts: dict[str, collections.Counter] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(collections.Counter))
    kills: collections.Counter = dataclasses.field(
        default_factory=collections.Counter)
    left: int = 0
    rebooted: int = 0
    read: set[tuple[str, str, int]] = dataclasses.field(default_factory=set)


class Storm:
    """A storm on machines.

    :param cloud: tests.integration.cloud.cloud.Cloud
    :param machines: the nested machines
    :param choice: chooses operations
    :param ledger: tests.integration.nested.ledger.PlacementClient
    :param kills: which part of the steps has a kill, 0 to 1
    :param shown: shows the steps
    """

    def __init__(self, cloud, machines, choice: operations.Choice,
                 ledger, kills: float, shown: steps.Steps):
        self._cloud = cloud
        self._machines = {machine.host: machine for machine in machines}
        self._choice = choice
        self._ledger = ledger
        self._kills = kills
        self._shown = shown
        self.record = Record()
        #: Servers and migrations that Nova left in the middle, and those of
        #: these servers that may still have left something.
        self._excused: set[str] = set()
        self._unclean: set[str] = set()
        self._sights: dict[str, sights.Sight] = {}

    def blow(self, count: int, seconds: float) -> None:
        """Perform operations, then delete all servers.

        :param count: of operations
        :param seconds: the time limit
        :raises Violation: if something happened that must never happen
        """
        end = time.monotonic() + seconds
        self._sights = self._look()
        while self.record.operations < count and time.monotonic() < end:
            self._step()
        self._clear()

    def _step(self):
        begin = time.monotonic()
        self.record.steps += 1
        self._wait_for_hosts()
        chosen = self._choice.some(self._servers())
        killed = ''
        operations.perform(chosen)
        if self._choice.random.random() < self._kills:
            killed = self._kill()
        servers = self._settle({each.uuid for each in chosen
                                if each.name == 'delete' and not each.refused})
        self._remove_leftovers(servers)
        self._count(chosen, servers)
        # A move that failed leaves the domain on the source.
        for each in chosen:
            if each.name in _LEAVING and self._outcome(each) == 'ERROR':
                self._excuse(each.uuid)
        self._after(chosen, servers, bool(killed))
        self._shown.say(
            f'step {self.record.steps}, {self.record.operations} operations, '
            f'{time.monotonic() - begin:.0f} s: '
            + ', '.join(f'{each.name} {each.refused or self._outcome(each)}'
                        for each in chosen)
            + (f'; killed {killed}' if killed else ''))

    def _kill(self) -> str:
        """Kill a service, and start it again."""
        name = self._choice.random.choice(IN_CLOUD + IN_MACHINE)
        time.sleep(self._choice.random.uniform(0, _LATEST))
        self.record.kills[name] += 1
        if name in IN_CLOUD:
            self._cloud.kill(name)
            self._cloud.start(name)
        else:
            machine = self._machines[self._choice.random.choice(
                sorted(self._machines))]
            machine.kill(name)
            machine.start(name)
            name = f'{name} of {machine.host}'
        self._cloud.recovered()
        return name

    def _wait_for_hosts(self):
        """Wait until Nova knows that its hosts are up.

        While it believes that a host is down, a delete leaves the domain there
        for half an hour.
        """
        def are_up():
            return all(service.state == 'up' for service in
                       self._cloud.connection.compute.services(
                           binary='nova-compute')
                       if service.host in self._machines)
        steps.wait('hosts that are up', are_up)

    # Servers

    def _servers(self) -> list:
        """Return the servers of all projects, the oldest first."""
        return sorted(steps.wait('an answer from nova-api', lambda: [list(
            self._cloud.connection.compute.servers(all_projects=True))])[0],
                      key=lambda server: server.created_at)

    def _settle(self, gone: Collection[str] = ()) -> list:
        """Wait until Nova is done; delete servers that it has forgotten.

        :param gone: UUIDs of servers that are deleted
        """
        servers = self._wait(gone)
        forgotten = [server for server in servers
                     if not _is_over(server, gone)]
        if not forgotten:
            return servers
        for server in forgotten:
            self._shown.say(f'{server.id} is left in {server.status}, '
                            f'{server.task_state}')
            self._excuse(server.id)
            self._cloud.connection.compute.reset_server_state(
                server, 'error')
        return self._delete(forgotten)

    def _wait(self, gone) -> list:
        """Wait until Nova is done, or does nothing any more."""
        passed, before = clock.Clock(), set()
        while True:
            servers = self._servers()
            now = {(server.id, server.status, server.task_state)
                   for server in servers}
            if now != before:
                passed, before = clock.Clock(), now
            if passed() > _PATIENCE or all(
                    _is_over(server, gone) for server in servers):
                return servers
            time.sleep(_PAUSE)

    def _excuse(self, server):
        self.record.left += server not in self._excused
        self._unclean.add(server)
        self._excused |= {server, *(
            migration.uuid for migration in self._migrations(server))}

    def _migrations(self, server) -> list:
        return list(self._cloud.connection.compute.migrations(
            instance_uuid=server))

    def _delete(self, servers) -> list:
        """Delete servers and return those that are left."""
        for server in servers:
            self._cloud.connection.compute.delete_server(
                server.id, ignore_missing=True)
        left = self._wait({server.id for server in servers})
        self._remove_leftovers(left)
        return left

    def _remove_leftovers(self, servers):
        """Remove what Nova left of deleted servers, as an operator would.

        :param servers: those that exist
        """
        gone = self._unclean.difference(server.id for server in servers)
        self._unclean -= gone
        placement = self._cloud.connection.placement
        for host, machine in self._machines.items() if gone else ():
            for uuid in self._look_at(host).domains.keys() & gone:
                machine.run(f'virsh -q destroy {uuid}; '
                            f'virsh -q undefine --nvram {uuid}', check=False)
        for uuid in gone:
            for consumer in (uuid, *(migration.uuid for migration
                                     in self._migrations(uuid))):
                placement.delete(f'/allocations/{consumer}')

    def _count(self, chosen, servers):
        self._status = {server.id: server.status for server in servers}
        for each in chosen:
            self.record.operations += 1
            self.record.counts[each.name][
                each.refused or self._outcome(each)] += 1

    def _outcome(self, operation) -> str:
        return self._status.get(operation.uuid, 'gone')

    # Checks

    def _after(self, chosen: Sequence[operations.Operation], servers,
               killed: bool):
        """Check the servers after a step.

        After a kill, those whose operations it interrupted may not be as they
        should be. They are rebooted, as an operator would. Those that were
        moving are deleted.
        """
        before, self._sights = self._sights, self._look(servers)
        wrong = self._wrong(servers, before, chosen)
        if killed and (wrong or any(server.status == 'ERROR'
                                    for server in servers)):
            self._shown.say('\n'.join(['after the kill:', *wrong]))
            moving = {each.uuid for each in chosen
                      if each.name in operations.MOVES}
            self._give_up([server for server in servers if server.id in moving
                           and (server.status == 'ERROR' or any(
                               server.id in line for line in wrong))])
            servers = self._reboot({each.uuid for each in chosen} - moving)
            self._sights = self._look(servers)
            wrong = self._wrong(servers, before, chosen)
        if wrong:
            raise Violation('\n'.join(wrong))

    def _give_up(self, servers):
        """Delete servers that Nova left in the middle of a move."""
        for server in servers:
            self._excuse(server.id)
        self._delete(servers)

    def _reboot(self, uuids: Collection[str]) -> list:
        operations.perform([
            self._choice.act('reboot', server) for server in self._servers()
            if server.id in uuids and server.status in ('ACTIVE', 'SHUTOFF')])
        self.record.rebooted += 1
        return self._settle()

    def _wrong(self, servers, before, chosen) -> list[str]:
        allocations = {host: never.Allocations(*self._ledger.consumers(host))
                       for host in self._machines}
        kept = {server.id for server in servers}.difference(
            each.uuid for each in chosen if each.name in operations.MOVES)
        for sight in self._sights.values():
            self.record.read |= sight.read
        return [
            *never.happened(self._sights, list(map(self._server, servers)),
                            allocations, self._excused),
            *never.changed(before, self._sights, kept)]

    def _server(self, view) -> never.Server:
        source = migration = ''
        if view.status == 'VERIFY_RESIZE':
            [found] = [found for found in self._migrations(view.id)
                       if found.status == 'finished']
            source, migration = found.source_compute, found.uuid
        return never.Server(view.id, view.status, view.compute_host or '',
                            self._choice.wants(view), source, migration)

    def _look(self, servers=()) -> dict[str, sights.Sight]:
        """Look at all machines, once the guests of servers are up."""
        passed = clock.Clock()
        while True:
            found = dict(zip(self._machines, steps.at_once(*(
                lambda host=host: self._look_at(host)
                for host in self._machines)), strict=True))
            late = [server.id for server in servers
                    if server.status == 'ACTIVE'
                    and server.id not in found[server.compute_host].up]
            if late and passed() > _BOOTS:
                self._shown.say(f'not up after {_BOOTS} s: {", ".join(late)}')
                late = []
            if not late:
                return found
            time.sleep(_PAUSE)

    def _look_at(self, host):
        return sights.look(self._machines[host])

    def _clear(self):
        """Delete all servers, and check that nothing is left."""
        servers = self._delete(self._servers())
        self._sights = self._look()
        wrong = [*self._wrong(servers, self._sights, []), *(
            f'{host}: {found}' for host, machine in self._machines.items()
            for found in inside.Inside(machine).disagreements())]
        for machine in self._machines.values():
            scene.offered(self._ledger, machine)
        if wrong or servers:
            raise Violation('\n'.join([
                *wrong, *(f'{server.id} is not deleted: {server.fault}'
                          for server in servers)]))


def _is_over(server, gone) -> bool:
    """Whether Nova is done with a server that may have to go.

    The record of a deleted server has no task for a moment.
    """
    return operations.is_over(server) and (
        server.id not in gone or server.status == 'ERROR')

# SPDX-License-Identifier: Apache-2.0
"""The cloud's interface for tests: APIs, services, logs and servers."""

import functools
import json
import os
import pathlib

import openstack
from openstack import exceptions

from tests.integration import namespaces
from tests.integration import place
from tests.integration import processes
from tests.integration import steps
from tests.integration.cloud import configuration
from tests.integration.cloud import resources
from tests.integration.cloud import services


class Cloud:
    """A cloud that is up or coming up."""

    #: The directory from which nova-api reads profiles.
    profiles = pathlib.Path('/etc/nova/device_profiles.d')

    def __init__(self):
        place.make(place.RUN, place.LOG)
        self.processes = processes.Processes(place.RUN, place.LOG)

    @functools.cached_property
    def connection(self) -> openstack.connection.Connection:
        """A connection of the SDK, as administrator."""
        return resources.connect()

    def openstack(self, *words: str):
        """Run the command ``openstack`` and return its parsed JSON output.

        :returns: None if there is no output
        :raises Failure: with the client's error
        """
        said = self.run('openstack', *words, '-f', 'json')
        return json.loads(said) if said.strip() else None

    def run(self, *command: str) -> str:
        """Run a command in the cloud's environment and return its output.

        :raises Failure: with the output, if the command fails
        """
        return steps.run(*command, env=environment())

    def virsh(self, *words: str) -> str:
        """Run virsh and return its output.

        :raises Failure: with libvirt's error
        """
        return self.run('virsh', '-q', '-c', 'qemu:///system', *words)

    # The services.

    def start(self, *names: str, wait: bool = True) -> None:
        """Start services in parallel.

        :param wait: wait until they are ready
        :raises Failure: if one does not get ready, with the end of its log
        """
        for name in names:
            service = services.SERVICES[name]
            self.processes.start(name, service.command,
                                 {**environment(), **service.environment},
                                 place.STATE)
        for name in names if wait else ():
            self._ready(name)

    def _ready(self, name):
        service = services.SERVICES[name]

        def ready():
            self.check(name)
            return service.ready()
        steps.wait(name, ready)

    def check(self, *names: str) -> None:
        """Check that services run.

        :raises Final: if a service has ended, with the end of its log
        """
        for name in names:
            if not self.processes.alive(name):
                raise steps.Final(f'{name} ended: {self._end(name)}')

    def _end(self, name):
        log = self.log(name)
        return f'{log.read_text(errors="replace")[-1500:]}\nmore is in {log}'

    def stop(self, *names: str) -> None:
        """Stop services, and kill those that do not end in time."""
        self.processes.stop(*names, seconds=max(
            services.SERVICES[name].patience for name in names))

    def kill(self, *names: str) -> None:
        self.processes.kill(*names)

    def restart(self, *names: str, wait: bool = True) -> None:
        """Stop services, start them, and wait until Nova reports them up."""
        self.stop(*names)
        beating = [name for name in names if name in _BEATING]
        # Start nova-api first. It knows the last heartbeats of the others.
        self.start(*(name for name in names if name not in beating), wait=wait)
        before = self.heartbeats() if beating and wait else {}
        self.start(*beating, wait=wait)
        if wait:
            self.beating(beating, before)
            if 'nova-conductor' in names:
                self._answered(before)

    def _answered(self, before):
        """Wait until each nova-compute reaches the new nova-conductor.

        An RPC call to the old nova-conductor may get no answer. Until it times
        out, nova-compute sends no heartbeat and Nova takes it for down. Then
        servers find no host, and Nova deletes them without nova-compute.
        """
        computes = [one for one in before if one[0] == 'nova-compute']

        def answered():
            now = self.heartbeats()
            return all(now.get(one, '') > before[one] for one in computes)
        steps.wait('a heartbeat of nova-compute', answered)

    def heartbeats(self) -> dict[tuple[str, str], str]:
        """Return the times of heartbeats of services, by binary and host."""
        self.check('nova-api')
        return {(service.binary, service.host): service.updated_at or ''
                for service in self.connection.compute.services()
                if service.state == 'up'}

    def beating(self, names, before=None) -> None:
        """Wait for new heartbeats of services of Nova.

        :param before: an earlier result of ``heartbeats()``
        """
        wanted = [_BEATING[name] for name in names if name in _BEATING]
        before = before or {}

        def beat():
            self.check(*names)
            now = self.heartbeats()
            return all(now.get(one, '') > before.get(one, '')
                       for one in wanted)
        if wanted:
            steps.wait(f'a heartbeat of {", ".join(names)}', beat)

    def recovered(self) -> None:
        """Wait until all services have recovered from a failure.

        nova-compute is disabled while it has no libvirt. All services of Nova
        send no heartbeats without RabbitMQ and MariaDB.
        """
        def well():
            return all((service.state, service.status) == ('up', 'enabled')
                       for service in self.connection.compute.services())
        # Until the services are back, nova-api refuses requests or fails.
        before = steps.wait('an answer from nova-api', self.heartbeats)
        self.beating(('nova-compute', 'nova-conductor', 'nova-scheduler'),
                     before)
        steps.wait('all services of Nova, up and enabled', well)

        # Each thread of an API has its own connections to memcached and
        # Keystone. The first request after a connection breaks fails.
        def ask():
            return self.connection.placement.get('/resource_providers').ok
        steps.wait('answers from all threads of Placement',
                   lambda: all(ask() for _time in range(12)))

    def log(self, name: str) -> pathlib.Path:
        return self.processes.log(name)

    def access_log(self, name: str) -> pathlib.Path:
        """Return the log of an API with a line for each request."""
        return services.access_log(name)

    def configure(self, program: str, text: str,
                  name: str = 'scenario') -> None:
        """Add configuration, which services read when they are restarted.

        :param program: for example nova; all its services read the file
        :param text: an empty text removes the file
        :param name: the file's name; an existing file is replaced
        """
        configuration.add(program, name, text)

    # Servers.

    def wait(self, server, status: str = 'ACTIVE'):
        """Wait until a server has a status, and return the server.

        :raises Failure: with the server's fault, if it does not get there
        """
        def there():
            self.check('nova-compute')
            now = self.connection.compute.get_server(server)
            if now.status == status:
                return now
            fault = (now.fault or {}).get('message', 'it has no fault')
            kind = steps.Final if now.status == 'ERROR' else steps.Failure
            raise kind(f'server {now.name} is {now.status}, not {status}: '
                       f'{fault}')
        return steps.wait(f'server {server.name}', there)

    def delete(self, *servers) -> None:
        """Delete servers and wait until they are gone.

        :raises Failure: if one cannot be deleted, with its fault
        """
        for server in servers:
            self.connection.compute.delete_server(server.id,
                                                  ignore_missing=True)
        for server in servers:
            steps.wait(f'the end of server {server.name}',
                       functools.partial(self._gone, server.id))

    def _gone(self, server):
        try:
            now = self.connection.compute.get_server(server)
        except exceptions.NotFoundException:
            return True
        if now.status == 'ERROR' and not now.task_state:
            raise steps.Final(f'server {now.name} is not deleted: {now.fault}')
        return False

    def console(self, server) -> str:
        """Return the text of a server's serial console."""
        return self.connection.compute.get_server_console_output(
            server)['output']


#: Binary and host of the services that send heartbeats.
_BEATING = {
    **{name: (name, namespaces.HOST)
       for name in ('nova-compute', 'nova-conductor', 'nova-scheduler')},
    'nova-scheduler-2': ('nova-scheduler', services.SECOND)}


def environment() -> dict[str, str]:
    """Return the environment of all commands in the cloud."""
    return {**os.environ, **resources.ENVIRONMENT, 'PYTHONWARNINGS': 'ignore',
            'PATH': f'{place.BIN}:{os.environ["PATH"]}:/usr/sbin:/sbin'}



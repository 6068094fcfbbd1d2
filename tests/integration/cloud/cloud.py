# SPDX-License-Identifier: Apache-2.0
"""The cloud as the scenarios have it: its APIs, its services, their logs."""

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
    """A cloud that is up, or about to be."""

    #: Where nova-api reads profiles from.
    profiles = pathlib.Path('/etc/nova/device_profiles.d')

    def __init__(self):
        place.make(place.RUN, place.LOG)
        self.processes = processes.Processes(place.RUN, place.LOG)

    @functools.cached_property
    def connection(self) -> openstack.connection.Connection:
        """The SDK, as administrator."""
        return resources.connect()

    def openstack(self, *words: str):
        """What the ordinary client says, from its JSON; None if nothing.

        :raises Failure: with its error
        """
        said = self.run('openstack', *words, '-f', 'json')
        return json.loads(said) if said.strip() else None

    def run(self, *command: str) -> str:
        """What a command of the cloud's environment, or any, says.

        :raises Failure: with what it said, if it fails
        """
        return steps.run(*command, env=environment())

    def virsh(self, *words: str) -> str:
        """What libvirt says; its errors are Failures."""
        return self.run('virsh', '-q', '-c', 'qemu:///system', *words)

    # The services.

    def start(self, *names: str, wait: bool = True) -> None:
        """Start services, all at once.

        :param wait: until they can be used
        :raises Failure: if one cannot, with the end of its log
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
        """:raises Final: with the end of its log, if a service ended"""
        for name in names:
            if not self.processes.alive(name):
                raise steps.Final(f'{name} ended: {self._end(name)}')

    def _end(self, name):
        log = self.log(name)
        return f'{log.read_text(errors="replace")[-1500:]}\nmore is in {log}'

    def stop(self, *names: str) -> None:
        """Have services end by themselves, or kill those that do not."""
        self.processes.stop(*names, seconds=max(
            services.SERVICES[name].patience for name in names))

    def kill(self, *names: str) -> None:
        self.processes.kill(*names)

    def restart(self, *names: str, wait: bool = True) -> None:
        """Stop services, start them again, and wait until Nova has them."""
        self.stop(*names)
        beating = [name for name in names if name in _BEATING]
        # First nova-api, if it is among them: it says what they said before.
        self.start(*(name for name in names if name not in beating), wait=wait)
        before = self.heartbeats() if beating and wait else {}
        self.start(*beating, wait=wait)
        if wait:
            self.beating(beating, before)
            if 'nova-conductor' in names:
                self._answered(before)

    def _answered(self, before):
        """Wait until each nova-compute has heard from the new nova-conductor.

        What it asked the one that ended may never be answered. Until it has
        given that up, Nova takes it for down: finds no host, and deletes
        servers without it.
        """
        computes = [one for one in before if one[0] == 'nova-compute']

        def answered():
            now = self.heartbeats()
            return all(now.get(one, '') > before[one] for one in computes)
        steps.wait('a sign of nova-compute', answered)

    def heartbeats(self) -> dict[tuple[str, str], str]:
        """When Nova's services that are up said so, by binary and host."""
        self.check('nova-api')
        return {(service.binary, service.host): service.updated_at or ''
                for service in self.connection.compute.services()
                if service.state == 'up'}

    def beating(self, names, before=None) -> None:
        """Wait until services of Nova say again that they are there.

        :param before: what ``heartbeats()`` said before they did
        """
        wanted = [_BEATING[name] for name in names if name in _BEATING]
        before = before or {}

        def beat():
            self.check(*names)
            now = self.heartbeats()
            return all(now.get(one, '') > before.get(one, '')
                       for one in wanted)
        if wanted:
            steps.wait(f'a sign of {", ".join(names)}', beat)

    def recovered(self) -> None:
        """Wait until all that ask each other have noticed that all is well.

        nova-compute says that it is disabled while libvirt is not there, and
        all of Nova's are silent without RabbitMQ and MariaDB.
        """
        def well():
            return all((service.state, service.status) == ('up', 'enabled')
                       for service in self.connection.compute.services())
        # nova-api refuses or fails until what it needs is there again.
        before = steps.wait('an answer of nova-api', self.heartbeats)
        self.beating(('nova-compute', 'nova-conductor', 'nova-scheduler'),
                     before)
        steps.wait('all services of Nova, up and enabled', well)

        # Each thread of an API has connections of its own to memcached and
        # Keystone; that one has gone it notices by a request, which fails.
        def ask():
            return self.connection.placement.get('/resource_providers').ok
        steps.wait('answers of all threads of Placement',
                   lambda: all(ask() for _time in range(12)))

    def log(self, name: str) -> pathlib.Path:
        return self.processes.log(name)

    def access_log(self, name: str) -> pathlib.Path:
        """Of an API, a line for each request."""
        return services.access_log(name)

    def configure(self, program: str, text: str,
                  name: str = 'scenario') -> None:
        """Have services read more configuration, once they are restarted.

        :param program: nova, neutron or the like; all its services read it
        :param text: replaces that of the same name; none removes it
        """
        configuration.add(program, name, text)

    # Servers.

    def wait(self, server, status: str = 'ACTIVE'):
        """A server once it has the status.

        :raises Failure: if it does not come to that, with its fault
        """
        def there():
            self.check('nova-compute')
            now = self.connection.compute.get_server(server)
            if now.status == status:
                return now
            fault = (now.fault or {}).get('message', 'it does not say why')
            kind = steps.Final if now.status == 'ERROR' else steps.Failure
            raise kind(f'server {now.name} is {now.status}, and not {status}: '
                       f'{fault}')
        return steps.wait(f'server {server.name}', there)

    def delete(self, *servers) -> None:
        """Delete servers, and wait until they are gone.

        :raises Failure: if one is not to go, with its fault
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
        """What a server's serial console said."""
        return self.connection.compute.get_server_console_output(
            server)['output']


#: Binary and host of the services that Nova keeps track of.
_BEATING = {
    **{name: (name, namespaces.HOST)
       for name in ('nova-compute', 'nova-conductor', 'nova-scheduler')},
    'nova-scheduler-2': ('nova-scheduler', services.SECOND)}


def environment() -> dict[str, str]:
    """That of all commands in the cloud."""
    return {**os.environ, **resources.ENVIRONMENT, 'PYTHONWARNINGS': 'ignore',
            'PATH': f'{place.BIN}:{os.environ["PATH"]}:/usr/sbin:/sbin'}



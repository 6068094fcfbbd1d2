# SPDX-License-Identifier: Apache-2.0
"""The services: how each is started, and when it is ready.

To add a service, add a line to the table.
"""

from collections.abc import Callable
import dataclasses
import http.client
import pathlib
import socket
import subprocess

from tests.integration import place

#: The format of access logs: milliseconds since 1970, method, status,
#: duration, URI, client and request id.
_ACCESS = ('%(tmsecs) %(method) %(status) %(msecs)ms %(uri) ua=%(uagent) '
           'request=%(var.HTTP_X_OPENSTACK_REQUEST_ID)')

#: The host name of the second instance of a service.
SECOND = 'cloud-2'


@dataclasses.dataclass(frozen=True)
class Service:
    command: tuple[str, ...]
    #: Returns whether the service is ready; may raise OSError if not.
    ready: Callable[[], bool] = lambda: True
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Seconds after which stop() kills it.
    patience: int = 10


def access_log(name: str) -> pathlib.Path:
    return place.LOG / f'{name}.access.log'


def listens(port: int) -> bool:
    with socket.create_connection(('127.0.0.1', port), timeout=2):
        return True


def answers(port: int) -> bool:
    """Whether an HTTP server answers with a status below 500."""
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=10)
    try:
        connection.request('GET', '/')
        return connection.getresponse().status < 500
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


def _says(*command):
    return lambda: not subprocess.run(command, capture_output=True).returncode


def _api(name, port, module, arguments='', **environment):
    """Return an API with one process and four threads, without TLS.

    The worker process loads the API, not its parent (--lazy-apps). The API has
    threads. They do not survive a fork, and their locks stay locked.
    """
    return Service((
        f'{place.BIN}/uwsgi', '--http-socket', f'127.0.0.1:{port}',
        '--module', f'{module}:application', '--home', f'{place.VENV}',
        '--processes', '1', '--threads', '4', '--enable-threads',
        '--need-app', '--lazy-apps', '--die-on-term', '--buffer-size', '65535',
        '--add-header', 'Connection: close', '--http-chunked-input',
        '--procname', f'{name}', '--log-format', _ACCESS,
        '--req-logger', f'file:{access_log(name)}',
        *(('--pyargv', arguments) if arguments else ())),
        lambda: answers(port), environment)


def _program(name, *arguments, **environment):
    return Service((f'{place.BIN}/{name}', *arguments), patience=5,
                   environment=environment)


def _nova_api(name, port):
    return _api(name, port, 'nova.wsgi.osapi_compute')


#: Without this, Neutron looks for a file for each plugin.
_NEUTRON = {'OS_NEUTRON_CONFIG_FILES': 'neutron.conf'}
_CYBORG = '/etc/cyborg/cyborg.conf'

#: The services in the order in which they start.
SERVICES = {
    'mariadb': Service(('mariadbd',), _says('mariadb', '-e', 'select 1'),
                       patience=30),
    'memcached': Service(('memcached', '-u', 'root', '-l', '127.0.0.1',
                          '-m', '64', '-U', '0'), lambda: listens(11211)),
    'epmd': Service(('epmd', '-address', '127.0.0.1'),
                    lambda: listens(4369)),
    'rabbitmq': Service(
        ('/usr/lib/rabbitmq/bin/rabbitmq-server',), lambda: listens(5672),
        {'HOME': f'{place.STATE}', 'ERL_EPMD_ADDRESS': '127.0.0.1'}, 30),
    'virtlogd': Service(('virtlogd',)),
    'libvirtd': Service(('libvirtd',), _says(
        'virsh', '-q', '-c', 'qemu:///system', 'version')),
    'keystone': _api('keystone', 5000, 'keystone.wsgi.api'),
    'placement': _api('placement', 8778, 'placement.wsgi.api'),
    'glance': _api('glance', 9292, 'glance.wsgi.api'),
    'neutron': _api('neutron', 9696, 'neutron.wsgi.api', **_NEUTRON),
    'nova-api': _nova_api('nova-api', 8774),
    'neutron-rpc': _program('neutron-rpc-server', **_NEUTRON),
    'nova-conductor': _program('nova-conductor'),
    'nova-scheduler': _program('nova-scheduler'),
    'nova-compute': _program('nova-compute'),
    'neutron-agent': Service((f'{place.BIN}/python', str(
        pathlib.Path(__file__).parent / 'macvtap_agent.py'))),
    # Only some tests start these.
    'nova-api-2': _nova_api('nova-api-2', 8775),
    'nova-metadata': _api('nova-metadata', 8776, 'nova.wsgi.metadata'),
    'nova-scheduler-2': _program('nova-scheduler',
                                 OS_DEFAULT__HOST=SECOND),
    'cyborg-api': _api('cyborg-api', 6666, 'cyborg.wsgi.api',
                       f'--config-file={_CYBORG}'),
    'cyborg-conductor': _program('cyborg-conductor', '--config-file',
                                 _CYBORG),
    'cyborg-agent': _program('cyborg-agent', '--config-file', _CYBORG),
}

# SPDX-License-Identifier: Apache-2.0
"""Random operations on servers of several projects."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
import dataclasses
import random

from keystoneauth1 import exceptions as keystoneauth_exceptions
from openstack import exceptions

from tests.integration.machine import node
from tests.integration.nested import tenant as nested_tenant

#: The units of a server by resource class; a kind that is here twice is chosen
#: twice as often.
KINDS = ({}, {'VGPU': 1}, {'VGPU': 1}, {'CUSTOM_QAT': 1}, {'CUSTOM_QAT': 1},
         {'CUSTOM_QAT': 2}, {'CUSTOM_GPU': 1}, {'CUSTOM_ALVEO': 1},
         {'CUSTOM_GPU': 1, 'CUSTOM_QAT': 1, 'VGPU': 1})

#: Operations by the status of a server, as for KINDS.
CHOICES = {
    'ACTIVE': ('delete', 'reboot', 'stop', 'stop', 'pause', 'pause',
               'rebuild', 'suspend', 'shelve', 'resize', 'migrate'),
    'SHUTOFF': ('start', 'start', 'delete', 'resize', 'shelve'),
    'PAUSED': ('unpause', 'unpause', 'delete'),
    'SUSPENDED': ('resume', 'resume', 'delete'),
    'VERIFY_RESIZE': ('confirm', 'revert', 'revert', 'delete'),
    'SHELVED_OFFLOADED': ('unshelve', 'unshelve', 'delete')}

#: Operations after which a server can have other devices, or be elsewhere.
MOVES = frozenset({'resize', 'migrate', 'confirm', 'revert', 'shelve',
                   'unshelve', 'live', 'boot', 'delete'})

#: The method of openstacksdk for each operation.
METHODS = {
    'confirm': 'confirm_server_resize', 'delete': 'delete_server',
    'live': 'live_migrate_server', 'revert': 'revert_server_resize',
    **{name: f'{name}_server' for name in (
        'migrate', 'pause', 'reboot', 'rebuild', 'resize', 'resume', 'shelve',
        'start', 'stop', 'suspend', 'unpause', 'unshelve')}}

#: Statuses that pass by themselves.
_PASSING = nested_tenant.PASSING | {'SHELVED', 'DELETED'}

#: The most servers at a time: each takes memory and time of the machines.
_MOST = 8

#: Errors of a client while services are down.
ERRORS = (OSError, exceptions.SDKException,
          keystoneauth_exceptions.ClientException)

#: The status code of a boot that no state of the cloud can allow.
_WRONG = 400


def is_over(view) -> bool:
    """Whether Nova is done with a server.

    :param view: openstack.compute.v2.server.Server
    """
    return view.task_state is None and view.status not in _PASSING


@dataclasses.dataclass
class Operation:
    """An operation on a server.

    :param call: performs it
    :param uuid: of the server, '' if the operation creates it
    :param refused: the status code of nova-api's answer, 'no answer', or ''
    """

    name: str
    call: Callable[[], object]
    uuid: str = ''
    refused: str = ''

    def perform(self) -> None:
        try:
            made = self.call()
        except exceptions.HttpException as error:
            if not self.uuid and error.status_code == _WRONG:
                raise
            self.refused = str(error.status_code or 'no answer')
        except ERRORS:
            self.refused = 'no answer'
        else:
            self.uuid = self.uuid or made.id


def perform(operations: Sequence[Operation]) -> None:
    """Send the requests of operations at the same time."""
    with futures.ThreadPoolExecutor(max(len(operations), 1)) as pool:
        list(pool.map(Operation.perform, operations))


class Choice:
    """A choice of operations by a seed.

    :param tenants: one tests.integration.nested.tenant.Tenant for each project
    :param zone: the availability zone of all servers
    """

    def __init__(self, seed: int, tenants: Sequence, zone: str):
        self.random = random.Random(seed)
        self._zone = zone
        self._tenants = tenants
        image = tenants[0].cloud.connection.image
        self._image = image.find_image(node.IMAGE, ignore_missing=False).id
        #: The units of each flavor's devices, by the flavor's name.
        self.flavors = {}
        self._ids = []
        for kind in KINDS:
            found = tenants[0].cloud.connection.compute.get_flavor(
                tenants[0].flavor(**kind))
            self.flavors[found.name] = kind
            self._ids.append(found.id)

    def some(self, servers: Sequence) -> list[Operation]:
        """Choose operations on different servers.

        :param servers: openstack.compute.v2.server.Server, all of them
        """
        left = [server for server in servers if server.status in CHOICES]
        self.random.shuffle(left)
        broken = [self.act('delete', server) for server in servers
                  if server.status not in CHOICES]
        return broken + list(self._some(left, len(servers)))

    def _some(self, left, count) -> Iterator[Operation]:
        for _time in range(self.random.choice((6, 7, 8))):
            boots = self.random.random() < 0.5 - count / 14
            if count < _MOST and (boots or not left):
                count += 1
                yield self._boot()
            elif left:
                yield self._something(left.pop())

    def _boot(self) -> Operation:
        tenant = self.random.choice(self._tenants)
        flavor = self.random.choice(self._ids)
        return Operation('boot', lambda: tenant.compute.create_server(
            name='storm', flavor_id=flavor, image_id=self._image,
            availability_zone=self._zone, networks='none'))

    def _something(self, server) -> Operation:
        name = self.random.choice(CHOICES[server.status])
        if name == 'migrate' and not self.wants(server):
            name = 'live'
        return self.act(name, server)

    def act(self, name: str, server) -> Operation:
        """Return an operation on a server."""
        words, keys = [], {}
        if name == 'resize':
            words = [self.random.choice(self._ids)]
        elif name == 'reboot':
            words = ['HARD']
        elif name == 'rebuild':
            keys = {'image': server.image.id}
        elif name == 'live':
            keys = {'host': None, 'block_migration': 'auto'}
        method = getattr(self._compute(server), METHODS[name])
        return Operation(name, lambda: method(server.id, *words, **keys),
                         server.id)

    def _compute(self, server):
        """Return the proxy of the project that has a server."""
        return next(tenant.compute for tenant in self._tenants if
                    tenant.compute.get_project_id() == server.project_id)

    def wants(self, server) -> dict[str, int]:
        """Return the units of a server's flavor by resource class."""
        return self.flavors[_flavor(server)]


def _flavor(server) -> str:
    return server.flavor.original_name


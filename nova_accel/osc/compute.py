# SPDX-License-Identifier: Apache-2.0
"""Reads flavors, servers and aggregates from Nova's API."""

import collections.abc
import contextlib
import dataclasses
import typing

from openstack import connection
from openstack import exceptions
from openstack.compute.v2 import flavor
from openstack.compute.v2 import hypervisor
from openstack.compute.v2 import server

from nova_accel.core import errors
from nova_accel.core import host_domain
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.osc import progress

_TRAIT = 'trait:'

_Found = typing.TypeVar('_Found')


@dataclasses.dataclass(frozen=True)
class Flavor:
    """A flavor, or that of a server.

    :param name: '' if Nova's API does not show it
    """

    name: str
    extra_specs: collections.abc.Mapping[str, str]

    @property
    def profile(self) -> str | None:
        """The device profile that it names, or that is expanded in it."""
        return self.extra_specs.get(
            flavor_specs.EXPANDED_KEY,
            self.extra_specs.get(flavor_specs.PROFILE_KEY))

    @property
    def is_expanded(self) -> bool:
        """Whether it has the contents of its profile."""
        return flavor_specs.EXPANDED_KEY in self.extra_specs


@dataclasses.dataclass(frozen=True)
class Server:
    """A server.

    :param flavor: the one that it was created or resized with
    :param image_traits: the traits that its image requires
    :param host: the name of its compute node; '' if it is on none, and for
        users who may not know it
    :param status: Nova's name of it, such as ACTIVE
    :param task: what Nova is doing with it, '' for nothing
    :param zone: the availability zone of its host
    """

    uuid: str
    name: str
    flavor: Flavor
    image_traits: tuple[str, ...] = ()
    host: str = ''
    status: str = ''
    task: str = ''
    zone: str = ''


@dataclasses.dataclass(frozen=True)
class Service:
    """The nova-compute of a compute node.

    :param name: as Nova's API takes it for a destination
    :param closed: why its node gets no new servers, '' if it does
    """

    name: str
    zone: str
    is_up: bool
    closed: str


@dataclasses.dataclass(frozen=True)
class ServerGroup:
    """A server group.

    :param policy: Nova's name of it
    :param members: uuids of servers
    :param most: the most members on a host, for anti-affinity
    """

    policy: str
    members: frozenset[str]
    most: int


class Compute:
    """Nova's API, as one user sees it.

    Each method raises :class:`nova_accel.core.errors.AccelError` if Nova
    refuses, or does not answer.
    """

    def __init__(self, sdk: connection.Connection) -> None:
        self._sdk = sdk

    def flavors(self) -> list[Flavor]:
        """Return the flavors, for an administrator also private ones."""
        with _translated_errors():
            return [_flavor(found)
                    for found in self._sdk.compute.flavors(is_public='None')]

    def flavor(self, name: str) -> Flavor:
        """Return one flavor.

        :param name: its name or ID
        """
        with _translated_errors():
            found = self._sdk.compute.find_flavor(
                name, get_extra_specs=True)
        return _flavor(_known(found, 'flavor', name))

    def servers(self) -> collections.abc.Iterator[Server]:
        """Yield the servers: of all projects, or else those of the user."""
        with _translated_errors():
            try:
                yield from map(_server, progress.each(
                    self._sdk.compute.servers(all_projects=True), None,
                    'server'))
            except exceptions.ForbiddenException:
                yield from map(_server, self._sdk.compute.servers())

    def server(self, name: str) -> Server:
        """Return one server.

        :param name: its name or ID
        """
        with _translated_errors():
            found = self._sdk.compute.find_server(name)
            if found is None:
                # Only administrators may look for names in all projects.
                with contextlib.suppress(exceptions.ForbiddenException):
                    found = self._sdk.compute.find_server(
                        name, all_projects=True)
        return _server(_known(found, 'server', name))

    def aggregates(self) -> dict[str, str]:
        """Return the uuids of the host aggregates, by name."""
        with _translated_errors():
            return {found.name: found.uuid
                    for found in self._sdk.compute.aggregates()}

    def domains(self) -> dict[str, dict[str, str]]:
        """Return the metadata of aggregates that name a host domain, by uuid.
        """
        with _translated_errors():
            return {found.uuid: found.metadata
                    for found in self._sdk.compute.aggregates()
                    if host_domain.KEY in (found.metadata or {})}

    def closed(self) -> dict[str, str]:
        """Return why compute nodes get no new servers, by name."""
        with _translated_errors():
            return {found.name: reason
                    for found in self._sdk.compute.hypervisors()
                    if (reason := _closed(found))}

    def services(self) -> dict[str, Service]:
        """Return the nova-computes, by the names of their compute nodes."""
        with _translated_errors():
            zones = {found.host: found.availability_zone
                     for found in self._sdk.compute.services(
                         binary='nova-compute')}
            # Later versions also ask each host how long it has been up.
            nodes = list(self._sdk.compute.hypervisors(
                details=True, microversion='2.53'))
        return {found.name: Service(
            name, zones.get(name, ''), found.state == 'up', _closed(found))
            for found in nodes for name in [found.service_details['host']]}

    def server_groups(self) -> list[ServerGroup]:
        """Return the server groups of all projects."""
        groups: list[ServerGroup] = []
        with _translated_errors():
            # Nova limits what it lists, without a link to the rest.
            while page := self._groups_from(len(groups)):
                groups += [ServerGroup(
                    found['policy'], frozenset(found['members']),
                    int(found['rules'].get('max_server_per_host', 1)))
                    for found in page]
        return groups

    def _groups_from(self, offset: int) -> list[dict[str, typing.Any]]:
        answer = self._sdk.compute.get(
            '/os-server-groups', microversion='2.64',
            params={'all_projects': True, 'offset': offset})
        exceptions.raise_from_response(answer)
        found: list[dict[str, typing.Any]] = answer.json()['server_groups']
        return found


def _closed(found: hypervisor.Hypervisor) -> str:
    """Return why a compute node gets no new servers, '' if it does."""
    if (found.state, found.status) == ('up', 'enabled'):
        return ''
    return ('nova-compute is down' if found.state == 'down'
            else 'nova-compute is disabled')


def _known(found: _Found | None, noun: str, name: str) -> _Found:
    """Return what Nova has found; raise an error if that is nothing."""
    if found is None:
        raise errors.AccelError(f'{noun} {errors.plain(name)}', 'is not known',
                                f'see "openstack {noun} list"')
    return found


def _flavor(found: flavor.Flavor) -> Flavor:
    # The flavor of a server has its name as original_name.
    return Flavor(found.original_name or found.name or '',
                  dict(found.extra_specs or {}))


def _server(found: server.Server) -> Server:
    properties = (found.image or {}).get('properties') or {}
    return Server(found.id, found.name, _flavor(found.flavor), tuple(
        key.removeprefix(_TRAIT) for key, value in properties.items()
        if key.startswith(_TRAIT) and value == device_profile.REQUIRED),
        found.hypervisor_hostname or '', getattr(found, 'status', '') or '',
        getattr(found, 'task_state', '') or '',
        getattr(found, 'availability_zone', '') or '')


@contextlib.contextmanager
def _translated_errors() -> collections.abc.Iterator[None]:
    """Raise exceptions of openstacksdk as AccelError."""
    try:
        yield
    except exceptions.ForbiddenException:
        raise errors.AccelError(
            'Nova', 'does not allow this user to do this',
            'use the credentials of an administrator') from None
    except exceptions.SDKException as error:
        raise errors.AccelError('Nova', f'cannot be queried: {error}',
                                '') from None

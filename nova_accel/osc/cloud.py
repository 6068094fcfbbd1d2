# SPDX-License-Identifier: Apache-2.0
"""Reads devices and servers from the APIs of Placement and Nova."""

import collections
import collections.abc
import concurrent.futures
import dataclasses
import functools
import typing

from cliff import command
from openstack import connection
from openstack import exceptions

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.placement import listing
from nova_accel.core.placement import queries
from nova_accel.osc import compute
from nova_accel.osc import progress

# Requests at the same time; more only queue in Placement.
_WORKERS = 8


@dataclasses.dataclass(frozen=True)
class Consumer:
    """Who holds units of a provider.

    :param units: how many, by resource class
    :param name: name of the server, '' if Nova's API does not show one
    """

    uuid: str
    units: collections.abc.Mapping[str, int]
    project: str = ''
    name: str = ''

    def held(self, units: listing.Units) -> int:
        """Return how many units of a Region of the provider it holds."""
        return self.units.get(naming.unit_class(units.resource_class), 0)


class Cloud:
    """The devices of a cloud.
    """

    def __init__(self, sdk: connection.Connection) -> None:
        self._sdk = sdk

    @property
    def compute(self) -> compute.Compute:
        """Nova's API."""
        return compute.Compute(self._sdk)

    def hosts(self) -> list[listing.Host]:
        """Return the compute nodes that have devices.

        :raises errors.AccelError: if Placement refuses, or does not answer
        """
        if not queries.is_reported(self.get):
            return []
        ours = queries.providers(self.get, required=naming.MARKER_TRAIT)
        roots = queries.providers(self.get,
                                  resources=f'{naming.HOST_CLASS}:1')
        summaries = queries.summaries(self.get)
        # Placement may limit the number of candidates.
        missing = {root['uuid'] for root in roots}.difference(summaries)
        for found in self._each(lambda root: queries.summaries(
                self.get, in_tree=root), missing).values():
            summaries.update(found)
        return listing.hosts(ours, roots, summaries)

    def host(self, name: str) -> listing.Host:
        """Return one compute node.

        :raises errors.AccelError: if it does not exist
        """
        return queries.host(self.get, name)

    def device(self, name: str) -> listing.Device:
        """Return one device.

        :param name: uuid of its resource provider, or ``HOST/ADDRESS``
        :raises errors.AccelError: if there is no such device
        """
        host_name, _slash, address = name.rpartition('/')
        if not host_name:
            found = (queries.providers(self.get, uuid=name)
                     if naming.is_uuid(name) else [])
            if not found:
                raise _no_device(name)
            [root] = queries.providers(
                self.get, uuid=found[0]['root_provider_uuid'])
            host_name = root['name']
        for device in self.host(host_name).devices:
            if name in (device.uuid, f'{host_name}/{device.address}') or any(
                    units.provider == name for units in device.regions):
                return device
        raise _no_device(name)

    def root(self, device: listing.Device) -> str:
        """Return the uuid of the compute node's provider of a device."""
        [provider] = queries.providers(self.get, uuid=device.uuid)
        root: str = provider['root_provider_uuid']
        return root

    def consumers(self, providers: collections.abc.Iterable[str],
                  ) -> dict[str, list[Consumer]]:
        """Return the servers and migrations that hold units, by provider.

        :param providers: uuids
        """
        allocations = self._each(functools.partial(
            queries.allocations, self.get), providers)
        known = self._each(self._consumer, {
            consumer for found in allocations.values() for consumer in found})
        return {provider: [dataclasses.replace(
            known[consumer], units=allocation['resources'])
            for consumer, allocation in found.items()]
            for provider, found in allocations.items()}

    def totals(self, units: collections.abc.Iterable[listing.Units],
               ) -> dict[str, int]:
        """Return all units of Regions, free or not, by provider.

        Placement is asked about those only of which some are withheld.
        """
        known = {each.provider: each for each in units}
        inventories = self._each(
            lambda uuid: queries.inventory(self.get, known[uuid]),
            [uuid for uuid, each in known.items() if each.reasons])
        return {uuid: inventories[uuid]['total'] if uuid in inventories
                else each.used + each.free for uuid, each in known.items()}

    def used_by_project(self, hosts: collections.abc.Iterable[listing.Host],
                        ) -> dict[tuple[str, str], collections.Counter[str]]:
        """Return used units by consumer, by project and resource class."""
        classes = _used_classes(hosts)
        allocations = self._each(functools.partial(
            queries.allocations, self.get), classes)
        projects = self._each(functools.partial(queries.project, self.get), {
            consumer for found in allocations.values() for consumer in found})
        used: dict[tuple[str, str], collections.Counter[str]] = (
            collections.defaultdict(collections.Counter))
        for provider, found in allocations.items():
            name = classes[provider]
            for consumer, allocation in found.items():
                used[projects[consumer], name][consumer] += allocation[
                    'resources'].get(name, 0)
        return dict(used)

    def holders(self, hosts: collections.abc.Iterable[listing.Host],
                ) -> dict[str, list[Consumer]]:
        """Return the consumers of compute nodes, by provider, without names.

        It sends a request for each class of a compute node, and for each
        server. :meth:`consumers` sends one for each device as well.
        """
        consumers = set().union(*self._each(functools.partial(
            queries.allocations, self.get), _used_classes(hosts)).values())
        found = collections.defaultdict(list)
        for uuid, answer in self._each(
                lambda uuid: self.get(f'/allocations/{uuid}'),
                consumers).items():
            for provider, allocation in answer['allocations'].items():
                found[provider].append(Consumer(
                    uuid, allocation['resources'], answer['project_id']))
        return dict(found)

    def projects(self, uuids: collections.abc.Iterable[str],
                 ) -> dict[str, str]:
        """Return the names of projects; '' if Keystone does not show one."""
        return self._each(self._project_name, uuids)

    def members(self, aggregates: collections.abc.Iterable[str],
                ) -> dict[str, set[str]]:
        """Return the uuids of the compute nodes of aggregates, by uuid."""
        return {aggregate: {provider['uuid'] for provider in found}
                for aggregate, found in self._each(
                    lambda uuid: queries.providers(self.get, member_of=uuid),
                    aggregates).items()}

    def devices_of(self, consumer: str, host: str,
                   ) -> list[tuple[listing.Device, listing.Units, int]]:
        """Return the devices of a server on its compute node.

        :param host: name of the compute node
        :returns: each Region, and how many units of it the server has
        """
        held = self.allocations(consumer)
        return [(device, units, amount)
                for device, units in self.host(host).units
                if (amount := held.get(units.provider, {}).get(
                    'resources', {}).get(
                        naming.unit_class(units.resource_class), 0))]

    def allocations(self, consumer: str) -> listing.Json:
        """Return the allocations of a server, by provider."""
        found: listing.Json = self.get(
            f'/allocations/{consumer}')['allocations']
        return found

    def allocations_of(self, consumers: collections.abc.Iterable[str],
                       ) -> dict[str, listing.Json]:
        """Return the allocations of servers, by server and provider."""
        return self._each(self.allocations, consumers)

    def _consumer(self, uuid: str) -> Consumer:
        return Consumer(uuid, {}, queries.project(self.get, uuid),
                        self._server_name(uuid))

    def _server_name(self, uuid: str) -> str:
        try:
            return str(self._sdk.compute.get_server(uuid).name)
        except exceptions.SDKException:
            # A migration, or a server that this user may not see.
            return ''

    def _project_name(self, uuid: str) -> str:
        try:
            # Identity v2, which has no projects, is not in Keystone any more.
            found = self._sdk.identity.get_project(  # type: ignore[union-attr]
                uuid)
            return str(found.name)
        except exceptions.SDKException:
            return ''

    def _each(self, read: collections.abc.Callable[[str], typing.Any],
              uuids: collections.abc.Iterable[str]) -> dict[str, typing.Any]:
        """Call a function for each uuid, several at the same time."""
        uuids = list(uuids)
        with concurrent.futures.ThreadPoolExecutor(_WORKERS) as pool:
            return dict(zip(uuids, progress.each(
                pool.map(read, uuids), len(uuids), 'Placement request'),
                strict=True))

    def get(self, path: str) -> typing.Any:
        """Return the JSON of a resource of Placement.

        :raises errors.AccelError: if Placement refuses, or does not answer
        """
        return self._call('get', path).json()

    def put(self, path: str, body: listing.Json) -> None:
        """Write a resource of Placement.

        :raises errors.AccelError: as for :meth:`get`
        """
        self._call('put', path, json=body)

    def delete(self, path: str) -> None:
        """Delete a resource of Placement.

        :raises errors.AccelError: as for :meth:`get`
        """
        self._call('delete', path)

    def _call(self, method: str, path: str,
              **kwargs: listing.Json) -> typing.Any:
        try:
            answer = getattr(self._sdk.placement, method)(
                path, microversion=queries.MICROVERSION, **kwargs)
        except exceptions.SDKException as error:
            raise errors.AccelError('Placement', f'cannot be queried: {error}',
                                    '') from None
        if answer.status_code == 403:
            raise NotAllowed(
                'Placement', 'does not allow this user to do this',
                'use the credentials of an administrator')
        if answer.status_code >= 400:
            raise Refused(answer.status_code, errors.quote(answer.text))
        return answer

def of(asking: command.Command) -> Cloud:
    """Return the cloud that a command of openstack is about."""
    openstack: typing.Any = asking.app
    found: Cloud = openstack.client_manager.nova_accel
    return found


class NotAllowed(errors.AccelError):
    """Raised if Placement rejects a request of this user."""


class Refused(errors.AccelError):
    """Raised if Placement rejects a request.

    :ivar status: the HTTP status
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__('Placement', f'answers {status}: {text}',
                         'try again' if status == 409 else '')
        self.status = status


def _used_classes(hosts: collections.abc.Iterable[listing.Host],
                  ) -> dict[str, str]:
    """Return the resource classes in use, by uuid of their provider.

    The provider of a class has the allocations of all its devices.
    """
    return {naming.class_provider_uuid(host.uuid, name): name
            for host in hosts for name in {
                units.resource_class for _device, units in host.units
                if units.used}}


def _no_device(name: str) -> errors.AccelError:
    return errors.AccelError(
        f'device {errors.plain(name)}', 'is not known', 'write '
        'HOST/ADDRESS, or the ID that "openstack accel device list --long" '
        'shows')

# SPDX-License-Identifier: Apache-2.0
"""Who has which accelerators: what Placement, libvirt and Nova say of it."""

import collections
import dataclasses
import json
import os
from xml.etree import ElementTree

from tests.integration import steps
from tests.integration.cloud import resources
from tests.integration.stage1 import outer

#: A disk of nothing: of these guests, nobody needs more than that they run.
IMAGE = 'nothing'
_NODE = 'cloud'
#: Where pretend.py has put hostdevs.
_HELD = 'metadata/{*}held/{*}hostdev/{*}source/{*}address'


class Accelerators:
    """What the operator and the tenant do, and what is to be seen then.

    :param cloud: with the compute node of stage 1
    """

    def __init__(self, cloud):
        self._cloud = cloud
        self._compute = cloud.connection.compute
        self._placement = cloud.connection.placement

    # The operator

    def profile(self, name: str, **profile) -> None:
        """Write a profile's file, and see that its time differs."""
        path = self._cloud.profiles / f'{name}.yaml'
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.stat().st_mtime_ns if path.exists() else 0
        # What JSON is, YAML is.
        path.write_text(json.dumps({'name': name, **profile}))
        now = path.stat().st_mtime_ns
        os.utime(path, ns=(now, max(now, before + 1)))

    def flavor(self, name: str, profile: str = '', ram: int = 64, **specs):
        """A flavor whose extra specs are these and its profile."""
        if profile:
            specs['accel:device_profile'] = profile
        return resources.flavor(self._cloud.connection, name, ram, 1, specs)

    def of_gpus(self, count: int, **more):
        """A flavor with a profile of so many GPUs."""
        name = f'gpus-{count}'
        self.profile(name, groups=[
            {'resources': {outer.GPU: 1}, 'count': count, **more}])
        return self.flavor(name, name)

    # The tenant

    def post(self, flavor, name: str = 'server', compute=None, **more):
        """Ask for a server, and wait for nothing.

        :param compute: whom to ask, if not the administrator's
        """
        image = self._cloud.connection.image.find_image(IMAGE)
        return (compute or self._compute).create_server(
            name=name, flavor_id=flavor.id, image_id=image.id,
            networks='none', **more)

    def boot(self, flavor, name: str = 'server', **more):
        """A server that is ACTIVE.

        :raises openstack.exceptions.ResourceFailure: if it gets into ERROR
        """
        return self._cloud.wait(self.post(flavor, name, **more))

    def settle(self, *servers) -> list:
        """Servers once each of them is ACTIVE or in ERROR."""
        def settled():
            now = [self._compute.get_server(server.id) for server in servers]
            return all(server.status in ('ACTIVE', 'ERROR')
                       and not server.task_state for server in now) and now
        return steps.wait('a server that is ACTIVE or in ERROR', settled)

    def delete(self, *servers) -> None:
        """Delete servers, and wait until they and their promises have gone."""
        gone = {server.id for server in servers}
        self._cloud.delete(*servers)
        # Nova's database forgets a server before Placement does.
        steps.wait('Placement without the servers that have gone',
                   lambda: gone.isdisjoint(self.consumers()))

    def delete_all(self) -> None:
        self.delete(*self._compute.servers(all_projects=True, details=False))

    def fault(self, server) -> str:
        """Why a server is in ERROR."""
        return self.shown(server)['fault']['message']

    def shown(self, server) -> dict:
        """A server as nova-api shows it."""
        return self._compute.get(f'/servers/{server.id}').json()['server']

    # libvirt

    def held(self) -> dict[str, list[str]]:
        """By PCI address, the servers whose definitions have it."""
        found = collections.defaultdict(list)
        for uuid in self._domains():
            for address in self.devices(uuid):
                found[address].append(uuid)
        return dict(found)

    def devices(self, server) -> set[str]:
        """The devices of a server: PCI addresses; none without a domain."""
        uuid = getattr(server, 'id', server)
        if uuid not in self._domains():
            return set()
        domain = ElementTree.fromstring(self._cloud.virsh(
            'dumpxml', '--inactive', uuid))
        return {'{:04x}:{:02x}:{:02x}.{:x}'.format(*(
            int(address.get(part), 16)
            for part in ('domain', 'bus', 'slot', 'function')))
            for address in domain.iterfind(_HELD)}

    def _domains(self):
        return self._cloud.virsh('list', '--all', '--uuid').split()

    # Placement

    def inventories(self) -> dict[str, dict[str, int]]:
        """Our providers by name: how much there is of each class."""
        return {name: {
            kind: record['total'] - record['reserved']
            for kind, record in self._ask(
                f'/resource_providers/{uuid}/inventories')[
                    'inventories'].items()}
            for name, uuid in self._providers().items()}

    def allocations(self, server) -> dict[str, dict[str, int]]:
        """What a server, or any consumer, was promised of our providers."""
        uuid = getattr(server, 'id', server)
        allocations = self._ask(f'/allocations/{uuid}')['allocations']
        return {name: allocations[provider]['resources']
                for name, provider in self._providers().items()
                if provider in allocations}

    def promised(self) -> dict[str, dict[str, dict[str, int]]]:
        """By provider and consumer, what is promised of our providers."""
        return {name: {consumer: allocation['resources']
                       for consumer, allocation in self._ask(
                           f'/resource_providers/{uuid}/allocations')[
                               'allocations'].items()}
                for name, uuid in self._providers().items()}

    def consumers(self) -> set[str]:
        """Whom any of our providers is promised."""
        return set().union(*self.promised().values())

    def _providers(self):
        return {provider['name']: provider['uuid'] for provider in self._ask(
            '/resource_providers')['resource_providers']
            if provider['name'].startswith(f'{_NODE}_accel_')}

    def _ask(self, path):
        answer = self._placement.get(path)
        assert answer.status_code == 200, f'{path}: {answer.text}'
        return answer.json()

    # All three

    def check(self, server, *kinds: str) -> set[str]:
        """See that a server has the devices that it was promised.

        :param kinds: the class of each
        :returns: their PCI addresses
        """
        inventories = self.inventories()
        devices = self.devices(server)
        expected = {_provider(address): {
            kind: 1 for kind in inventories.get(_provider(address), {})}
            for address in devices}
        for kind, number in collections.Counter(kinds).items():
            expected[_provider(kind)] = {kind: number}
        units = collections.Counter(
            kind for address in devices for kind in expected[_provider(
                address)])
        assert units == collections.Counter(map(unit, kinds)), (
            f'server {server.name} has {sorted(devices)} in libvirt, and '
            f'should have {kinds}')
        assert self.allocations(server) == expected, (
            f'server {server.name} has {sorted(devices)} in libvirt, and '
            'other allocations in Placement')
        return devices

    def findings(self) -> list:
        """What "nova-accel host check" finds that does not agree."""
        try:
            said = self._cloud.run(*outer.through(
                'nova-accel', '-q', 'host', 'check', '-f', 'json'))
        except steps.Failure as failure:
            # It says 1 where there is any finding, and says which.
            return [str(failure)]
        return json.loads(said)

    def check_nothing_left(self) -> None:
        """See that nobody has anything, once no server is there."""
        assert self.held() == {}, 'domains still hold devices'
        assert self.consumers() == set(), (
            'Placement has promised devices to servers that have gone')
        assert self.findings() == []


@dataclasses.dataclass(frozen=True)
class Before:
    """All that is so, to be compared with what is so later."""

    held: dict
    promised: dict
    inventories: dict

    @classmethod
    def of(cls, accelerators: Accelerators) -> 'Before':
        return cls(accelerators.held(), accelerators.promised(),
                   accelerators.inventories())


def unit(kind: str) -> str:
    """The class in which a device's provider counts its units."""
    return f'CUSTOM_UNIT_OF_{kind}'


def _provider(of: str) -> str:
    return f'{_NODE}_accel_{of}'

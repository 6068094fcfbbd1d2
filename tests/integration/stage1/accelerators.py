# SPDX-License-Identifier: Apache-2.0
"""Which server has which device, according to Placement, libvirt and Nova."""

import collections
import dataclasses
import json
import os
from xml.etree import ElementTree

from tests.integration import steps
from tests.integration.cloud import resources
from tests.integration.stage1 import outer

#: An empty disk: the guests of stage 1 only have to run.
IMAGE = 'nothing'
_NODE = 'cloud'
#: Where pretend.py stores the hostdevs in a domain's XML.
_HELD = 'metadata/{*}held/{*}hostdev/{*}source/{*}address'


class Accelerators:
    """Actions of operator and tenant, and views of the resulting state.

    :param cloud: a cloud with the compute node of stage 1
    """

    def __init__(self, cloud):
        self._cloud = cloud
        self._compute = cloud.connection.compute
        self._placement = cloud.connection.placement

    # The operator

    def profile(self, name: str, **profile) -> None:
        """Write a profile's file, always with a new modification time."""
        path = self._cloud.profiles / f'{name}.yaml'
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.stat().st_mtime_ns if path.exists() else 0
        # JSON is valid YAML.
        path.write_text(json.dumps({'name': name, **profile}))
        now = path.stat().st_mtime_ns
        os.utime(path, ns=(now, max(now, before + 1)))

    def flavor(self, name: str, profile: str = '', ram: int = 64, **specs):
        """Return a flavor with these extra specs and a profile."""
        if profile:
            specs['accel:device_profile'] = profile
        return resources.flavor(self._cloud.connection, name, ram, 1, specs)

    def of_gpus(self, count: int, **more):
        """Return a flavor whose profile requests ``count`` GPUs."""
        name = f'gpus-{count}'
        self.profile(name, groups=[
            {'resources': {outer.GPU: 1}, 'count': count, **more}])
        return self.flavor(name, name)

    # The tenant

    def post(self, flavor, name: str = 'server', compute=None, **more):
        """Create a server without waiting for it.

        :param compute: the compute client; the administrator's by default
        """
        image = self._cloud.connection.image.find_image(IMAGE)
        return (compute or self._compute).create_server(
            name=name, flavor_id=flavor.id, image_id=image.id,
            networks='none', **more)

    def boot(self, flavor, name: str = 'server', **more):
        """Create a server and wait until it is ACTIVE.

        :raises openstack.exceptions.ResourceFailure: if it goes to ERROR
        """
        return self._cloud.wait(self.post(flavor, name, **more))

    def settle(self, *servers) -> list:
        """Wait until each server is ACTIVE or in ERROR; return them."""
        def settled():
            now = [self._compute.get_server(server.id) for server in servers]
            return all(server.status in ('ACTIVE', 'ERROR')
                       and not server.task_state for server in now) and now
        return steps.wait('a server that is ACTIVE or in ERROR', settled)

    def delete(self, *servers) -> None:
        """Delete servers; wait until they and their allocations are gone."""
        gone = {server.id for server in servers}
        self._cloud.delete(*servers)
        # Nova deletes the server's record before its allocations.
        steps.wait('the removal of allocations in Placement',
                   lambda: gone.isdisjoint(self.consumers()))

    def delete_all(self) -> None:
        self.delete(*self._compute.servers(all_projects=True, details=False))

    def fault(self, server) -> str:
        """Return the fault message of a server in ERROR."""
        return self.shown(server)['fault']['message']

    def shown(self, server) -> dict:
        """Return a server as nova-api shows it."""
        return self._compute.get(f'/servers/{server.id}').json()['server']

    # libvirt

    def held(self) -> dict[str, list[str]]:
        """Map each PCI address to the servers whose domains have it."""
        found = collections.defaultdict(list)
        for uuid in self._domains():
            for address in self.devices(uuid):
                found[address].append(uuid)
        return dict(found)

    def devices(self, server) -> set[str]:
        """Return the PCI addresses in a server's domain, if it has one."""
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
        """Map each device provider to its capacity by resource class."""
        return {name: {
            kind: record['total'] - record['reserved']
            for kind, record in self._ask(
                f'/resource_providers/{uuid}/inventories')[
                    'inventories'].items()}
            for name, uuid in self._providers().items()}

    def allocations(self, server) -> dict[str, dict[str, int]]:
        """Return a consumer's allocations from the device providers.

        :param server: a server, or a consumer's UUID
        """
        uuid = getattr(server, 'id', server)
        allocations = self._ask(f'/allocations/{uuid}')['allocations']
        return {name: allocations[provider]['resources']
                for name, provider in self._providers().items()
                if provider in allocations}

    def promised(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return all allocations by device provider and consumer."""
        return {name: {consumer: allocation['resources']
                       for consumer, allocation in self._ask(
                           f'/resource_providers/{uuid}/allocations')[
                               'allocations'].items()}
                for name, uuid in self._providers().items()}

    def consumers(self) -> set[str]:
        """Return all consumers with allocations from device providers."""
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
        """Check that a server's devices match its allocations.

        :param kinds: the resource class of each expected device
        :returns: the devices' PCI addresses
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
            f'server {server.name} has {sorted(devices)} in libvirt, but '
            f'{kinds} were requested')
        assert self.allocations(server) == expected, (
            f'server {server.name} has {sorted(devices)} in libvirt, but '
            'other allocations in Placement')
        return devices

    def findings(self) -> list:
        """Return the inconsistencies that "nova-accel host check" finds."""
        try:
            said = self._cloud.run(*outer.through(
                'nova-accel', '-q', 'host', 'check', '-f', 'json'))
        except steps.Failure as failure:
            # With findings, the command prints them and exits with 1.
            return [str(failure)]
        return json.loads(said)

    def check_nothing_left(self) -> None:
        """Check that no devices are in use when no servers exist."""
        assert self.held() == {}, 'domains still have devices'
        assert self.consumers() == set(), (
            'Placement still has allocations of deleted servers')
        assert self.findings() == []


@dataclasses.dataclass(frozen=True)
class Before:
    """A snapshot of the state, to compare with a later one."""

    held: dict
    promised: dict
    inventories: dict

    @classmethod
    def of(cls, accelerators: Accelerators) -> 'Before':
        return cls(accelerators.held(), accelerators.promised(),
                   accelerators.inventories())


def unit(kind: str) -> str:
    """Return the resource class of the units of a device's provider."""
    return f'CUSTOM_UNIT_OF_{kind}'


def _provider(of: str) -> str:
    return f'{_NODE}_accel_{of}'

# SPDX-License-Identifier: Apache-2.0
"""A tenant that creates servers with devices and checks the devices."""

import collections
import collections.abc

import yaml

from tests.integration import place
from tests.integration.cloud import resources as cloud_resources
from tests.integration.machine import node
from tests.integration.nested import guest as guests
from tests.integration.nested import inside
from tests.integration.nested import ledger
from tests.integration.nested import patience
from tests.integration.nested import told

#: The name of all servers.
_NAME = 'nested'
#: MiB of a guest's memory.
_MEMORY = 96

#: Keys of the document, with those of the metadata.
_KEYS = {'path': 'path', 'group': 'group', 'resourceClass': 'class',
         'provider': 'provider'}

#: Temporary server states.
PASSING = frozenset({'BUILD', 'REBUILD', 'RESIZE', 'MIGRATING', 'REBOOT',
                      'HARD_REBOOT', 'REVERT_RESIZE'})


def project(cloud, name: str) -> str:
    """Make a project in which the administrator has a role."""
    keystone = cloud.connection.identity
    found = keystone.find_project(name) or keystone.create_project(
        name=name, domain_id='default')
    keystone.assign_project_role_to_user(
        found, keystone.find_user('admin'), keystone.find_role('admin'))
    return found.name


class Tenant:
    """Profiles, flavors and servers.

    :param cloud: tests.integration.cloud.cloud.Cloud
    :param machines: the nested machines by host name
    :param project: the name of a project in which the administrator has a role
    """

    def __init__(self, cloud, machines: collections.abc.Mapping,
                 project: str = 'admin'):
        self.cloud = cloud
        self.compute = cloud.connection.connect_as(
            project_name=project).compute
        self.ledger = ledger.PlacementClient(cloud.connection)
        self.machines = dict(machines)
        self._flavors: dict[str, str] = {}

    def inside(self, host: str) -> inside.Inside:
        return inside.Inside(self.machines[host])

    def flavor(self, **resources: int) -> str:
        """Return the id of a flavor whose profile requests these units."""
        name = '-'.join(f'{resource_class.lower()}-{amount}' for
                        resource_class, amount in resources.items()) or 'plain'
        if name not in self._flavors:
            self._flavors[name] = self._make_flavor(name, resources)
        return self._flavors[name]

    def _make_flavor(self, name, resources) -> str:
        if not resources:
            return self.flavor_with(name)
        return self.flavor_of(name, *(
            {'resources': {resource_class: amount}}
            for resource_class, amount in resources.items()))

    def flavor_of(self, name: str, *groups: dict) -> str:
        """Return the id of a new flavor whose profile has these groups."""
        place.make(self.cloud.profiles)
        (self.cloud.profiles / f'{name}.yaml').write_text(yaml.safe_dump({
            'name': name, 'groups': list(groups)}))
        return self.flavor_with(name, **{'accel:device_profile': name})

    def flavor_with(self, name: str, **specs: str) -> str:
        """Return the id of a new flavor with these extra specs."""
        return cloud_resources.flavor(
            self.cloud.connection, f'nested.{name}', _MEMORY, 1,
            {'hw_rng:allowed': 'false', **specs}, disk=0).id

    def boot(self, host: str | None = None, status: str = 'ACTIVE',
             flavor: str | None = None, image: str = node.IMAGE,
             config_drive: bool = False, **resources: int) -> 'Server':
        """Create a server; if it becomes ACTIVE, wait until its guest is up.

        :param host: the requested host; the scheduler's choice by default
        :param status: the expected final status
        :param flavor: the id of a flavor; by default, a flavor that requests
            the resources
        :param image: its name
        :param config_drive: whether it gets one
        """
        more = {'host': host} if host else {}
        found = self.cloud.connection.image.find_image(
            image, ignore_missing=False)
        created = self.compute.create_server(
            name=_NAME, flavor_id=flavor or self.flavor(**resources),
            image_id=found.id, networks='none', config_drive=config_drive,
            **more)
        return self._come_up(created.id, status, image == node.IMAGE)

    def boot_by_hand(self, host: str, **resources: int) -> 'Server':
        """Create a server on a host with the command ``openstack``."""
        created = self.cloud.openstack(
            'server', 'create', '--flavor', self.flavor(**resources),
            '--image', node.IMAGE, '--nic', 'none', '--host', host, _NAME)
        return self._come_up(created['id'], 'ACTIVE')

    def _come_up(self, uuid, status, speaks=True) -> 'Server':
        server = Server(self, uuid)
        server.wait(status)
        if status == 'ACTIVE' and speaks:
            server.guest()
        return server

    def service(self, host: str):
        """Return the nova-compute of a host, None while it is unusable.

        When libvirt is back, Nova enables the service before Placement loses
        the disabled trait.
        """
        return next((
            service for service in self.compute.services(
                binary='nova-compute', host=host)
            if (service.status, service.state) == ('enabled', 'up')
            and not self.ledger.is_disabled(host)), None)


class Server:
    """A server of the tenant."""

    def __init__(self, tenant: Tenant, uuid: str):
        self._tenant = tenant
        self.id = uuid

    @property
    def view(self):
        """The current openstack.compute.v2.server.Server."""
        return self._tenant.compute.get_server(self.id)

    @property
    def host(self) -> str:
        return self.view.compute_host

    def act(self, action: str, *args, status: str = 'ACTIVE',
            meanwhile: tuple[str, ...] = (), **kwargs) -> None:
        """Run a server action and wait for the resulting status.

        :param action: the name of an openstacksdk method
        :param meanwhile: statuses that the server may have until then
        """
        getattr(self._tenant.compute, action)(self.id, *args, **kwargs)
        self.wait(status, meanwhile)

    def wait(self, status: str, meanwhile: tuple[str, ...] = ()) -> None:
        """Wait for a status without a task state.

        :param meanwhile: statuses that the server may have until then
        :raises AssertionError: if the server gets another status
        """
        def ask():
            view = self.view
            if view.task_state is None and view.status not in {
                    status, *meanwhile, *PASSING}:
                raise AssertionError(
                    f'server {self.id} is {view.status}, not {status}: '
                    f'{view.fault}')
            return view.task_state is None and view.status == status
        patience.until(f'server {self.id} is {status}', ask)

    def delete(self) -> None:
        self._tenant.compute.delete_server(self.id, ignore_missing=True)
        patience.until(
            f'server {self.id} is gone', lambda: not
            self._tenant.compute.find_server(self.id, ignore_missing=True))

    def hear(self) -> guests.Guest:
        """Return the guest's current state, which may still be booting."""
        return guests.Guest(self._tenant.inside(self.host).console(self.id))

    def guest(self) -> guests.Guest:
        """Wait until the guest is up, and return its state."""
        def ask():
            heard = self.hear()
            return heard.is_ready and heard
        return patience.until(f'the guest of {self.id} is up', ask)

    def restarted(self, boot: str) -> guests.Guest:
        """Wait until the guest is up after a reboot.

        :param boot: the boot id before the reboot
        """
        def ask():
            heard = self.hear()
            return heard.is_ready and heard.boot != boot and heard
        return patience.until(f'the guest of {self.id} is up again', ask)

    def lives(self) -> None:
        """Check that the guest is running."""
        before = self.hear().alive
        patience.until(f'the guest of {self.id} runs',
                       lambda: self.hear().alive > before)

    def has(self, **resources: int) -> list[str]:
        """Check that a server has exactly these devices, in all components.

        - Placement has allocations from the devices' cards.
        - The running domain and its definition have the hostdevs.
        - On the host, PCI functions are bound to vfio-pci.
        - The guest finds these devices. Their registers have the right serial
          numbers and no data of an earlier server.
        - The metadata service and the document in the guest tell where each
          device is, as the guest's kernel does.

        :param resources: the expected units by resource class
        :returns: PCI addresses and mdev UUIDs of the devices, sorted
        """
        name = self.host
        host = self._tenant.inside(name)
        classes, cards = self._tenant.ledger.promised(self.id, name)
        assert classes == collections.Counter(resources)
        held = host.hostdevs(self.id)
        assert held == host.hostdevs(self.id, defined=True)
        functions, mdevs = host.look()
        given = [mdevs.get(address) or functions[address] for address in held]
        assert cards == collections.Counter(
            functions[device.parent].card if isinstance(device, inside.Mdev)
            else device.card for device in given)
        assert {device.driver for device in given
                if isinstance(device, inside.Function)} <= {'vfio-pci'}
        expected = sorted(_seen(device, functions) for device in given)
        patience.becomes(f'devices in the guest of {self.id}',
                         lambda: self.guest().devices, expected)
        self.is_told(len(held))
        return sorted(held)

    def console(self) -> str:
        return self._tenant.inside(self.host).console(self.id)

    def on_service(self) -> dict[str, dict[str, str]]:
        """Return the tags of its devices in the metadata service."""
        return told.metadata(self._tenant.cloud, self.view)

    def on_config_drive(self) -> dict[str, dict[str, str]]:
        """Return the tags of its devices on its config drive."""
        return told.config_drive(self._tenant.inside(self.host), self.id)

    def is_told(self, count: int) -> None:
        """Check what the guest is told of its devices.

        :param count: how many it has

        A guest that was resumed or has moved starts a new console, without
        the document.
        """
        guest = self.guest()
        tags = self.on_service()
        assert len(tags) == count
        assert {address: (found['path'], int(found.get('numa_cell', -1)))
                for address, found in tags.items()} == {
            address: guest.places[address] for address in tags}
        if guest.document:
            found = told.document(guest)
            assert found.keys() == tags.keys()
            # The document of a device that can move has no provider.
            for address, facts in found.items():
                assert {key: tags[address][tag] for key, tag in _KEYS.items()
                        if key in facts}.items() <= facts.items()
                assert {'path', 'group', 'resourceClass'} <= facts.keys()


def _seen(device: inside.Function | inside.Mdev, functions,
          ) -> guests.Accelerator:
    """Return how a guest sees a device of its host.

    A VF's configuration space has no ids. vfio-pci adds those that the host's
    kernel has for the VF. drivers/nvidia.c gives an mdev its parent's ids.
    """
    if isinstance(device, inside.Mdev):
        ids = functions[device.parent].ids
        return guests.Accelerator(ids, ids, 0,
                                  int(device.type.rsplit('-', 1)[1]))
    return guests.Accelerator(device.ids, device.ids, device.number,
                              device.serial)

# SPDX-License-Identifier: Apache-2.0
"""Somebody who has servers with devices, and looks closely at them."""

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

#: What its servers are called.
_NAME = 'nested'
#: MiB of a guest's.
_MEMORY = 96

#: States that pass by themselves.
_PASSING = frozenset({'BUILD', 'REBUILD', 'RESIZE', 'MIGRATING', 'REBOOT',
                      'HARD_REBOOT', 'REVERT_RESIZE'})


class Tenant:
    """Profiles, flavors and servers.

    :param cloud: tests.integration.cloud's
    :param machines: the nested machines, by the name of their host
    """

    def __init__(self, cloud, machines: collections.abc.Mapping):
        self.cloud = cloud
        self.compute = cloud.connection.compute
        self.ledger = ledger.PlacementClient(cloud.connection)
        self.machines = dict(machines)
        self._flavors: dict[str, str] = {}

    def inside(self, host: str) -> inside.Inside:
        return inside.Inside(self.machines[host])

    def flavor(self, **resources: int) -> str:
        """The id of a flavor whose profile asks for units of classes."""
        name = '-'.join(f'{resource_class.lower()}-{amount}' for
                        resource_class, amount in resources.items()) or 'plain'
        if name not in self._flavors:
            self._flavors[name] = self._make_flavor(name, resources)
        return self._flavors[name]

    def _make_flavor(self, name, resources) -> str:
        if not resources:
            return self.flavor_with(name)
        self._make_profile(name, resources)
        return self.flavor_with(name, **{'accel:device_profile': name})

    def flavor_with(self, name: str, **specs: str) -> str:
        """The id of a new flavor with these extra specs."""
        return cloud_resources.flavor(
            self.cloud.connection, f'nested.{name}', _MEMORY, 1,
            {'hw_rng:allowed': 'false', **specs}, disk=0).id

    def _make_profile(self, name, resources):
        place.make(self.cloud.profiles)
        (self.cloud.profiles / f'{name}.yaml').write_text(yaml.safe_dump({
            'name': name, 'groups': [
                {'resources': {resource_class: amount}}
                for resource_class, amount in resources.items()]}))

    def boot(self, host: str | None = None, status: str = 'ACTIVE',
             flavor: str | None = None, **resources: int) -> 'Server':
        """A new server, and in the end its guest is up.

        :param host: where; otherwise the scheduler says it
        :param status: what it comes to
        :param flavor: the id of a flavor; otherwise one for the resources
        """
        more = {'host': host} if host else {}
        image = self.cloud.connection.image.find_image(
            node.IMAGE, ignore_missing=False)
        created = self.compute.create_server(
            name=_NAME, flavor_id=flavor or self.flavor(**resources),
            image_id=image.id, networks='none', **more)
        return self._come_up(created.id, status)

    def boot_by_hand(self, host: str, **resources: int) -> 'Server':
        """The same on a host, as one types it: with the ordinary client."""
        created = self.cloud.openstack(
            'server', 'create', '--flavor', self.flavor(**resources),
            '--image', node.IMAGE, '--nic', 'none', '--host', host, _NAME)
        return self._come_up(created['id'], 'ACTIVE')

    def _come_up(self, uuid, status) -> 'Server':
        server = Server(self, uuid)
        server.wait(status)
        if status == 'ACTIVE':
            server.guest()
        return server

    def service(self, host: str):
        """nova-compute as the API has it: None while it cannot be used.

        Of one that libvirt has come back to, Placement hears later.
        """
        return next((
            service for service in self.compute.services(
                binary='nova-compute', host=host)
            if (service.status, service.state) == ('enabled', 'up')
            and not self.ledger.is_disabled(host)), None)


class Server:
    """A server of a tenant's."""

    def __init__(self, tenant: Tenant, uuid: str):
        self._tenant = tenant
        self.id = uuid

    @property
    def view(self):
        """openstack.compute.v2.server.Server as it is now."""
        return self._tenant.compute.get_server(self.id)

    @property
    def host(self) -> str:
        return self.view.compute_host

    def act(self, action: str, *args, status: str = 'ACTIVE',
            meanwhile: tuple[str, ...] = (), **kwargs) -> None:
        """Something that the API does to servers, and what it comes to.

        :param action: a method's name, as openstacksdk has it
        """
        getattr(self._tenant.compute, action)(self.id, *args, **kwargs)
        self.wait(status, meanwhile)

    def wait(self, status: str, meanwhile: tuple[str, ...] = ()) -> None:
        """Until it is so, and nothing is going on any more.

        :param meanwhile: what it may be until then
        :raises AssertionError: if it comes to something else
        """
        def ask():
            view = self.view
            if view.task_state is None and view.status not in {
                    status, *meanwhile, *_PASSING}:
                raise AssertionError(
                    f'server {self.id} is {view.status}, and not {status}: '
                    f'{view.fault}')
            return view.task_state is None and view.status == status
        patience.until(f'server {self.id} is {status}', ask)

    def delete(self) -> None:
        self._tenant.compute.delete_server(self.id, ignore_missing=True)
        patience.until(
            f'server {self.id} is gone', lambda: not
            self._tenant.compute.find_server(self.id, ignore_missing=True))

    def hear(self) -> guests.Guest:
        """Its guest, as far as it has come."""
        return guests.Guest(self._tenant.inside(self.host).console(self.id))

    def guest(self) -> guests.Guest:
        """Its guest, which is up."""
        def ask():
            heard = self.hear()
            return heard.is_ready and heard
        return patience.until(f'the guest of {self.id} is up', ask)

    def restarted(self, boot: str) -> guests.Guest:
        """Its guest, which is up after another boot than this one."""
        def ask():
            heard = self.hear()
            return heard.is_ready and heard.boot != boot and heard
        return patience.until(f'the guest of {self.id} is up again', ask)

    def lives(self) -> None:
        """See its guest do something from now on."""
        before = self.hear().alive
        patience.until(f'the guest of {self.id} lives',
                       lambda: self.hear().alive > before)

    def has(self, **resources: int) -> list[str]:
        """See that it has what it was promised, wherever one can look.

        Placement names cards, libvirt gives the guest functions of these
        cards, vfio has them, and the guest finds such devices, and reads in
        their registers that they are the very ones, with nothing of those who
        had them before.

        :param resources: units by class that it was promised
        :returns: what it has: PCI addresses and uuids of mdevs, in order
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
        patience.becomes(f'what the guest of {self.id} sees',
                         lambda: self.guest().devices, expected)
        return sorted(held)


def _seen(device: inside.Function | inside.Mdev, functions,
          ) -> guests.Accelerator:
    """As what a guest sees something of its machine's.

    A virtual function has no ids of its own in configuration space: vfio-pci
    puts those there that the machine's kernel has for it. drivers/nvidia.c
    gives an mdev its parent's.
    """
    if isinstance(device, inside.Mdev):
        ids = functions[device.parent].ids
        return guests.Accelerator(ids, ids, 0,
                                  int(device.type.rsplit('-', 1)[1]))
    return guests.Accelerator(device.ids, device.ids, device.number,
                              device.serial)

# SPDX-License-Identifier: Apache-2.0
"""The base of the matrix: two hosts with devices, and checks of servers."""

import collections
import pathlib

import fixtures
from lxml import etree
from nova import objects
from nova.compute import vm_states
import nova.conf
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.core import naming
from tests.functional import cloud
from tests.functional.matrix import kinds

CONF = nova.conf.CONF

HOSTS = ('compute1', 'compute2')

EVERY = (fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
         | fakelibvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE)


def operation(*names, outcome='yes'):
    """Name the rows of the table that a test covers, and their content."""
    def named(test):
        test.operations = names
        test.outcome = outcome
        return test
    return named


def source(element):
    """Return the mdev UUID or PCI address of a hostdev element."""
    address = element.find('source/address')
    return address.get('uuid') or '{}:{}:{}.{}'.format(*(
        address.get(part).removeprefix('0x')
        for part in ('domain', 'bus', 'slot', 'function')))


class SavedMemory(fixtures.Fixture):
    """Make the fake libvirt keep the saved state of a redefined domain."""

    def _setUp(self):
        define = fakelibvirt.Connection.defineXML

        def define_again(connection, xml):
            name = etree.fromstring(xml).findtext('name')
            before = connection._vms.get(name)
            domain = define(connection, xml)
            if before is not None:
                domain.saved = before.saved
            return domain

        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Connection.defineXML', define_again))


class NeverShort(fixtures.Fixture):
    """Check that each server has all its devices when it becomes ACTIVE.

    :param held: function that returns the hostdev elements of a server; it
        gets the server's UUID and host
    """

    def __init__(self, held):
        super().__init__()
        self._held = held
        self.found = []

    def _setUp(self):
        save = objects.Instance.save

        def save_and_look(instance, *args, **kwargs):
            changes = instance.obj_what_changed()
            save(instance, *args, **kwargs)
            if changes & {'vm_state', 'task_state', 'host'}:
                self._look(instance)

        self.useFixture(fixtures.MonkeyPatch(
            'nova.objects.Instance.save', save_and_look))

    def _look(self, instance):
        if instance.vm_state != vm_states.ACTIVE or instance.task_state:
            return
        promised = sum(
            int(amount) for key, amount in instance.flavor.extra_specs.items()
            if key.startswith('resources_ACCEL'))
        held = self._held(instance.uuid, instance.host)
        if len(held) != promised:
            self.found.append((instance.uuid, promised, held))


class Matrix(cloud.Cloud):
    """Base of the tests with one kind of device."""

    kind: kinds.Kind
    CELLS = {}

    def setUp(self):
        super().setUp()
        self.useFixture(SavedMemory())
        self.flags(device_spec=self.kind.entries(), group='nova_accel')
        self.machines = {host: self.machine() for host in HOSTS}
        self.connections = {}
        for host in HOSTS:
            self.start_compute(host, cell_name=self.CELLS.get(host))
            self.connections[host] = self.connection(host)
        self.flavors = {None: self.flavor()}
        for name, groups in self.kind.profiles.items():
            self.write_profile(name, groups=groups)
            self.flavors[name] = self.flavor(name)
        short = self.useFixture(NeverShort(self.elements_of))
        self.addCleanup(lambda: self.assertEqual([], short.found))

    def machine(self):
        """Return the directory of a new machine that can create mdevs."""
        path = self.directory_host(self.kind.recording)
        devices = [path / 'sys/bus/pci/devices' / address
                   for address in self.kind.alike]
        for device in devices[1:]:
            for fact in ('vendor', 'device', 'revision', 'subsystem_vendor',
                         'subsystem_device'):
                (device / fact).write_text((devices[0] / fact).read_text())
        return path

    def start_compute(self, hostname='compute1', *args, **kwargs):
        # A nova-compute reads this option only when it starts.
        self.flags(sysfs_root=f'{self.machines[hostname]}/sys',
                   group='nova_accel')
        return super().start_compute(hostname, *args, **kwargs)

    # Actions of the tenant

    def server(self, profile='small', host='compute1', **more):
        """Boot a server, and check that it has its devices."""
        server = self.boot(self.flavors[profile], host=host, **more)
        self.make_disk(server)
        self.assertHas(server, profile, host)
        return server

    def second_server(self):
        """Boot a server with other devices than the first free ones."""
        first = self.server()
        server = self.server()
        self._delete_server(first)
        return server

    def make_disk(self, server):
        """Create the root disk, which Nova's harness does not create."""
        directory = pathlib.Path(CONF.instances_path, server['id'])
        directory.mkdir(exist_ok=True)
        directory.joinpath('disk').touch()

    def act(self, server, action, status='ACTIVE'):
        """Perform an action on a server, and wait until it is done."""
        self.api.post_server_action(server['id'], action)
        return self._wait_for_server_parameter(
            server, {'status': status, 'OS-EXT-STS:task_state': None})

    # Actions of the operator

    def down(self, host):
        """Stop a host."""
        self.api.put_service(self.computes[host].service_ref.uuid,
                             {'forced_down': True})
        self.computes[host].stop()

    def up(self, host):
        """Start a host again, with its domains."""
        self.restart_compute_service(host)
        self.api.put_service(self.computes[host].service_ref.uuid,
                             {'forced_down': False})

    def restart(self):
        for host in HOSTS:
            self.restart_compute_service(host)

    # Observations

    def domains(self, host):
        """Return the parsed XML of each domain, by UUID."""
        return {domain.UUIDString(): etree.fromstring(domain.XMLDesc(0))
                for domain in self.connections[host].listAllDomains(EVERY)}

    def elements_of(self, uuid, host):
        """Return the hostdev aliases of one domain, by source address."""
        domain = self.domains(host).get(uuid)
        return {} if domain is None else {
            source(element): element.find('alias').get('name')
            for element in domain.findall('./devices/hostdev')}

    def mdevs(self, host):
        """Return the parent function of each mdev of a host, by UUID."""
        made = self.machines[host] / 'sys/bus/mdev/devices'
        return {path.name: path.resolve().parts[-5]
                for path in made.glob('*')}

    def taken(self, host):
        """Return the hostdevs of domains, and the usages in Placement."""
        defined = {uuid: elements for uuid in self.domains(host)
                   if (elements := self.elements_of(uuid, host))}
        promised = {name: used for name, provider
                    in self.providers(host).items()
                    if any((used := self._get_provider_usages(
                        provider['uuid'])).values())}
        return defined, promised

    def host_of(self, server):
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']

    # Assertions

    def assertHas(self, server, profile, host):
        """Check that a server has its devices in Placement and libvirt."""
        allocated = self.allocated(server)
        promised = collections.Counter()
        for resources in allocated.values():
            promised.update(resources)
        self.assertEqual(self.kind.promise(profile), promised)
        self.assertDefined(server, allocated, host)

    def assertDefined(self, server, allocated, host):
        """Check that a domain has exactly the hostdevs of its allocations."""
        names = {provider['uuid']: name
                 for name, provider in self.providers(host).items()}
        elements = self.elements_of(server['id'], host)
        parents = self.mdevs(host)
        served = collections.Counter()
        for named, alias in elements.items():
            name = names[naming.parse_alias(alias)[1]]
            device = self.kind.device(parents.get(named, named))
            self.assertEqual(f'{host}_accel_{device}', name)
            served[name] += 1
        self.assertEqual({name: sum(resources.values())
                          for name, resources in allocated.items()}, served)
        self.assertEqual(len(elements), len(set(elements.values())))

    def assertNothingOn(self, *hosts):
        self.assertEqual([({}, {})] * len(hosts),
                         [self.taken(host) for host in hosts])

    def assertTaken(self, host, profile='large'):
        """Check that a new server with the profile does not fit on a host."""
        rival = self.boot(self.flavors[profile], host=host, state='ERROR')
        self.assertIn('No valid host', rival['fault']['message'])
        self._delete_server(rival)

    def assertFree(self, host):
        """Check that a new server can get all devices of a host."""
        self.assertNothingOn(host)
        self._run_periodics()
        self.assertEqual({}, self.mdevs(host))
        self._delete_server(self.server('large', host))

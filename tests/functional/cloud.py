# SPDX-License-Identifier: Apache-2.0
"""A small cloud in one process: Nova's functional harness with nova_accel.

nova-api, nova-scheduler, nova-conductor, nova-compute and Placement are real.
libvirt is Nova's fake. The hardware is a recording of a host's sysfs.
"""

import collections
import contextlib
import os
import pathlib
import sys
import time
import types

import fixtures
from nova import context
from nova import objects
import nova.conf
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base
import yaml

from nova_accel import conf
from nova_accel import nova_claims
from nova_accel.cmd import check
from nova_accel.compute.reporting import audit
from nova_accel.core import naming
from nova_accel.core.placement import providers
from nova_accel.core.placement import queries
from nova_accel.host import background
from nova_accel.host import libvirt_xml
from nova_accel.host import reader
from nova_accel.host import tree
from tests.functional import hypervisor
from tests.functional import pace

CONF = nova.conf.CONF

ROOT = pathlib.Path(__file__).parent.parent.parent
DATA = ROOT / 'tests' / 'data'

#: A host with eight H100: four per NUMA node, two behind each PCIe switch.
EIGHT_GPUS = DATA / 'hosts' / 'l1-8gpu.json'
GPU_SPEC = ('{"vendor_id": "10de", "product_id": "2330", '
            '"resource_class": "CUSTOM_GPU_H100", "traits": "CUSTOM_NVLINK"}')
GPU = 'CUSTOM_GPU_H100'

#: Four of these GPUs, to save time: one pair behind one switch on each NUMA
#: node. PAIR_SPEC is one of these pairs.
FOUR_SPEC = GPU_SPEC[:-1] + ', "address": {"bus": "[48][34]"}}'
PAIR_SPEC = GPU_SPEC[:-1] + ', "address": {"bus": "4[34]"}}'

#: A host with an A100 with four VFs, each of which supports one mdev, and with
#: VFs of a QAT card.
A100 = DATA / 'hosts' / 'l1.json'
VGPU_SPEC = ('{"vendor_id": "10de", "product_id": "20b0", '
             '"mdev_type": "nvidia-471"}')
VGPU = 'VGPU'

#: The VFs of two cards of that host, two and four VFs, in one resource class.
VF_SPECS = ['{"vendor_id": "8086", "product_id": "37c9", '
            '"resource_class": "CUSTOM_VF"}',
            '{"address": "0000:44:00.*", "resource_class": "CUSTOM_VF"}']

#: Factor for the timeouts of Nova's harness, which are short for a busy
#: machine.
PATIENCE = 6

IMAGE = '155d900f-4e14-4e4c-a73d-069cbf4541e6'

#: The traits of a drained provider.
DRAIN = ('CUSTOM_NOVA_ACCEL_DRAINED',
         'CUSTOM_NOVA_ACCEL_DRAIN_20261127T000000Z_FAN')


class Cloud(base.ServersTestBase):
    """Base of test cases with computes that offer the recorded GPUs."""

    ADDITIONAL_FILTERS = ['NUMATopologyFilter', 'AcceleratorFilter']
    ADMIN_API = True
    #: Entries of device_spec. Some test cases need more devices.
    DEVICE_SPEC = (FOUR_SPEC,)
    microversion = 'latest'

    def setUp(self):
        self.useFixture(pace.Pace())
        conf.register_opts(CONF)
        self.profiles = self.useFixture(fixtures.TempDir()).path
        self.flags(profile_dirs=[self.profiles], group='nova_accel')
        # It has the claims that outlive a nova-compute, and bitstreams.
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.flags(state_path=self.state_path)
        self.flags(sysfs_root=str(EIGHT_GPUS), group='nova_accel',
                   device_spec=list(self.DEVICE_SPEC))
        self.flags(available_filters=[
            'nova.scheduler.filters.all_filters',
            'nova_accel.scheduler.filter.AcceleratorFilter'],
            group='filter_scheduler')
        # Nova's fixtures expect the file in Nova's source tree. Nova's wheel
        # installs it here.
        self.flags(api_paste_config=f'{sys.prefix}/etc/nova/api-paste.ini',
                   group='wsgi')
        # Only devices may run out.
        self.flags(instances=-1, cores=-1, ram=-1, group='quota')
        #: The sysfs_root that each nova-compute started with.
        self.sysfs_roots = {}
        super().setUp()
        self.useFixture(hypervisor.Hostdevs())
        self.useFixture(hypervisor.Mdevs())
        self.migration = self.useFixture(
            hypervisor.Migration(self.computes))
        # A resize calls these two functions, which need real disks.
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.LibvirtDriver._get_instance_disk_info',
            return_value=[]))
        self.useFixture(fixtures.MockPatch('os.rename'))

    def _setup_compute_service(self):
        self.flags(compute_driver='accel.LibvirtDriver')

    def add_weigher(self):
        """Let AcceleratorWeigher weigh hosts as well, before setUp()."""
        self.flags(weight_classes=[
            'nova.scheduler.weights.all_weighers',
            'nova_accel.scheduler.weigher.AcceleratorWeigher'],
            group='filter_scheduler')

    def start_compute(self, hostname='compute1', *args, **facts):
        if not args:
            # The first versions that can migrate the state of devices. With
            # args this is a restart, which passes the existing connection.
            facts = {'libvirt_version': 10_000_000,
                     'qemu_version': 8_002_002, **facts}
        self.sysfs_roots[hostname] = CONF.nova_accel.sysfs_root
        return super().start_compute(hostname, *args, **facts)

    def write_marks(self):
        """Create the traits that the first round of a new cloud creates."""
        for mark in providers.MARKS:
            self.placement.put(f'/traits/{mark}', {}, version='1.6')

    # Actions of the operator

    def write_profile(self, name, **profile):
        """Write a profile's file, and change its modification time."""
        path = pathlib.Path(self.profiles, f'{name}.yaml')
        path.write_text(yaml.safe_dump({'name': name, **profile},
                                       sort_keys=False))
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        return path

    def gpu_profile(self, name, count=1, numa='required', **more):
        return self.write_profile(name, groups=[
            {'resources': {GPU: 1}, 'count': count, 'numa': numa}], **more)

    def flavor(self, profile=None, **more):
        extra_spec = dict(more.pop('extra_spec', {}))
        if profile:
            extra_spec['accel:device_profile'] = profile
        # A small flavor, so that the devices run out first.
        small = {'vcpu': 1, 'memory_mb': 256, 'disk': 1, 'ephemeral': 0}
        return self._create_flavor(extra_spec=extra_spec, **{**small, **more})

    def directory_host(self, recording=EIGHT_GPUS):
        """Offer a copy of a recording in a directory, and return its path."""
        path = self.useFixture(fixtures.TempDir()).path
        tree.open_tree(recording).write(path)
        self.flags(sysfs_root=f'{path}/sys', group='nova_accel')
        return pathlib.Path(path)

    @contextlib.contextmanager
    def placement_requests(self, host='compute1'):
        """Collect a nova-compute's requests to Placement: (method, URL)."""
        client = self.computes[host].manager.reportclient
        requests = []

        def noted(method, send):
            def request(url, *args, **kwargs):
                requests.append((method, url))
                return send(url, *args, **kwargs)
            return request

        with contextlib.ExitStack() as patches:
            for method in ('get', 'put', 'post', 'delete'):
                patches.enter_context(fixtures.MockPatchObject(
                    client, method, noted(method, getattr(client, method))))
            yield requests

    # Actions of the tenant

    def boot(self, flavor, state='ACTIVE', **more):
        return self._create_server(
            image_uuid=IMAGE, flavor_id=flavor, networks='none',
            expected_state=state, **more)

    def rejected(self, flavor):
        """Request a server that nova-api refuses; return status and text."""
        from nova.tests.functional.api import client
        error = self.assertRaises(
            client.OpenStackApiException, self.api.post_server,
            {'server': self._build_server(
                image_uuid=IMAGE, flavor_id=flavor, networks='none')})
        return error.response.status_code, error.response.text

    def set_task_state(self, server, state):
        """Set the state in the database, as after a crash of nova-compute."""
        instance = objects.Instance.get_by_uuid(
            context.get_admin_context(), server['id'])
        instance.task_state = state
        instance.save()

    # The harness gives up after a number of polls.

    def _wait_for_server_parameter(self, server, expected_params,
                                   max_retries=10, **more):
        return super()._wait_for_server_parameter(
            server, expected_params, PATIENCE * max_retries, **more)

    def _wait_for_assert(self, assert_func, max_retries=10, **more):
        return super()._wait_for_assert(
            assert_func, PATIENCE * max_retries, **more)

    def _wait_for_migration_status(self, server, expected_statuses):
        """Wait for a server's newest migration; Nova accepts any migration."""
        def newest():
            migrations = [migration for migration in self.api.api_get(
                '/os-migrations').body['migrations']
                if migration['instance_uuid'] == server['id']]
            self.assertTrue(migrations)
            # The ids alone do not give the order: each cell has its own.
            migration = max(migrations, key=lambda migration: (
                migration['created_at'], migration['id']))
            self.assertIn(migration['status'], expected_statuses)
            return migration

        return self._wait_for_assert(newest)

    # Observations

    def connection(self, host='compute1'):
        """Return the fake libvirt connection of a host."""
        return self.computes[host].driver._host.get_connection()

    def domain(self, server, host='compute1'):
        return self.connection(host).lookupByUUIDString(server['id'])

    def held_by_domain(self, host='compute1'):
        """Return the hostdevs of each libvirt domain, by domain UUID."""
        return libvirt_xml.read(self.connection(host).listAllDomains(
            fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
            | fakelibvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE), fakelibvirt)

    def attached(self, server, host='compute1'):
        """Return the hostdevs that a server's running guest has now."""
        for domain in self.connection(host).listAllDomains(
                fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            if domain.UUIDString() == server['id']:
                return libvirt_xml.parse(domain.XMLDesc(0))[1]
        return ()

    def hostdevs(self, server, host='compute1'):
        """Return the aliases of a server's hostdevs, by device address."""
        held = self.held_by_domain(host).get(server['id'], ())
        return {str(hostdev.address): hostdev.alias for hostdev in held}

    def held(self, host='compute1'):
        """Return the UUIDs of the domains with a device, by address."""
        found = {}
        for uuid, hostdevs in self.held_by_domain(host).items():
            for hostdev in hostdevs:
                found.setdefault(str(hostdev.address), []).append(uuid)
        return found

    def disagreements(self, host='compute1'):
        """Return the findings of ``nova-accel host check`` as texts."""
        entries, _broken = reader.parse(CONF.nova_accel.device_spec)
        return [str(finding) for finding in check.compare(
            reader.read(tree.open_tree(self.sysfs_roots[host]), entries,
                        nova_claims.claims(CONF)),
            fakelibvirt, self.connection(host), self.ask_placement, host)]

    def ask_placement(self, path):
        answer = self.placement.get(path, version=queries.MICROVERSION)
        self.assertEqual(200, answer.status)
        return answer.body

    def providers(self, host='compute1'):
        """Return nova_accel's resource providers of a host's devices."""
        return {name: provider
                for name, provider in self._providers(host).items()
                if naming.class_of_provider(name) is None}

    def class_provider(self, resource_class, host='compute1'):
        """Return the UUID of a host's provider of a whole class."""
        return self._providers(host)[f'{host}_accel_{resource_class}']['uuid']

    def set_drained(self, is_drained, *providers):
        """Do what ``openstack accel device set`` does with ``--drain``.

        :param is_drained: whether the drain starts or ends
        :param providers: UUIDs
        """
        for trait in DRAIN:
            self.placement.put(f'/traits/{trait}', {}, version='1.6')
        for provider in providers:
            url = f'/resource_providers/{provider}/traits'
            before = self.placement.get(url, version='1.6').body
            traits = set(before['traits'])
            self.placement.put(url, {**before, 'traits': sorted(
                traits.union(DRAIN) if is_drained
                else traits.difference(DRAIN))}, version='1.6')

    def take_down(self, host):
        self.computes[host].stop()
        self._force_down(host, True)

    def bring_back(self, host):
        # nova-compute must clean up evacuated servers before it is up.
        self.restart_compute_service(host)
        self._force_down(host, False)

    def _force_down(self, host, forced_down):
        [service] = self.api.get_services(host=host, binary='nova-compute')
        self.api.put_service(service['id'], {'forced_down': forced_down})

    def free_used(self, provider):
        """Do what the administration guide says after a wipe.

        :param provider: UUID of the provider of a one-time-use device
        """
        url = f'/resource_providers/{provider}/inventories'
        before = self.placement.get(url).body
        for record in before['inventories'].values():
            record['reserved'] = 0
        self.placement.put(url, before, version='1.26')

    def _providers(self, host):
        answer = self.placement.get(
            '/resource_providers?in_tree=' + self.compute_rp_uuids[host],
            version='1.14').body['resource_providers']
        return {provider['name']: provider for provider in answer
                if '_accel_' in provider['name']}

    def allocated(self, server):
        """Return a server's units by provider name and class.

        Check that its allocations of the class providers are the same amounts.
        """
        allocations = self._get_allocations_by_server_uuid(server['id'])
        names = {provider['uuid']: name for host in self.computes
                 for name, provider in self._providers(host).items()}
        counted, held = collections.Counter(), {}
        for uuid, allocation in allocations.items():
            name = names.get(uuid)
            if name and naming.class_of_provider(name):
                counted.update(allocation['resources'])
            elif name:
                held[name] = plain(allocation['resources'])
        of_devices = collections.Counter()
        for resources in held.values():
            of_devices.update(resources)
        self.assertEqual(counted, of_devices)
        return held

    def as_placement_has_it(self, server):
        """Return a server's unconverted allocations, by provider name.

        These are the allocations of all providers of nova_accel.
        """
        names = {provider['uuid']: name for host in self.computes
                 for name, provider in self._providers(host).items()}
        allocations = self._get_allocations_by_server_uuid(server['id'])
        return {names[uuid]: allocation['resources']
                for uuid, allocation in allocations.items() if uuid in names}

    def tree_as_placement_has_it(self, host='compute1'):
        """Return the totals by class of nova_accel's providers, by name."""
        return {name: {resource_class: record['total']
                       for resource_class, record in
                       super(Cloud, self)._get_provider_inventory(
                           provider['uuid']).items()}
                for name, provider in self._providers(host).items()}

    # The harness's observations, with units of devices as amounts of their
    # class

    def _get_provider_inventory(self, provider):
        return plain(super()._get_provider_inventory(provider))

    def _get_provider_usages(self, provider):
        return plain(super()._get_provider_usages(provider))

    def _get_allocations_by_provider_uuid(self, provider):
        return {consumer: {**allocation,
                           'resources': plain(allocation['resources'])}
                for consumer, allocation in
                super()._get_allocations_by_provider_uuid(provider).items()}


class BackgroundWork(fixtures.Fixture):
    """Track the work that nova-compute continues in the background."""

    def _setUp(self):
        self._runners = []
        start = background.Runner.start

        def noted(runner, work):
            self._runners.append(runner)
            return start(runner, work)

        self.useFixture(fixtures.MockPatchObject(
            background.Runner, 'start', noted))

    def is_busy(self):
        return any(runner.is_busy() for runner in self._runners)

    def wait(self):
        """Wait until all background work has ended."""
        while self.is_busy():
            time.sleep(0.005)


class AuditClock(fixtures.Fixture):
    """Replace the clock of the audits."""

    def _setUp(self):
        self._ahead = 0
        self.useFixture(fixtures.MockPatchObject(
            audit, 'time', types.SimpleNamespace(
                monotonic=lambda: time.monotonic() + self._ahead)))

    def skip_interval(self):
        """Make the next audit due."""
        self._ahead += CONF.nova_accel.check_interval


def migratable(spec):
    """Return the entry with ``live_migratable``."""
    return spec[:-1] + ', "live_migratable": "yes"}'


def unit(resource_class):
    """Return the resource class of a device provider's units."""
    return naming.unit_class(resource_class)


def plain(resources):
    """Replace each class of units by the class that the units belong to."""
    return {naming.class_of_units(name) or name: value
            for name, value in resources.items()}

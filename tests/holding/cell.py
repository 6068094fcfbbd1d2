# SPDX-License-Identifier: Apache-2.0
"""A cell: an operation on a server, while something changes.

``compute1`` has a pair of devices, and the server has one of them. The cells
of an operation share a cloud: each leaves it as it was.
"""

import contextlib
import dataclasses
import pathlib

import fixtures
from keystoneauth1 import exceptions
from nova.api.metadata import base as metadata
import nova.conf
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.compute.guest import guest_roles
from nova_accel.core import naming
from tests.functional import cloud
from tests.functional import faults
from tests.functional import hypervisor
from tests.functional import kernel
from tests.functional import test_guest_roles
from tests.functional import test_health
from tests.holding import changes
from tests.holding import operations
from tests.holding import rule

CONF = nova.conf.CONF



@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of device, and how a flavor asks for it.

    :param recording: recorded host
    :param spec: entry of ``device_spec``
    :param product: id that two devices of the entry have
    """

    recording: str
    spec: str
    product: str
    extra_spec: dict


#: A card has one unit, so that its allocations tell which device a server
#: has. Both VFs are units of one resource provider. The cards' flavor has no
#: profile, so that only allocations and entries tell whose their class is.
KINDS = {
    'card': Kind(cloud.EIGHT_GPUS, cloud.PAIR_SPEC, '0x2330',
                 {'resources:CUSTOM_GPU_H100': '1'}),
    'vf': Kind(cloud.A100, '{"vendor_id": "8086", "product_id": "37c9", '
               '"resource_class": "CUSTOM_GPU_H100"}', '0x37c9',
               {'accel:device_profile': 'one'})}
#: The card has the traits of the second alternative, and of the third.
KINDS['alternatives'] = dataclasses.replace(
    KINDS['card'], extra_spec={'accel:device_profile': 'any'})

_PAIR = ('0000:43:00.0', '0000:44:00.0')


def hosts(operation: str) -> tuple[str, ...]:
    """Return the hosts that an operation needs."""
    return ('compute1', 'compute2')[:1 + operations.OPERATIONS[
        operation].moves]


class AtDefinition(faults.Fault):
    """nova-compute dies when it is about to define the server's domain."""

    def strikes(self, effect):
        if effect.endswith('.defineXML'):
            self.met.append(effect)
        return self.struck


class Cell(faults.MortalCloud):
    """Base of the cells."""

    KIND = 'card'
    HOSTS = ('compute1',)
    #: Seconds to wait for an answer of a killed nova-compute.
    PATIENCE = 5

    def setUp(self):
        super().setUp()
        kind = KINDS[self.KIND]
        self.flags(device_spec=[kind.spec], group='nova_accel')
        self.flags(allow_resize_to_same_host=True)
        # A shelved server stays on its host.
        self.flags(shelved_offload_time=-1)
        self._before = [kind.spec]
        self._machines, self._functions = {}, {}
        self.had = set()
        for host in self.HOSTS:
            self._machines[host] = self.directory_host(kind.recording)
            self._functions[host] = self.useFixture(
                kernel.Functions(self._machines[host]))
            self._functions[host].offer_reset(*self._offered(host))
            self.start_compute(host)
        self.gpu_profile('one', numa='off')
        self.write_profile('any', groups=[{
            'resources': {cloud.GPU: 1}, 'numa': 'off',
            'any_of': [['CUSTOM_NEWER'], ['CUSTOM_NVLINK'], []]}])
        self._one, self._other = (self.flavor(extra_spec=kind.extra_spec)
                                  for _each in range(2))
        self._plain = self.flavor()
        self._boot()

    def start_compute(self, hostname='compute1', *args, **facts):
        self.flags(sysfs_root=f'{self._machines[hostname]}/sys',
                   group='nova_accel')
        return super().start_compute(hostname, *args, **facts)

    def check(self, operation: str, change: str, when: str) -> None:
        """Perform the operation during the change, and check the outcome."""
        what = operations.OPERATIONS[operation]
        self.change = changes.CHANGES[change]
        place = self._place()
        if when == 'before':
            getattr(self, self.change.make)()
        with (hypervisor.without_guests() if what.fails
              else contextlib.nullcontext()):
            self._perform(what.first)
        if what.has_new:
            self.had, place = self._has(), self._place()
        if when != 'before':
            getattr(self, self.change.make)()
        failed = self.find(self.server, 'status') == 'ERROR'
        if when != 'before':
            self.assertEqual(what.fails, failed)
        with self._trouble(when):
            is_performed = self._perform(what.second) or failed
        self.run_periodic_tasks()
        self._check_rival()
        is_back = self._place() == place
        if is_back:
            self._check_during(what, is_performed)
        getattr(self, self.change.undo)()
        self._reset_and_reboot()
        if not is_back:
            # A revert failed in Nova before the server got its flavor and
            # its host back.
            self.had = self._has()
            self.assertEqual(self._needs_devices(), len(self.had))
        self._check_keeps()
        self._delete_failed_migrations()
        self.had = set()
        self.delete(self.server)
        self.run_periodic_tasks()
        self._boot()

    # Checks

    def run_periodic_tasks(self):
        with self._no_reset():
            super().run_periodic_tasks()

    @contextlib.contextmanager
    def _no_reset(self):
        """Check that nobody resets the server's devices."""
        resets = self._functions['compute1'].resets
        before = len(resets)
        yield
        self.assertEqual(set(), self.had.intersection(resets[before:]))

    def _check_during(self, what, is_performed):
        """Check the outcome while the change lasts."""
        if not self._is_active():
            self._reset_and_reboot()
            what = dataclasses.replace(what, starts_the_guest=True)
            is_performed = True
        if rule.keeps(what, self.change, is_performed):
            self._check_keeps()
        else:
            self._check_refused()

    def _check_keeps(self):
        self.assertEqual(
            ('ACTIVE', self.had), (self.find(self.server, 'status'),
                                   self._has()),
            self._fault(self.server))
        self.assertEqual(self.had, {
            str(device.address)
            for device in self.attached(self.server, self._host())})
        self._check_told()

    def _check_told(self):
        """Check that the guest is told of the devices that it has."""
        held = sorted(naming.parse_alias(alias)[1] for alias in self.hostdevs(
            self.server, self._host()).values())
        devices = metadata.get_metadata_by_instance_id(
            self.server['id'], '10.0.0.2')._get_device_metadata(
                metadata.OPENSTACK_VERSIONS[-1])
        self.assertEqual(held, sorted(
            tag.rpartition('=')[2] for device in devices
            if guest_roles.TAG in device.get('tags', ())
            for tag in device['tags'] if tag.startswith('accel.provider=')))
        told = test_guest_roles.document(
            self.domain(self.server, self._host()))
        self.assertEqual(len(held), sum(
            len(request['devices'])
            for request in told['requests']) if told else 0)

    def _check_refused(self):
        """Check that the server does not run, and has no other devices."""
        self.assertNotEqual('ACTIVE', self.find(self.server, 'status'))
        self.assertLessEqual(self._has(), self.had)

    def _check_rival(self):
        """Check that a new server gets no device that is not its own."""
        rival = self._new(self._one)
        has = set(self.hostdevs(rival))
        self.assertFalse(has & self.had, 'another server got the device')
        if not rule.is_offered(self.change):
            self.assertEqual(set(), has)
        self.delete(rival)

    def _fault(self, server):
        return (self.find(server, 'fault') or {}).get('message')

    def _delete_failed_migrations(self):
        # Nova leaves the allocations of a migration whose revert failed.
        for migration in self.api.get_migrations():
            if (migration['instance_uuid'] == self.server['id']
                    and migration['status'] in ('error', 'reverting')):
                self.placement.delete(f'/allocations/{migration["uuid"]}')

    def _has(self):
        return set(self.hostdevs(self.server, self._host()))

    def _place(self):
        """Return the flavor and the host of the server."""
        return self.find(self.server, 'flavor')['original_name'], self._host()

    def _host(self):
        return self.find(self.server, 'OS-EXT-SRV-ATTR:host')

    def _needs_devices(self):
        return bool(self.find(self.server, 'flavor')['extra_specs'])

    def _is_active(self):
        return self.find(self.server, 'status') == 'ACTIVE' and not self.find(
            self.server, 'OS-EXT-STS:task_state')

    # Actions of the tenant

    def _boot(self):
        """Boot the server of a cell: all devices are free.

        It gets the second device, so that it loses it if it has to choose.
        """
        first = self._new(self._one)
        self.server = self._new(self._one)
        self.had = self._has()
        self.assertEqual(1, len(self.had), self._fault(self.server))
        self.delete(first)

    def _new(self, flavor):
        server = self.api.post_server({'server': self._build_server(
            image_uuid=cloud.IMAGE, flavor_id=flavor, networks='none',
            host='compute1')})
        self.processes.settle()
        return server

    def _perform(self, action) -> bool:
        """Perform an action, and return whether Nova accepted it."""
        if isinstance(action, str):
            return getattr(self, action)()
        return bool(action) and self.act(self.server, action)

    def rescue(self):
        # Nova writes the XML of the guest before its fake of an image.
        pathlib.Path(CONF.instances_path, self.server['id']).mkdir(
            exist_ok=True)
        return self.act(self.server, {'rescue': None})

    def resize_to_none(self):
        return self.act(self.server, {'resize': {'flavorRef': self._plain}})

    def resize_to_another(self):
        return self.act(self.server, {'resize': {'flavorRef': self._other}})

    def live_migrate(self):
        def refuse(_domain, _xml):
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError, 'no',
                error_code=fakelibvirt.VIR_ERR_OPERATION_FAILED)

        with fixtures.MockPatchObject(self.migration, 'on_move', refuse):
            return self.act(self.server, {'os-migrateLive': {
                'host': None, 'block_migration': 'auto'}})

    # Actions of the operator

    def _reset_and_reboot(self):
        if not self._is_active():
            self.act(self.server, {'os-resetState': {'state': 'active'}})
        self.act(self.server, {'reboot': {'type': 'HARD'}})

    def undefine(self):
        self.domain(self.server).destroy()
        self.domain(self.server).undefine()
        return self._restart()

    def power_off(self):
        self.domain(self.server).destroy()

    def power_on(self):
        self.flags(resume_guests_state_on_host_boot=True)
        is_performed = self._restart()
        self.flags(resume_guests_state_on_host_boot=False)
        return is_performed

    def _restart(self):
        self.kill('compute1')
        with self._no_reset():
            self.restart_compute_service('compute1')
            self.processes.settle()
        return True

    def drain_host(self):
        self._drain(True, self.compute_rp_uuids['compute1'])

    def drain_devices(self):
        self._drain(True, *self._devices())

    def end_drain(self):
        self._drain(False, self.compute_rp_uuids['compute1'],
                    *self._devices())

    def _drain(self, is_drained, *providers):
        self.set_drained(is_drained, *providers)
        self.run_periodic_tasks()

    def _devices(self):
        return [provider['uuid'] for provider in self.providers().values()]

    def change_entries(self, *entries):
        CONF.set_override('device_spec', list(entries), 'nova_accel')
        self.run_periodic_tasks()

    def remove_entries(self):
        self.change_entries()

    def change_class(self):
        self.change_entries(self._before[0].replace('GPU_H100', 'GPU_NEW'))

    def restore_entries(self):
        self.change_entries(*self._before)

    def reserve(self, is_reserved=True):
        for provider in self._devices():
            url = f'/resource_providers/{provider}/inventories'
            before = self.placement.get(url, version='1.26').body
            for record in before['inventories'].values():
                record['reserved'] = record['total'] if is_reserved else 0
            self.placement.put(url, before, version='1.26')

    def unreserve(self):
        self.reserve(False)
        self.run_periodic_tasks()

    # What happens to devices

    def _offered(self, host='compute1'):
        """Return the addresses of the devices of the entry."""
        bus = self._bus(host)
        return [path.name for path in sorted(bus.iterdir())
                if (path / 'device').read_text().strip()
                == KINDS[self.KIND].product
                and (self.KIND == 'vf' or path.name in _PAIR)]

    def _cards(self):
        """Return the addresses of the devices, or of their PFs."""
        return {(self._bus() / address / (
            'physfn' if self.KIND == 'vf' else '')).resolve().name
            for address in self._offered()}

    def _bus(self, host='compute1'):
        return self._machines[host] / 'sys/bus/pci/devices'

    def break_devices(self):
        self._set_errors(1)

    def mend_devices(self):
        self._set_errors(0)

    def _set_errors(self, number):
        """Set the number of fatal PCI Express errors since the start."""
        for address in self._cards():
            (self._bus() / address / 'aer_dev_fatal').write_text(
                f'TOTAL_ERR_FATAL {number}\n')
        self.run_periodic_tasks()

    def block_readers(self):
        self._reader = test_health.Blocked(*self._cards())
        self._reader.setUp()
        self.addCleanup(self._reader.over.set)
        self.run_periodic_tasks()

    def unblock_readers(self):
        self._reader.cleanUp()
        self.run_periodic_tasks()

    def take_away(self):
        links = [self._bus() / address for address in self._offered()]
        self._links = {link: link.readlink() for link in links}
        for link in self._links:
            link.unlink()
        self.run_periodic_tasks()

    def put_back(self):
        for link, target in self._links.items():
            link.symlink_to(target)
        self.run_periodic_tasks()

    def swap(self):
        self._swapped = self._offered()
        self._set_product('0x20b0')

    def swap_back(self):
        self._set_product(KINDS[self.KIND].product)

    def _set_product(self, product):
        for address in self._swapped:
            (self._bus() / address / 'device').write_text(f'{product}\n')
        self.run_periodic_tasks()

    # What fails during the second half

    @contextlib.contextmanager
    def _trouble(self, when):
        """Let something fail when the server's domain is not defined."""
        with {'nova-compute killed': self._killed,
              'libvirtd down': self._without_libvirt,
              'Placement down': self._without_placement,
              }.get(when, contextlib.nullcontext)():
            yield

    @contextlib.contextmanager
    def _killed(self):
        fault = self.processes.fault = AtDefinition('compute1', 1)
        yield
        self.processes.fault = None
        if fault.struck:
            self._restart()

    @contextlib.contextmanager
    def _without_libvirt(self):
        """libvirtd ends when the domain is about to be defined."""
        with hypervisor.down_from_definition(
                self.computes['compute1'].driver._host) as down:
            yield
            if down:
                self.run_tasks('compute1', 'update_available_resource')
                self.processes.settle()

    @contextlib.contextmanager
    def _without_placement(self):
        """No nova-compute reaches Placement.

        Its periodic tasks release and reset nothing.
        """
        with contextlib.ExitStack() as patches:
            for method in ('get', 'put', 'post', 'delete'):
                patches.enter_context(fixtures.MockPatchObject(
                    report.SchedulerReportClient, method, _unreachable(
                        getattr(report.SchedulerReportClient, method))))
            self.run_periodic_tasks()
            yield


def _unreachable(method):
    def request(*args, **kwargs):
        if CONF.host.startswith('compute'):
            raise exceptions.ConnectFailure('Connection refused')
        return method(*args, **kwargs)
    return request

# SPDX-License-Identifier: Apache-2.0
"""A storm that also changes device_spec, and crashes hosts and services.

Two hosts have three cards each: one for mdevs, one for plain VFs, and one
whole device for one-time use. Two other hosts have cards with vGPU types.
Before a nova-compute starts, its device_spec can change: the class, the
traits, the type, the number of VFs or the kind of an entry, or the entry is
removed. Devices are withheld for a while (tests.storm.withholding).

With any device_spec a server keeps its devices unchanged. No other server gets
a part of them. After all servers are deleted, no mdevs, types or allocations
are left.
"""

import json
import logging
import pathlib
import random

import fixtures
from nova import exception
import nova.conf

from nova_accel.compute.state import local_host
from nova_accel.core import errors
from nova_accel.host import reader
from tests import nvidia
from tests.functional import cloud
from tests.functional import kernel
from tests.storm import crashes
from tests.storm import storm
from tests.storm import withholding

CONF = nova.conf.CONF

MDEV_HOST = cloud.DATA / 'hosts' / 'l1.json'
VGPU_HOST = cloud.DATA / 'hosts' / 'l40s-modelled.json'

#: The recording of each host.
MACHINES = {'compute1': MDEV_HOST, 'compute2': MDEV_HOST,
            'compute3': VGPU_HOST, 'compute4': VGPU_HOST}

#: The resource class that each profile requests.
CLASSES = {'vf': 'CUSTOM_VF', 'pair': 'CUSTOM_VF', 'vgpu': 'VGPU',
           'small': 'CUSTOM_SMALL', 'whole': 'CUSTOM_WHOLE'}


class Card:
    """A card, and the entries that an operator can write for it.

    :ivar address: address of its PF
    :param parts: choices of entries for its VFs; each choice is a list of
        entries, with one entry for each type
    """

    def __init__(self, address: str, parts: list[list[dict]] = ()):
        self.address = address
        self._parts = parts

    def first(self) -> list[dict]:
        """Return the entries at the beginning and the end of the storm."""
        return (self._of_parts(self._parts[0], 4) if self._parts
                else self._whole())

    def choose(self, chance: random.Random, regions_file: str) -> list[dict]:
        if chance.random() < 0.15:
            return []
        if not self._parts or chance.random() < 0.15:
            return chance.choice([
                self._whole(), self._whole(traits='CUSTOM_FAST'),
                self._whole(resource_class='CUSTOM_VF'),
                self._whole(kind='declared', regions_file=regions_file)])
        return self._of_parts(
            chance.choice(self._parts), chance.choice((None, 2, 4, 6)),
            **chance.choice(({}, {}, {'traits': 'CUSTOM_FAST'},
                             {'resource_class': 'CUSTOM_VF'})))

    def _whole(self, **more):
        return [{'address': self.address, 'resource_class': 'CUSTOM_WHOLE',
                 'live_migratable': 'yes',
                 **({} if self._parts else {'one_time_use': 'yes'}), **more}]

    @property
    def is_whole(self) -> bool:
        """Whether it never has parts."""
        return not self._parts

    def _of_parts(self, parts, num_vfs, **more):
        bus = self.address.removesuffix('00.0')
        return [{'address': f'{bus}*.*', 'live_migratable': 'yes', **part,
                 **({'num_vfs': num_vfs} if num_vfs else {}),
                 **(more if index == 0 else {})}
                for index, part in enumerate(parts)]


_PLAIN = {'resource_class': 'CUSTOM_VF'}
_MDEVS = {'mdev_type': 'nvidia-471'}
_SMALL_MDEVS = {'mdev_type': 'nvidia-468', 'resource_class': 'CUSTOM_SMALL'}
_VGPUS = {'vgpu_type': '1155 : NVIDIA L40S-24Q', 'max_instances': 2}
_SMALL_VGPUS = {'vgpu_type': '1154 : NVIDIA L40S-16Q', 'max_instances': 3,
                'resource_class': 'CUSTOM_SMALL'}

CARDS = {
    MDEV_HOST: [
        Card('0000:44:00.0', [[_MDEVS], [_SMALL_MDEVS], [_PLAIN],
                              [_MDEVS, _SMALL_MDEVS],
                              [{**_MDEVS, 'max_instances': 2}]]),
        Card('0000:85:00.0', [[_PLAIN]]),
        Card('0000:84:00.0')],
    VGPU_HOST: [
        Card('0000:41:00.0', [[_VGPUS], [_SMALL_VGPUS], [_PLAIN],
                              [_VGPUS, _SMALL_VGPUS]]),
        Card('0000:c1:00.0', [[_PLAIN], [_SMALL_VGPUS]])],
}


class OwnEntries(fixtures.Fixture):
    """Make each nova-compute keep the device_spec that it started with."""

    def _setUp(self):
        begin = local_host.LocalHost.__init__

        def begun(this, *args, **kwargs):
            begin(this, *args, **kwargs)
            specs = list(CONF.nova_accel.device_spec)
            this.entries = lambda: reader.parse(specs)

        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.compute.state.local_host.LocalHost.__init__', begun))


class Unexpected(logging.Handler):
    """Collect the stack traces of unexpected errors."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def emit(self, record):
        if record.exc_info and record.exc_info[1] and (
                record.name.startswith('nova_accel')
                or _comes_from_us(record.exc_info)):
            self.found.append(logging.Formatter().format(record))


def _comes_from_us(exc_info) -> bool:
    _kind, error, trace = exc_info
    if isinstance(error, (exception.NovaException, errors.AccelError)):
        return False
    while trace.tb_next:
        trace = trace.tb_next
    return '/nova_accel/' in trace.tb_frame.f_code.co_filename


class EntryStorm(crashes.CrashStorm):
    """A storm of servers with parts of cards and with whole cards."""

    PROFILES = {'': 0, **{name: 1 for name in CLASSES}, 'pair': 2}

    AT_ONCE = (2, 3, 4, 5)

    def setUp(self):
        self.useFixture(OwnEntries())
        self._paths: dict[str, pathlib.Path] = {}
        self._kernels: dict[str, kernel.Functions] = {}
        self._managers: dict[str, nvidia.VgpuManager] = {}
        self._specs = {
            host: [spec for card in CARDS[recording] for spec in card.first()]
            for host, recording in MACHINES.items()}
        self._regions = self._write_regions()
        self._withholdings = withholding.Withholdings(self)
        self._whole = {(host, card.address)
                       for host, recording in MACHINES.items()
                       for card in CARDS[recording] if card.is_whole}
        # The card of each mdev or VF that was seen, by host and address.
        self._cards: dict[tuple[str, str], str] = {}
        # The type of each device when its server was first seen to run.
        self._meanings: dict[tuple, object] = {}
        super().setUp()
        self._unexpected = Unexpected()
        logging.getLogger().addHandler(self._unexpected)
        self.addCleanup(logging.getLogger().removeHandler, self._unexpected)
        self._pristine = self._trees()

    def _write_regions(self):
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path,
                            'regions.json')
        path.write_text(json.dumps({'regions': [
            {'name': 'whole', 'functions': [card.address],
             'resource_class': 'CUSTOM_WHOLE'}
            for cards in CARDS.values() for card in cards]}))
        return str(path)

    def _write_profile(self, name, count):
        self.write_profile(name, groups=[
            {'resources': {CLASSES[name]: 1}, 'count': count}],
            group_policy='none')

    def start_compute(self, hostname='compute1', *args, **facts):
        if hostname not in self._paths:
            self._build(hostname)
        self.flags(sysfs_root=f'{self._paths[hostname]}/sys',
                   device_spec=list(map(json.dumps, self._entries(hostname))),
                   group='nova_accel')
        return super().start_compute(hostname, *args, **facts)

    def _entries(self, host) -> list[dict]:
        """Return the device_spec of a host."""
        return self._specs[host]

    def _build(self, host):
        path = self._paths[host] = self.directory_host(MACHINES[host])
        functions = self._kernels[host] = self.useFixture(
            kernel.Functions(path))
        functions.offer_reset(*(place.name for place in path.glob(
            'sys/bus/pci/devices/*')))
        if MACHINES[host] == VGPU_HOST:
            self._managers[host] = self.useFixture(nvidia.VgpuManager(path))

    # Steps

    def _step(self):
        happens, = self._random.choices(
            (self._lose_a_host, self._change_entries, self._restart,
             self._reboot_a_host, self._die_amid, self._withhold,
             self._offer_again, self._go_on),
            (3, 20, 3, 14, 14, 8, 6, 46))
        happens()
        if self._unexpected.found:
            raise storm.Violation('\n'.join(self._unexpected.found))

    def _withhold(self):
        host = self._random.choice(storm.HOSTS)
        self._withholdings.begin(self._random, host, [
            card.address for card in CARDS[MACHINES[host]]])
        self._use(host)

    def _offer_again(self):
        self._withholdings.end_one(self._random)

    def _go_on(self):
        self._do(self._several())

    def _change_entries(self):
        host = self._random.choice(storm.HOSTS)
        self._write_entries(host)
        self._kill_and_start(host)
        self._use(host)

    def _use(self, host):
        """Boot servers, and perform an operation on each server of a host."""
        self._check()
        self._do([
            *(self._boot(self._random.choice(list(CLASSES)))
              for _time in range(2)),
            *(self._something(server) for server in self._servers().values()
              if server['OS-EXT-SRV-ATTR:host'] == host)])

    def note(self, line):
        """Write a line to the log."""
        self._log.write(line)

    def bus(self, host):
        """Return the path of the functions of a host."""
        return self._paths[host] / 'sys/bus/pci/devices'

    def freed(self, host, card):
        """An operator has freed the devices of a card."""

    def _write_entries(self, host):
        self._withholdings.change_entries(host)
        self._specs[host] = [
            spec for card in CARDS[MACHINES[host]]
            for spec in card.choose(self._random, self._regions)]
        self._log.write(f'{host}: device_spec is now '
                        f'{json.dumps(self._specs[host])}')

    def _reboot_a_host(self):
        host = self._random.choice(storm.HOSTS)
        if self._random.random() < 0.5:
            self._write_entries(host)
        resume = self._random.random() < 0.5
        self._log.write(f'{host} reboots, its servers '
                        + ('start again' if resume else 'do not'))
        self.flags(resume_guests_state_on_host_boot=resume)
        self._power_off(host)
        self._start_again(host)
        self.flags(resume_guests_state_on_host_boot=False)
        self.run_periodic_tasks()
        self._use(host)

    def _power_off(self, host):
        super()._power_off(host)
        if host in self._managers:
            self._managers[host].reboot()
        self._kernels[host].reboot()

    def _do(self, operations):
        super()._do(operations)
        if not self.processes.fault:
            after = self._by_server()
            self._withholdings.check_new(
                [place for operation in operations
                 if operation.name == 'boot'
                 for place in after[operation.server]], self._card_of)

    def _clear(self):
        super()._clear()
        self._withholdings.end_all()
        for host, recording in MACHINES.items():
            self._specs[host] = [spec for card in CARDS[recording]
                                 for spec in card.first()]
            self._kill_and_start(host)
        self._check()
        self._withholdings.end_all()
        self._check_left()

    # Checks

    def _check(self):
        super()._check()
        held = self._held()
        for (host, address), uuid in held.items():
            for part_of in self._containing(host, address):
                if holder := held.get((host, part_of)):
                    raise storm.Violation(
                        f'{holder} holds {part_of} of {host}, and {uuid} '
                        f'{address}, a part of it')
        self._check_meanings(held)
        self._withholdings.check_once(held, self._whole)

    def _check_meanings(self, held):
        """Check that the devices of servers have the same type as before."""
        active = {uuid for uuid, server in self._servers().items()
                  if server['status'] == 'ACTIVE'}
        for (host, address), uuid in held.items():
            now = self._meaning(host, address)
            if now is None:
                if uuid in active and self._is_here(uuid, host):
                    raise storm.Violation(f'{uuid} runs with {address} of '
                                          f'{host}, which is missing')
                continue
            if uuid not in active:
                continue
            was = self._meanings.setdefault((host, uuid, address), now)
            if was != now:
                raise storm.Violation(f'{address} of {host}, which {uuid} '
                                      f'has, was {was}, and is {now}')
        for key in set(self._meanings) - {
                (host, uuid, address)
                for (host, address), uuid in held.items()}:
            del self._meanings[key]

    def _is_here(self, uuid, host):
        return self._servers()[uuid]['OS-EXT-SRV-ATTR:host'] == host

    def _meaning(self, host, address):
        """Return the type of a function or an mdev, or None if missing."""
        place = self._place(host, address)
        if place is None:
            return None
        if 'mdev_supported_types' in place.parts:
            return place.parts[-3]
        current = place / 'nvidia/current_vgpu_type'
        return (place / 'device').read_text(), (
            current.read_text() if current.exists() else '')

    def _place(self, host, address):
        for bus in 'pci', 'mdev':
            place = self._paths[host] / f'sys/bus/{bus}/devices/{address}'
            if place.exists():
                return place.resolve()
        return None

    def _containing(self, host, address):
        """Yield the functions that an mdev or a VF is a part of.

        A missing mdev or VF belongs to the card that had it before.
        """
        place = self._place(host, address)
        if place and 'mdev_supported_types' in place.parts:
            place = place.parents[3]
            yield place.name
        if place and (place / 'physfn').exists():
            self._cards[host, address] = (place / 'physfn').resolve().name
        if card := self._cards.get((host, address)):
            yield card

    def _card_of(self, host, address):
        return [address, *self._containing(host, address)][-1]

    def _check_left(self):
        """Check that hosts and Placement are as at the beginning."""
        for host, path in self._paths.items():
            if left := [mdev.name for mdev in path.glob(
                    'sys/bus/mdev/devices/*')]:
                raise storm.Violation(f'mdevs of {host} are left: {left}')
        for host, manager in self._managers.items():
            if left := manager.current():
                raise storm.Violation(f'types of {host} are left: {left}')
        if (trees := self._trees()) != self._pristine:
            raise storm.Violation(f'Placement had {self._pristine}, and has '
                                  f'{trees}')

    def _trees(self):
        """Return the units that are not reserved, by provider and class."""
        return {name: {resource_class: record['total'] - record['reserved']
                       for resource_class, record in
                       self._get_provider_inventory(
                           provider['uuid']).items()}
                for host in storm.HOSTS
                for name, provider in self._providers(host).items()}

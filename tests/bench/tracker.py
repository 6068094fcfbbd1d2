# SPDX-License-Identifier: Apache-2.0
"""Rounds of the resource tracker of a host with many providers.

It runs in a process of its own (:mod:`tests.bench.worker`). A side of
:data:`SIDES` returns the duration of a round and its requests to Placement,
when nothing has changed and when one region has just changed.
"""

# First: it monkey-patches threads before any thread exists.
from tests.functional import cloud  # isort: split

import itertools
import json
import logging
import pathlib
import statistics
import time

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.host import tree
from tests.bench import worker

#: A round is repeated until it took so many seconds in total, or was made so
#: many times.
PATIENCE, ROUNDS = 5, 10

CARD, REGION = '8086:37c8', '8086:37c9'


class Side(cloud.Cloud):
    """
    :param devices: the number of devices of the host
    :param regions: the number of regions of each device
    """

    driver = 'libvirt.LibvirtDriver'

    def __init__(self, connection, devices, regions):
        super().__init__('serve')
        self._connection = connection
        self._devices, self._regions = devices, regions

    def _setup_compute_service(self):
        self.flags(compute_driver=self.driver)
        # Without it, a random round has three more reads for each provider,
        # every five minutes, on all sides.
        self.flags(group='compute', resource_provider_association_refresh=0)

    def serve(self):
        self.start_compute('compute1', **self.hardware())
        self._run_periodics()
        # Nova's fixtures would format each debug message.
        logging.disable(logging.DEBUG)
        self.addCleanup(logging.disable, logging.NOTSET)
        worker.answer(self._connection, self.answer)

    def hardware(self) -> dict:
        return {}

    def toggle(self) -> None:
        """Change one region, or change it back."""

    def answer(self, change) -> dict:
        rounds: list[dict] = []
        while len(rounds) < ROUNDS and (
                sum(item['seconds'] for item in rounds) < PATIENCE
                # A removed region has to come back.
                or change and len(rounds) % 2):
            if change:
                self.toggle()
            rounds.append(self._round())
        return {'providers': self._count_providers(), 'rounds': len(rounds),
                **{key: round(statistics.median(
                    item[key] for item in rounds), 4) for key in rounds[0]}}

    def _round(self) -> dict:
        with self.placement_requests() as requests:
            begin = time.perf_counter()
            self._run_periodics()
            took = time.perf_counter() - begin
        reads = sum(method == 'get' for method, _url in requests)
        return {'seconds': took, 'reads': reads,
                'writes': len(requests) - reads}

    def _count_providers(self) -> int:
        return len(self.placement.get(
            '/resource_providers?in_tree=' + self.compute_rp_uuids['compute1'],
            version='1.14').body['resource_providers'])


class Ours(Side):
    """nova_accel with cards: each virtual function is a region."""

    driver = 'accel.LibvirtDriver'

    def setUp(self):
        super().setUp()
        self._root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        _cards(self._devices, self._regions).write(self._root)
        vendor, product = REGION.split(':')
        self.flags(group='nova_accel', sysfs_root=str(self._root / 'sys'),
                   device_spec=[json.dumps({
                       'vendor_id': vendor, 'product_id': product,
                       'address': f'*:*:{slot:02x}.{function}',
                       'resource_class': 'CUSTOM_REGION',
                       'traits': f'CUSTOM_REGION_{slot}_{function}'})
                       for slot, function in _functions(self._regions)])
        # No kernel handles writes to these files.
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.host.operations.write', lambda path, text: None))

    def toggle(self):
        # Move the last virtual function of the last card.
        listed = self._root / 'sys/bus/pci/devices'
        aside = self._root / 'aside'
        if aside.is_symlink():
            aside.replace(listed / self._last)
        else:
            self._last = max(path.name for path in listed.iterdir()
                             if (path / 'physfn').exists())
            (listed / self._last).replace(aside)


class Without(Side):
    """Nova's driver without devices."""


class Pci(Side):
    """Nova's driver with PCI devices that it reports.

    It looks for them only when it starts, so it notices no changes.
    """

    kind = 'PCI'

    def setUp(self):
        super().setUp()
        self.flags(group='pci', report_in_placement=True, device_spec=[
            json.dumps({'vendor_id': fakelibvirt.PCI_VEND_ID,
                        'product_id': fakelibvirt.PCI_PROD_ID})])

    def hardware(self):
        self._info = fakelibvirt.HostPCIDevicesInfo(
            num_pci=0, num_pfs=0, num_vfs=0)
        for number in range(self._devices * self._regions):
            device, function = divmod(number, 8)
            bus, slot = divmod(device, 32)
            self._info.add_device(self.kind, 0x81 + bus, slot, function,
                                  number, number % 2)
        return {'pci_info': self._info}


class Mdev(Pci):
    """Nova's driver with devices that make mdevs."""

    kind = 'MDEV_TYPES'

    def setUp(self):
        super().setUp()
        self.flags(group='pci', report_in_placement=False, device_spec=[])
        self.flags(group='devices', enabled_mdev_types=[
            fakelibvirt.NVIDIA_11_VGPU_TYPE])

    def hardware(self):
        return {**super().hardware(),
                'mdev_info': fakelibvirt.HostMdevDevicesInfo(devices={})}

    def toggle(self):
        # Nova keeps the provider of a removed device. So change a number.
        device = next(iter(self._info.devices.values()))
        room = ('<availableInstances>16<', '<availableInstances>15<')
        device.pci_device = device.pci_device.replace(
            *room if room[0] in device.pci_device else room[::-1])


SIDES = {'ours': Ours, 'pci': Pci, 'mdev': Mdev, 'without': Without}


def _cards(devices, regions) -> tree.Recording:
    """Return a machine with SR-IOV cards, all of their VFs enabled."""
    files, links = {}, {}
    groups = itertools.count()

    def function(bus, place, ids, facts, more):
        at = f'0000:{bus:02x}:{place}'
        path = f'sys/devices/pci0000:00/0000:00:01.0/{at}'
        vendor, product = ids.split(':')
        links[f'sys/bus/pci/devices/{at}'] = f'../../../devices/{path[12:]}'
        files.update({f'{path}/{name}': f'{value}\n' for name, value in {
            'vendor': f'0x{vendor}', 'device': f'0x{product}',
            'class': '0x0b4000', 'subsystem_vendor': '0x8086',
            'subsystem_device': '0x0000', 'revision': '0x04',
            'numa_node': bus % 2, 'reset_method': 'flr', **facts}.items()})
        # Relative to .../pci0000:00/0000:00:01.0/<address>.
        links.update({
            f'{path}/iommu_group':
            f'../../../../kernel/iommu_groups/{next(groups)}', **{
                f'{path}/{name}': target for name, target in more.items()}})

    for bus in range(1, devices + 1):
        function(bus, '00.0', CARD, {'sriov_totalvfs': regions,
                                     'sriov_numvfs': regions}, {})
        for slot, number in _functions(regions):
            function(bus, f'{slot:02x}.{number}', REGION, {},
                     {'physfn': f'../0000:{bus:02x}:00.0'})
    return tree.Recording(files, links, [
        f'sys/devices/system/node/node{node}' for node in (0, 1)])


def _functions(count) -> list[tuple[int, int]]:
    """Return slot and function number of a card's virtual functions."""
    return [divmod(number, 8) for number in range(1, count + 1)]

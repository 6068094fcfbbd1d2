# SPDX-License-Identifier: Apache-2.0
"""A resource tracker's round with nothing changed: requests to Placement.

Ours with eight recorded GPUs, Nova's stock driver with none, and the stock
driver with eight PCI devices that Nova's own code reports.
"""

import json
import statistics
import time

from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import cloud

ROUNDS = 10


def cases(figures: dict):
    """One test case for each side; they write into ``figures``."""
    return [side('measure', figures) for side in (
        Ours, StockWithout, StockWithDevices)]


class _Side(cloud.Cloud):

    driver = 'libvirt.LibvirtDriver'
    pci_info = None

    def __init__(self, method, figures):
        super().__init__(method)
        self._figures = figures

    def _setup_compute_service(self):
        self.flags(compute_driver=self.driver)

    def measure(self):
        self.start_compute('compute1', pci_info=self.pci_info)
        self._run_periodics()
        times = []
        with self.placement_requests() as requests:
            for _round in range(ROUNDS):
                begin = time.perf_counter()
                self._run_periodics()
                times.append(time.perf_counter() - begin)
        reads = [url for method, url in requests if method == 'get']
        self._figures[type(self).__name__] = {
            'reads': len(reads) / ROUNDS,
            'writes': (len(requests) - len(reads)) / ROUNDS,
            'milliseconds': round(statistics.median(times) * 1e3, 1),
            'providers': self.count_providers()}

    def count_providers(self):
        return len(self.placement.get(
            '/resource_providers?in_tree=' + self.compute_rp_uuids['compute1'],
            version='1.14').body['resource_providers'])


class Ours(_Side):
    driver = 'accel.LibvirtDriver'


class StockWithout(_Side):
    pass


class StockWithDevices(_Side):

    pci_info = fakelibvirt.HostPCIDevicesInfo(num_pci=8, num_pfs=0, num_vfs=0)

    def setUp(self):
        super().setUp()
        self.flags(group='pci', report_in_placement=True, device_spec=[
            json.dumps({'vendor_id': fakelibvirt.PCI_VEND_ID,
                        'product_id': fakelibvirt.PCI_PROD_ID})])

# SPDX-License-Identifier: Apache-2.0
"""What the filter makes of a host's candidates, whatever their order."""

import itertools

from nova import objects
from nova.scheduler import host_manager
import pytest

from nova_accel.core import summary
from nova_accel.scheduler import filter as filter_
from tests.unit import build

_IMAGE = 'a6a12670-7014-4cff-a563-cea949b57fb3'


def _region(bus):
    """A region of two units, on a card of its own."""
    return build.offered(build.region('FPGA', 2, bus))


@pytest.fixture(scope='module', autouse=True)
def registered():
    objects.register_all()


def _chosen(order, specs):
    """The candidates by bus, as the filter leaves them; bus 1 is in use."""
    host = host_manager.HostState('host', 'node', 'cell')
    host.uuid = build.ROOT
    buses = {_region(bus).uuid: bus for bus in order}
    host.stats = {summary.KEY: summary.dumps(
        map(_region, order), {_region(1).uuid: 1})}
    host.allocation_candidates = [
        {'mappings': {'_ACCEL0': [provider]}} for provider in buses]
    assert filter_.AcceleratorFilter().host_passes(
        host, objects.RequestSpec(
            flavor=objects.Flavor(extra_specs={
                'resources_ACCEL0:FPGA': '1', **specs}),
            num_instances=1, numa_topology=None, pci_requests=None))
    return [buses[candidate['mappings']['_ACCEL0'][0]]
            for candidate in host.allocation_candidates]


@pytest.mark.parametrize('order', itertools.permutations([1, 2, 3]))
def test_what_is_to_be_programmed_is_what_nobody_holds(order):
    free = [bus for bus in order if bus != 1]
    assert _chosen(order, {'nova_accel:bitstream_ACCEL0': _IMAGE}) == [
        *free, 1]


@pytest.mark.parametrize('order', itertools.permutations([1, 2, 3]))
def test_otherwise_the_order_stays(order):
    assert _chosen(order, {}) == list(order)

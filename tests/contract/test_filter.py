# SPDX-License-Identifier: Apache-2.0
"""The filter's choice of devices in the candidates of a host."""

import copy
import itertools
import logging
import random

from keystoneauth1 import exceptions
from nova import context
from nova import objects
import nova.conf
from nova.pci import stats as pci_stats
from nova.pci import whitelist
from nova.scheduler import host_manager
from nova.scheduler import utils
from nova.scheduler.client import report
from oslo_serialization import jsonutils
import pytest

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import host_summary
from nova_accel.core.request import affinity
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import search
from nova_accel.core.solver import search_budget
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices
from nova_accel.scheduler import filter as filter_
from nova_accel.scheduler import guest_numa
from nova_accel.scheduler import patches
from tests.unit import build

_IMAGE = 'a6a12670-7014-4cff-a563-cea949b57fb3'
_CLASS = naming.class_provider_uuid(build.ROOT, 'FPGA')


@pytest.fixture(scope='module', autouse=True)
def registered():
    objects.register_all()


def _region(bus):
    """Return a region with two units on its own card."""
    return build.offered(build.region('FPGA', 2, bus))


def _said(resource_class, capacity, used):
    return {'resources': {resource_class: {
        'capacity': capacity, 'used': used}},
        'traits': [*naming.OUR_TRAITS], 'parent_provider_uuid': build.ROOT,
        'root_provider_uuid': build.ROOT}


def _candidate(amount, order, used):
    """Return a candidate of Placement; each card has two units.

    :param used: number of units in use, by bus of the card
    """
    summaries = {_CLASS: _said('FPGA', 2 * len(order), sum(used.values())), **{
        _region(bus).uuid: _said('CUSTOM_UNIT_OF_FPGA', 2, used.get(bus, 0))
        for bus in order}}
    return candidates.Candidate(
        {'allocations': {build.ROOT: {'resources': {'VCPU': 1}},
                         _CLASS: {'resources': {'FPGA': amount}}},
         'mappings': {'_ACCEL0': [_CLASS]}},
        candidates.Answer(summaries, None))


def _host(order, *found):
    host = host_manager.HostState('host', 'node', 'cell')
    host.uuid = build.ROOT
    host.stats = {host_summary.KEY: host_summary.dumps(map(_region, order))}
    host.allocation_candidates = list(found)
    return host


def _spec(**specs):
    return objects.RequestSpec(
        flavor=objects.Flavor(extra_specs=specs), num_instances=1,
        numa_topology=None, pci_requests=None,
        instance_uuid='5cfa5e1f-0b0c-4e0f-8f70-3f5b6d0d0e3a')


def _chosen(order, amount=1, used=None, **specs):
    """Return the number of chosen units, by bus of the card."""
    host = _host(order, _candidate(amount, order, used or {}))
    assert filter_.AcceleratorFilter().host_passes(host, _spec(
        **{'resources_ACCEL0:FPGA': str(amount), **specs}))
    buses = {_region(bus).uuid: bus for bus in order}
    return {buses[uuid]: number for uuid, number in choose_devices.devices(
        host.allocation_candidates[0]).items()}


@pytest.mark.parametrize('order', itertools.permutations([1, 2, 3]))
def test_unused_region_is_chosen_for_programming(order):
    [bus] = _chosen(order, used={1: 1}, **{
        'nova_accel:bitstream_ACCEL0': _IMAGE})
    assert bus != 1
    assert _chosen(order, used={1: 1, 2: 1, 3: 1}, **{
        'nova_accel:bitstream_ACCEL0': _IMAGE})


def test_host_without_nova_accels_driver_is_rejected(caplog):
    """A host without nova_accel's driver is rejected.

    A server would become ACTIVE there without its devices.
    """
    caplog.set_level(logging.INFO)
    host = _host([1], _candidate(1, [1], {}))
    host.stats = {'num_instances': '0'}
    assert not filter_.AcceleratorFilter().host_passes(
        host, _spec(**{'resources_ACCEL0:FPGA': '1'}))
    assert 'driver: 1 host, 1 candidate (host: its nova-compute' in (
        caplog.text)
    # The host passes for a request without devices of nova_accel.
    host.allocation_candidates = [_candidate(1, [1], {})]
    assert filter_.AcceleratorFilter().host_passes(
        host, _spec(**{'resources:VGPU': '1'}))


@pytest.mark.parametrize('order', itertools.permutations([1, 2, 3]))
def test_partly_used_region_is_chosen_without_programming(order):
    assert _chosen(order, used={1: 1}) == {1: 1}


def _chain(seed):
    """Return a host, and rules that it cannot meet, as a long search finds.

    Each of 16 groups must be linked to the next one. The links are a bipartite
    graph of 9 and 7 devices.
    """
    buses = list(range(1, 17))
    names = [str(_region(bus).device.address) for bus in buses]
    pairs = [frozenset(pair) for pair in itertools.product(
        names[:9], names[9:])]
    host = _host(buses, _candidate(16, buses, dict.fromkeys(buses, 1)))
    host.stats = {host_summary.KEY: host_summary.dumps(
        map(_region, buses), links=model.Links(islands=tuple(
            random.Random(seed).sample(pairs, 50))))}
    groups = [f'ACCEL{index}' for index in range(16)]
    specs = affinity.dumps([
        *(affinity.Rule('link_domain', True, pair)
          for pair in itertools.pairwise(groups)),
        affinity.Rule('device', False, tuple(groups))])
    return host, _spec(**specs, **{f'resources_{name}:FPGA': '1'
                                   for name in groups})


@pytest.fixture
def steps(monkeypatch):
    """Return a list that gets an item for each step of a search."""
    made = []
    original = search._Search._candidates
    monkeypatch.setattr(search._Search, '_candidates', lambda *args: (
        made.append(1), original(*args))[1])
    search.cached.memory.clear()
    return made


def test_hard_hosts_share_the_search_budget_of_the_request(
        caplog, steps, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(search_budget, 'REQUEST_STEPS', 4_000)
    hosts = [_chain(seed) for seed in range(20)]
    assert not list(filter_.AcceleratorFilter().filter_all(
        _of_one_request([host for host, _spec in hosts]), hosts[0][1]))
    # Each host has a few steps of its own. All share the request's steps.
    assert len(steps) < 4_000 + 20 * 2 * search_budget.FIRST_STEPS
    assert 'limit: 20 hosts, 20 candidates (host: the search' in caplog.text


def test_single_host_gets_the_whole_search_budget(steps):
    host, spec = _chain(0)
    assert not filter_.AcceleratorFilter().host_passes(host, spec)
    assert len(steps) > search_budget.MAX_STEPS // 3


def test_easy_host_passes_after_many_hard_hosts(steps):
    hosts = [_chain(seed)[0] for seed in range(20)]
    easy, spec = _chain(0)
    easy.stats = {host_summary.KEY: host_summary.dumps(
        map(_region, range(1, 17)), links=model.Links(islands=(frozenset(
            str(_region(bus).device.address) for bus in range(1, 17)),)))}
    assert list(filter_.AcceleratorFilter().filter_all(
        _of_one_request([*hosts, easy]), spec)) == [easy]
    assert len(steps) < 21 * 2 * search_budget.FIRST_STEPS


def _of_one_request(hosts):
    [answer, *_others] = [candidates.of(host) for host in hosts]
    for host in hosts:
        [candidate] = host.allocation_candidates
        candidate.answer = answer
    return hosts


def test_units_of_one_group_are_on_one_card():
    assert _chosen([1, 2, 3], 2, used={1: 1}) in ({2: 2}, {3: 2})
    assert _chosen([1, 2], 2, used={1: 1, 2: 1}, **{
        'nova_accel:count_ACCEL0': '2'}) == {1: 1, 2: 1}


@pytest.mark.parametrize('used', [{}, {1: 2}])
def test_class_from_provider_yaml_stays_in_the_claim(used):
    """A class from provider.yaml keeps its provider in the claim."""
    licences = {_region(1).uuid: 1, _CLASS: 2}
    candidate = _candidate(1, [1, 2], used)
    for provider, amount in licences.items():
        candidate['allocations'].setdefault(provider, {'resources': {}})[
            'resources']['CUSTOM_LICENCE'] = amount
    spec = _spec(**{'resources_ACCEL0:FPGA': '1',
                    'resources:CUSTOM_LICENCE': '3'})
    host = _host([1, 2], candidate)
    # Run the filter twice, as for two servers of a request.
    for _time in range(2):
        assert filter_.AcceleratorFilter().host_passes(host, spec)
        [claimed] = host.allocation_candidates
        assert {provider: allocation['resources']['CUSTOM_LICENCE']
                for provider, allocation in claimed['allocations'].items()
                if 'CUSTOM_LICENCE' in allocation['resources']} == licences
        assert sum(choose_devices.devices(claimed).values()) == 1


def test_candidate_with_only_an_operators_class_is_unchanged():
    candidate = _candidate(1, [1], {})
    candidate['allocations'][_CLASS]['resources'] = {'CUSTOM_LICENCE': 1}
    host = _host([1], candidate)
    assert filter_.AcceleratorFilter().host_passes(host, _spec(**{
        'resources:CUSTOM_LICENCE': '1', 'resources:FPGA': '1'}))
    assert host.allocation_candidates == [candidate]


def _with_traits(order, *buses):
    """Return a candidate whose devices on the buses have a trait."""
    candidate = _candidate(1, order, {})
    summaries = candidate.answer.ours(build.ROOT)
    for provider in _CLASS, *(_region(bus).uuid for bus in buses):
        summaries[provider]['traits'].append('CUSTOM_ARRIA10')
    return candidate


def _image(**properties):
    return objects.ImageMeta.from_dict({'properties': properties})


@pytest.mark.parametrize('order', itertools.permutations([1, 2, 3]))
@pytest.mark.parametrize('specs, properties', [
    ({'resources1:FPGA': '1', 'trait1:CUSTOM_ARRIA10': 'required'}, {}),
    ({'resources:FPGA': '1', 'trait:CUSTOM_ARRIA10': 'required'}, {}),
    ({'resources:FPGA': '1'}, {'trait:CUSTOM_ARRIA10': 'required'})])
def test_required_traits_apply_to_ungrouped_classes(order, specs, properties):
    spec = _spec(**specs)
    spec.image = _image(**properties)
    candidate = _with_traits(order, 2)
    host = _host(order, candidate)
    assert filter_.AcceleratorFilter().host_passes(host, spec)
    assert choose_devices.devices(host.allocation_candidates[0]) == {
        _region(2).uuid: 1}
    candidate.answer.ours(build.ROOT)[_region(2).uuid]['resources'][
        'CUSTOM_UNIT_OF_FPGA']['used'] = 2
    assert not filter_.AcceleratorFilter().host_passes(
        _host(order, candidate), spec)


@pytest.mark.parametrize('order', itertools.permutations([1, 2, 3]))
@pytest.mark.parametrize('image', [None, _image()])
def test_forbidden_traits_apply_to_ungrouped_classes(order, image):
    spec = _spec(**{'resources:FPGA': '1',
                    'trait:CUSTOM_ARRIA10': 'forbidden'})
    spec.image = image
    host = _host(order, _with_traits(order, 1, 3))
    assert filter_.AcceleratorFilter().host_passes(host, spec)
    assert choose_devices.devices(host.allocation_candidates[0]) == {
        _region(2).uuid: 1}


def test_host_without_enough_units_on_one_card_is_rejected():
    host = _host([1, 2], _candidate(2, [1, 2], {1: 1, 2: 1}))
    assert not filter_.AcceleratorFilter().host_passes(
        host, _spec(**{'resources_ACCEL0:FPGA': '2'}))
    assert host.allocation_candidates == []


@pytest.mark.parametrize('found', [
    [], [{'allocations': {build.ROOT: {'resources': {'VCPU': 1}}},
          'mappings': {'': [build.ROOT]}}]])
def test_candidates_without_summaries_are_unchanged(found):
    """Candidates without summaries, as in a rebuild, do not change."""
    host = _host([1], *copy.deepcopy(found))
    assert filter_.AcceleratorFilter().host_passes(
        host, _spec(**{'resources_ACCEL0:FPGA': '1'}))
    assert host.allocation_candidates == found


def test_unknown_rule_rejects_the_host():
    host = _host([1], _candidate(1, [1], {}))
    assert not filter_.AcceleratorFilter().host_passes(host, _spec(**{
        'resources_ACCEL0:FPGA': '1',
        'nova_accel:affinity0': 'required same moon_phase 0-1'}))


def test_rebuild_passes_without_reading_the_flavor():
    """A host passes for a rebuild, even if the flavor has an unknown rule.

    The server keeps its devices.
    """
    spec = _spec(**{
        'resources_ACCEL0:FPGA': '1',
        'nova_accel:affinity0': 'required same moon_phase 0-1'})
    spec.scheduler_hints = {'_nova_check_type': ['rebuild']}
    assert filter_.AcceleratorFilter().host_passes(_host([1]), spec)


def test_candidate_can_be_copied_and_serialized():
    candidate = _candidate(1, [1], {})
    copied = copy.deepcopy(candidate)
    copied['allocations'][_CLASS]['resources']['FPGA'] = 7
    assert candidate['allocations'][_CLASS]['resources']['FPGA'] == 1
    assert copied.answer is candidate.answer
    assert jsonutils.loads(jsonutils.dumps(candidate)) == {
        'allocations': candidate['allocations'],
        'mappings': candidate['mappings']}


def test_unreachable_placement_returns_none(monkeypatch):
    def get(*_args, **_kwargs):
        raise exceptions.ConnectFailure()

    patches.get_allocation_candidates.install()
    client = report.SchedulerReportClient
    monkeypatch.setattr(client, '__init__', lambda self: None)
    monkeypatch.setattr(client, 'get', get)
    asked = utils.ResourceRequest()
    asked.get_request_group(None).add_resource('VCPU', 1)
    assert client().get_allocation_candidates(
        context.get_admin_context(), asked) is None


def test_claimed_candidate_is_unchanged_by_the_next_server():
    host = _host([1, 2], _candidate(1, [1, 2], {}))
    spec = _spec(**{'resources_ACCEL0:FPGA': '1'})
    enabled = filter_.AcceleratorFilter()
    assert enabled.host_passes(host, spec)
    claimed = host.allocation_candidates[0]
    first = choose_devices.devices(claimed)
    for _server in range(3):
        host.num_instances += 1
        assert enabled.host_passes(host, spec)
    assert choose_devices.devices(claimed) == first
    host.num_instances += 1
    assert not enabled.host_passes(host, spec)


def _ports(count):
    """Return Nova's PCI requests for ports of one network."""
    return [objects.InstancePCIRequest(
        request_id=f'{_IMAGE[:-1]}{number}', count=1,
        spec=[{'physical_network': 'fast'}], alias_name=None,
        requester_id=f'{_IMAGE[:-1]}{number}') for number in range(count)]


def _pool(node, count):
    return objects.PciDevicePool(
        product_id='1014', vendor_id='15b3', numa_node=node, count=count,
        tags={'dev_type': 'type-VF', 'physical_network': 'fast'})


def _numa_host(cells, *pools, cpuless_nodes=None):
    """Return a host with NUMA nodes and with PCI pools for ports."""
    host = _host([1])
    host.stats = {host_summary.KEY: host_summary.dumps(
        [], cpuless_nodes=cpuless_nodes or {})}
    host.numa_topology = objects.NUMATopology(cells=[objects.NUMACell(
        id=number, cpuset={number}, pcpuset={number}, memory=1024,
        cpu_usage=0, memory_usage=0, mempages=[], siblings=[],
        pinned_cpus=set(), network_metadata=objects.NetworkMetadata(
            physnets={f'net{number}'}, tunneled=False))
        for number in range(cells)])
    host.cpu_allocation_ratio = host.ram_allocation_ratio = 1.
    host.pci_stats = pci_stats.PciDeviceStats(
        host.numa_topology, objects.PciDevicePoolList(objects=list(pools)))
    return host


def _around(host, ports=0, guest=None, **more):
    """Return the NUMA nodes of guest and network that a rule uses."""
    spec = _spec(**{'resources_ACCEL0:FPGA': '1', **affinity.dumps([
        affinity.Rule('numa_node', True, (
            'ACCEL0', affinity.GUEST, affinity.NETWORK))])})
    spec.pci_requests = objects.InstancePCIRequests(requests=_ports(ports))
    spec.numa_topology = guest
    for name, value in more.items():
        setattr(spec, name, value)
    return next(guest_numa.Nodes(
        host, spec, flavor_request.parse(spec.flavor.extra_specs),
        search_budget.Budget()).around({'mappings': {}}))


def _guest():
    """Return a guest with one NUMA cell."""
    return objects.InstanceNUMATopology(cells=[objects.InstanceNUMACell(
        id=0, cpuset={0}, pcpuset=set(), memory=512, pagesize=None,
        cpu_pinning_raw=None, cpu_policy=None, cpu_thread_policy=None)])


@pytest.mark.parametrize('ports, nodes', [
    (0, None), (1, {0}), (2, {0, 1}), (3, {0, 1}), (4, set())])
def test_network_nodes_are_those_of_the_functions_nova_takes(ports, nodes):
    host = _numa_host(2, _pool(0, 1), _pool(1, 2))
    assert _around(host, ports).network == nodes
    assert [pool['count'] for pool in host.pci_stats.pools] == [1, 2]


def test_network_nodes_follow_the_guests_numa_node():
    host = _numa_host(2, _pool(1, 2), _pool(0, 1))
    assert _around(host, 1).network == {1}
    host.numa_topology.cells[1].memory_usage = 1024
    around = _around(host, 1, _guest())
    assert around.guest == around.network == {0}


@pytest.mark.parametrize('node, nodes', [(1, {1}), (2, {0}), (3, {1})])
def test_ports_on_a_node_without_cpus_count_as_on_the_nearest(node, nodes):
    host = _numa_host(4, _pool(node, 1), cpuless_nodes={2: 0, 3: 1})
    assert _around(host, 1).network == nodes


def test_ports_with_unknown_numa_node():
    assert _around(_numa_host(1, _pool(None, 1)), 1).network == {0}
    assert _around(_numa_host(2, _pool(None, 1)), 1).network == set()
    assert _around(_numa_host(2, _pool(None, 1), cpuless_nodes={0: 1}),
                   1).network == {1}
    unknown = _numa_host(1)
    unknown.pci_stats = None
    assert _around(unknown, 1).network == set()


@pytest.mark.parametrize('nodes', itertools.permutations([None, 0, 1, 1]))
def test_claim_takes_the_functions_that_the_scheduler_predicts(nodes):
    """The scheduler predicts the functions that nova-compute's claim takes.

    The scheduler uses the pools that nova-compute reports.
    """
    nova.conf.CONF([], project='nova', default_config_files=[])
    topology = _numa_host(2).numa_topology
    entries = whitelist.Whitelist([jsonutils.dumps({
        'vendor_id': '15b3', 'product_id': '1014',
        'physical_network': 'fast'})])
    claimed = pci_stats.PciDeviceStats(topology, dev_filter=entries)
    for bus, node in enumerate(nodes):
        claimed.add_device(objects.PciDevice(
            address=f'0000:{bus:02x}:00.0', parent_addr=None,
            vendor_id='15b3', product_id='1014', dev_type='type-PCI',
            numa_node=node, extra_info={}, request_id=None))
    host = _numa_host(2, *claimed.to_device_pools_obj())
    for ports in range(1, 4):
        took = copy.deepcopy(claimed).consume_requests(_ports(ports))
        assert _around(host, ports).network == {
            device.numa_node for device in took} - {None}


def test_guest_is_placed_near_its_networks():
    """The guest is on the NUMA node of its networks.

    NUMATopologyFilter passes the networks to the claim in the limits.
    """
    host = _numa_host(2)
    assert _around(host, guest=_guest()).guest == {0}
    assert _around(host, guest=_guest(), network_metadata=(
        objects.NetworkMetadata(physnets={'net1'}, tunneled=False))
        ).guest == {1}

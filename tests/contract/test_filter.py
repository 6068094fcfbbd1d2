# SPDX-License-Identifier: Apache-2.0
"""What the filter makes of a host's candidates, whatever their order."""

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
    """A region of two units, on a card of its own."""
    return build.offered(build.region('FPGA', 2, bus))


def _said(resource_class, capacity, used):
    return {'resources': {resource_class: {
        'capacity': capacity, 'used': used}},
        'traits': [*naming.OUR_TRAITS], 'parent_provider_uuid': build.ROOT,
        'root_provider_uuid': build.ROOT}


def _candidate(amount, order, used):
    """What Placement answers; of each card two units, some used."""
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
    """Units by bus, of the candidate that Nova will claim."""
    host = _host(order, _candidate(amount, order, used or {}))
    assert filter_.AcceleratorFilter().host_passes(host, _spec(
        **{'resources_ACCEL0:FPGA': str(amount), **specs}))
    buses = {_region(bus).uuid: bus for bus in order}
    return {buses[uuid]: number for uuid, number in choose_devices.devices(
        host.allocation_candidates[0]).items()}


@pytest.mark.parametrize('order', itertools.permutations([1, 2, 3]))
def test_what_is_to_be_programmed_is_what_nobody_holds(order):
    [bus] = _chosen(order, used={1: 1}, **{
        'nova_accel:bitstream_ACCEL0': _IMAGE})
    assert bus != 1
    assert _chosen(order, used={1: 1, 2: 1, 3: 1}, **{
        'nova_accel:bitstream_ACCEL0': _IMAGE})


def test_a_host_whose_nova_compute_is_not_ours_any_more(caplog):
    """What it was promised would go by default: ACTIVE, and no device."""
    caplog.set_level(logging.INFO)
    host = _host([1], _candidate(1, [1], {}))
    host.stats = {'num_instances': '0'}
    assert not filter_.AcceleratorFilter().host_passes(
        host, _spec(**{'resources_ACCEL0:FPGA': '1'}))
    assert 'driver: 1 hosts, 1 candidates (host: its nova-compute' in (
        caplog.text)
    # What is another's on the same host is not ours to refuse.
    host.allocation_candidates = [_candidate(1, [1], {})]
    assert filter_.AcceleratorFilter().host_passes(
        host, _spec(**{'resources:VGPU': '1'}))


@pytest.mark.parametrize('order', itertools.permutations([1, 2, 3]))
def test_otherwise_what_is_begun_is_used_up(order):
    assert _chosen(order, used={1: 1}) == {1: 1}


def _chain(seed):
    """A host and rules of which nothing but trying tells that they clash.

    Sixteen groups in a row, each joined to the next; the odd ones are fewer.
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
    """How many steps searches have made."""
    made = []
    original = search._Search._ways
    monkeypatch.setattr(search._Search, '_ways', lambda *args: (
        made.append(1), original(*args))[1])
    search.cached.memory.clear()
    return made


def test_hosts_that_come_to_no_end_share_the_steps_of_their_request(
        caplog, steps, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(search_budget, 'REQUEST_STEPS', 4_000)
    hosts = [_chain(seed) for seed in range(20)]
    assert not list(filter_.AcceleratorFilter().filter_all(
        _of_one_request([host for host, _spec in hosts]), hosts[0][1]))
    # A few for each, then what the request has.
    assert len(steps) < 4_000 + 20 * 2 * search_budget.FIRST_STEPS
    assert 'limit: 20 hosts, 20 candidates (host: no way' in caplog.text


def test_a_host_that_is_alone_gets_all_of_them(steps):
    host, spec = _chain(0)
    assert not filter_.AcceleratorFilter().host_passes(host, spec)
    assert len(steps) > search_budget.MAX_STEPS // 3


def test_an_easy_host_is_found_behind_many_that_come_to_no_end(steps):
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


def test_units_of_one_group_are_of_one_card():
    assert _chosen([1, 2, 3], 2, used={1: 1}) in ({2: 2}, {3: 2})
    assert _chosen([1, 2], 2, used={1: 1, 2: 1}, **{
        'nova_accel:count_ACCEL0': '2'}) == {1: 1, 2: 1}


@pytest.mark.parametrize('used', [{}, {1: 2}])
def test_what_provider_yaml_adds_to_a_device_is_claimed_too(used):
    """Of whichever device Placement found it; the class's provider too."""
    licences = {_region(1).uuid: 1, _CLASS: 2}
    candidate = _candidate(1, [1, 2], used)
    for provider, amount in licences.items():
        candidate['allocations'].setdefault(provider, {'resources': {}})[
            'resources']['CUSTOM_LICENCE'] = amount
    spec = _spec(**{'resources_ACCEL0:FPGA': '1',
                    'resources:CUSTOM_LICENCE': '3'})
    host = _host([1, 2], candidate)
    # As for the next server of a request, too.
    for _time in range(2):
        assert filter_.AcceleratorFilter().host_passes(host, spec)
        [claimed] = host.allocation_candidates
        assert {provider: allocation['resources']['CUSTOM_LICENCE']
                for provider, allocation in claimed['allocations'].items()
                if 'CUSTOM_LICENCE' in allocation['resources']} == licences
        assert sum(choose_devices.devices(claimed).values()) == 1


def test_a_class_of_the_operators_alone_on_the_provider_of_a_class():
    candidate = _candidate(1, [1], {})
    candidate['allocations'][_CLASS]['resources'] = {'CUSTOM_LICENCE': 1}
    host = _host([1], candidate)
    assert filter_.AcceleratorFilter().host_passes(host, _spec(**{
        'resources:CUSTOM_LICENCE': '1', 'resources:FPGA': '1'}))
    assert host.allocation_candidates == [candidate]


def _with_traits(order, *buses):
    """A candidate of a host on which devices have a trait, or one has."""
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
def test_a_class_gets_a_device_with_the_traits_beside_it(order, specs,
                                                         properties):
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
def test_a_class_gets_no_device_with_a_trait_that_is_forbidden(order, image):
    """As far as Placement lets it come to that."""
    spec = _spec(**{'resources:FPGA': '1',
                    'trait:CUSTOM_ARRIA10': 'forbidden'})
    spec.image = image
    host = _host(order, _with_traits(order, 1, 3))
    assert filter_.AcceleratorFilter().host_passes(host, spec)
    assert choose_devices.devices(host.allocation_candidates[0]) == {
        _region(2).uuid: 1}


def test_what_is_not_there_for_all_units_drops_the_host():
    host = _host([1, 2], _candidate(2, [1, 2], {1: 1, 2: 1}))
    assert not filter_.AcceleratorFilter().host_passes(
        host, _spec(**{'resources_ACCEL0:FPGA': '2'}))
    assert host.allocation_candidates == []


@pytest.mark.parametrize('found', [
    [], [{'allocations': {build.ROOT: {'resources': {'VCPU': 1}}},
          'mappings': {'': [build.ROOT]}}]])
def test_candidates_that_know_nothing_are_left_alone(found):
    """Those of a rebuild, and what came some other way."""
    host = _host([1], *copy.deepcopy(found))
    assert filter_.AcceleratorFilter().host_passes(
        host, _spec(**{'resources_ACCEL0:FPGA': '1'}))
    assert host.allocation_candidates == found


def test_what_a_later_version_wants_is_not_passed_over():
    host = _host([1], _candidate(1, [1], {}))
    assert not filter_.AcceleratorFilter().host_passes(host, _spec(**{
        'resources_ACCEL0:FPGA': '1',
        'nova_accel:affinity0': 'required same moon_phase 0-1'}))


def test_a_rebuild_is_not_asked_what_it_wants():
    """It has its devices, whichever version wrote its flavor."""
    spec = _spec(**{
        'resources_ACCEL0:FPGA': '1',
        'nova_accel:affinity0': 'required same moon_phase 0-1'})
    spec.scheduler_hints = {'_nova_check_type': ['rebuild']}
    assert filter_.AcceleratorFilter().host_passes(_host([1]), spec)


def test_a_candidate_is_what_nova_copies_and_sends():
    candidate = _candidate(1, [1], {})
    copied = copy.deepcopy(candidate)
    copied['allocations'][_CLASS]['resources']['FPGA'] = 7
    assert candidate['allocations'][_CLASS]['resources']['FPGA'] == 1
    assert copied.answer is candidate.answer
    assert jsonutils.loads(jsonutils.dumps(candidate)) == {
        'allocations': candidate['allocations'],
        'mappings': candidate['mappings']}


def test_placement_that_cannot_be_reached_is_novas_business(monkeypatch):
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


def test_a_candidate_that_was_claimed_is_not_changed_for_the_next():
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
    """What Nova asks for behind so many ports of one network."""
    return [objects.InstancePCIRequest(
        request_id=f'{_IMAGE[:-1]}{number}', count=1,
        spec=[{'physical_network': 'fast'}], alias_name=None,
        requester_id=f'{_IMAGE[:-1]}{number}') for number in range(count)]


def _pool(node, count):
    return objects.PciDevicePool(
        product_id='1014', vendor_id='15b3', numa_node=node, count=count,
        tags={'dev_type': 'type-VF', 'physical_network': 'fast'})


def _numa_host(cells, *pools):
    """A host with NUMA nodes, and functions for ports."""
    host = _host([1])
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
    """What a rule on guest and network is about."""
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
    """A guest with one NUMA cell."""
    return objects.InstanceNUMATopology(cells=[objects.InstanceNUMACell(
        id=0, cpuset={0}, pcpuset=set(), memory=512, pagesize=None,
        cpu_pinning_raw=None, cpu_policy=None, cpu_thread_policy=None)])


@pytest.mark.parametrize('ports, nodes', [
    (0, None), (1, {0}), (2, {0, 1}), (3, {0, 1}), (4, set())])
def test_nodes_of_network_ports_are_those_where_nova_takes_them(ports, nodes):
    host = _numa_host(2, _pool(0, 1), _pool(1, 2))
    assert _around(host, ports).network == nodes
    assert [pool['count'] for pool in host.pci_stats.pools] == [1, 2]


def test_nova_takes_what_is_near_a_guest_that_is_somewhere():
    host = _numa_host(2, _pool(1, 2), _pool(0, 1))
    assert _around(host, 1).network == {1}
    host.numa_topology.cells[1].memory_usage = 1024
    around = _around(host, 1, _guest())
    assert around.guest == around.network == {0}


def test_ports_that_do_not_say_where_they_are():
    assert _around(_numa_host(1, _pool(None, 1)), 1).network == {0}
    assert _around(_numa_host(2, _pool(None, 1)), 1).network == set()
    unknown = _numa_host(1)
    unknown.pci_stats = None
    assert _around(unknown, 1).network == set()


@pytest.mark.parametrize('nodes', itertools.permutations([None, 0, 1, 1]))
def test_the_claim_takes_what_the_scheduler_says(nodes):
    """As nova-compute has functions, and as its pools come to us."""
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


def test_a_guest_is_where_its_networks_are():
    """Of which the NUMATopologyFilter tells the claim, in the limits."""
    host = _numa_host(2)
    assert _around(host, guest=_guest()).guest == {0}
    assert _around(host, guest=_guest(), network_metadata=(
        objects.NetworkMetadata(physnets={'net1'}, tunneled=False))
        ).guest == {1}

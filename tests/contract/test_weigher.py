# SPDX-License-Identifier: Apache-2.0
"""The order of hosts after the filter, from AcceleratorWeigher."""

import json

from nova import objects
from nova import weights as nova_weights
import nova.conf
from nova.scheduler import host_manager
from nova.scheduler import weights
import pytest

from nova_accel.core.placement import host_summary
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import fragmentation
from nova_accel.scheduler import filter as filter_
from nova_accel.scheduler import host_weights
from nova_accel.scheduler import weigher
from tests.bench import fleet as fleets

_UUID = 'a6a12670-7014-4cff-a563-cea949b57fb3'
_PLAIN = objects.RequestSpec(flavor=objects.Flavor(extra_specs={}))


@pytest.fixture(autouse=True)
def configured():
    nova.conf.CONF([], project='nova', default_config_files=[])
    yield
    for name in ('preferred', 'pack', 'island', 'avoid'):
        nova.conf.CONF.clear_override(f'accel_{name}_weight_multiplier',
                                      'nova_accel')


def _set(**multipliers):
    for name, value in multipliers.items():
        nova.conf.CONF.set_override(f'accel_{name}_weight_multiplier', value,
                                    'nova_accel')


def _fleet(*in_use):
    """Return a fleet; for each host the numbers of its devices in use."""
    fleet = fleets.Fleet(len(in_use))
    for host, numbers in zip(fleet.hosts, in_use, strict=True):
        fleet.claim(host, [list(host.devices)[number] for number in numbers])
    return fleet


def _states(fleet, count):
    spec = fleets.request(count)
    return list(filter_.AcceleratorFilter().filter_all(
        fleet.states(count), spec)), spec


def _order(states, spec):
    """Return the names of the hosts, the best one first."""
    [loaded] = weights.HostWeightHandler().get_matching_classes(
        ['nova_accel.scheduler.weigher.AcceleratorWeigher'])
    weighed = weights.HostWeightHandler().get_weighed_objects(
        [loaded()], states, spec)
    return [one.obj.host for one in weighed]


def _best(count, *in_use):
    return _order(*_states(_fleet(*in_use), count))[0]


_HALF = range(4)


def test_host_with_fewest_free_devices_is_best():
    assert _best(2, [], [0, 1, 2], _HALF) == 'host2'
    assert _best(5, [], [0, 1, 2], _HALF) == 'host1'


def test_host_with_partly_used_node_is_best():
    # Both hosts have six free devices. host0 has three on each node. host1 has
    # two and four.
    assert _best(2, [0, 4], [0, 1]) == 'host1'
    assert _best(3, [0, 1], [0, 4]) == 'host1'


@pytest.mark.parametrize('in_use, best', [
    # host0 has one free device on each node. All devices of host1 are free.
    (([0, 1, 2, 4, 5, 6], []), 'host1'),
    # Both hosts meet the rule, so packing decides.
    (([0, 1, 4, 5, 6, 7], []), 'host0'),
    # Both hosts violate the rule equally, so packing decides.
    (([0, 1, 2, 4, 5, 6], [0, 1, 2, 4, 5, 6, 7]), 'host0')])
def test_host_that_meets_preferred_rules_is_best(in_use, best):
    assert _best(2, *in_use) == best


def _rooms(*left):
    return [fragmentation.Room(each, 0.) for each in left]


def test_worse_third_host_does_not_shrink_the_lead():
    """The lead of the best host exceeds the sum of all other weights."""
    best, worse, _worst = host_weights.parts([7, 8, 1000], _rooms(0., 0., 0.))[
        'accel_preferred_weight_multiplier']
    assert 60 * (best - worse) > 10 + 10 + 6


def test_preferred_multiplier_of_zero_has_no_effect():
    _set(preferred=0.)
    assert _best(2, [0, 1, 2, 4, 5, 6], []) == 'host0'


def test_negative_pack_multiplier_spreads():
    _set(pack=-10., island=0.)
    assert _best(2, [0, 1, 2], _HALF, []) == 'host2'


def test_multipliers_of_zero_keep_the_order():
    _set(pack=0., island=0.)
    assert _order(*_states(_fleet(*[range(number) for number in range(5)]),
                           1)) == [f'host{number}' for number in range(5)]


def test_aggregate_metadata_takes_precedence():
    states, spec = _states(_fleet([], _HALF), 1)
    for state in states:
        state.aggregates = [objects.Aggregate(metadata={
            'accel_pack_weight_multiplier': '-10',
            'accel_island_weight_multiplier': '0'})]
    assert _order(states, spec) == ['host0', 'host1']


def test_devices_of_earlier_servers_of_the_request_are_not_free():
    fleet = _fleet([0, 1, 2, 4], [])
    states, spec = fleet.states(2), fleets.request(2)
    ours = filter_.AcceleratorFilter()
    first = list(ours.filter_all(states, spec))
    # Nova places servers of the request on the second host.
    for _server in range(3):
        next(ours.filter_all([first[1]], spec))
        first[1].num_instances += 1
    assert _order(list(ours.filter_all(first, spec)), spec) == [
        'host1', 'host0']


def _in_use(stats):
    """Return the stats of a host whose devices are all in use."""
    tables = json.loads(stats[host_summary.KEY])
    for _address, _place, regions in tables['cards']:
        for region in regions:
            region[2] = 0
    return {host_summary.KEY: json.dumps(tables)}


def test_server_without_devices_avoids_hosts_with_devices():
    states = [host.state for host in fleets.Fleet(3).hosts]
    states[1].stats = _in_use(states[1].stats)
    states[2].stats = {}
    assert _order(states, _PLAIN) == ['host2', 'host1', 'host0']
    _set(avoid=-10.)
    assert _order(states, _PLAIN) == ['host0', 'host1', 'host2']


def test_class_from_provider_yaml_is_not_a_device():
    """A request for a class from provider.yaml avoids hosts with devices."""
    states = _fleet([], []).states(1)
    states[1].stats = {}
    for state in states:
        state.allocation_candidates = [{'allocations': {state.uuid: {
            'resources': {'VCPU': 1, 'CUSTOM_LICENCE': 1}}}}]
    spec = objects.RequestSpec(flavor=objects.Flavor(
        extra_specs={'resources:CUSTOM_LICENCE': '1'}))
    assert _order(states, spec) == ['host1', 'host0']


def test_lead_exceeds_the_sum_of_novas_weighers():
    """The smallest lead of a host without devices exceeds Nova's weights."""
    states = [host.state for host in fleets.Fleet(2).hosts]
    states[0].stats = _in_use(states[0].stats)
    states[1].stats = None
    busy, without = weigher.AcceleratorWeigher().weigh_objects(
        [nova_weights.WeighedObject(state, 0.) for state in states], _PLAIN)
    # The weighers of CPU, RAM, disk, PCI, hypervisor version and I/O have at
    # most 1 each.
    assert without - busy > 6


@pytest.mark.parametrize('stats', [
    None, {}, {host_summary.KEY: None}, {host_summary.KEY: 'zlib:x'},
    {host_summary.KEY: '{"v":2,"cards":[["x",0,[[null,0,0]]]],'
                       '"places":[[0]]}'}])
def test_any_host_stats_are_accepted(stats):
    states, spec = _states(_fleet([], _HALF), 1)
    for state in states:
        state.stats = stats
    assert set(_order(states, spec)) == {'host0', 'host1'}
    assert set(_order(states, _PLAIN)) == {'host0', 'host1'}


def test_host_without_stats_attribute_is_weighed():
    """A host without stats does not prevent the weighing of other hosts."""
    unread = host_manager.HostState('unread', 'unread', 'cell')
    unread.update(compute=objects.ComputeNode(uuid=_UUID, free_disk_gb=None))
    assert not hasattr(unread, 'stats')
    states, spec = _states(_fleet([]), 1)
    for asked in spec, _PLAIN:
        assert set(_order([unread, *states], asked)) == {'unread', 'host0'}


def test_hosts_without_candidates_weigh_the_same():
    """Hosts without candidates, as in a rebuild, weigh the same."""
    states, spec = _states(_fleet([], _HALF), 1)
    for state in states:
        state.allocation_candidates = []
    assert _order(states, spec) == ['host0', 'host1']


def test_hosts_weigh_the_same_without_the_filter():
    assert _order(_fleet([], _HALF).states(1), fleets.request(1)) == [
        'host0', 'host1']


def test_rounding_errors_do_not_count():
    assert host_weights.parts([0, 0], _rooms(0.1 + 0.2, 0.3))[
        'accel_pack_weight_multiplier'] == [0, 0]


def test_nova_leaves_weights_between_0_and_1_unchanged():
    """Nova does not normalize the weights; the weigher relies on this."""
    ours = weigher.AcceleratorWeigher()
    assert list(nova_weights.normalize(
        [0., 12.5, -3.], minval=ours.minval, maxval=ours.maxval)) == [
        0., 12.5, -3.]


@pytest.mark.parametrize('per, best', [('', 'host1'), ('host', 'host0')])
def test_first_alternative_counts_more_than_packing(per, best):
    """The fuller host has none of the first; with per: host, that is equal."""
    states, spec = _states(_fleet([0, 1, 2], []), 1)
    wanted = flavor_request.parse({flavor_specs.PER_KEY: per})
    for state, alternative in zip(states, [1, 0], strict=True):
        state.allocation_candidates[0].rank = wanted.rank(alternative)
    assert _order(states, spec)[0] == best

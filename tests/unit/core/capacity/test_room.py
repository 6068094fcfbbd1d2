# SPDX-License-Identifier: Apache-2.0
"""How many servers fit on hosts that Placement shows."""

import random

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.core.assignment import choose
from nova_accel.core.capacity import room
from nova_accel.core.capacity import view
from nova_accel.core.placement import device_traits
from nova_accel.core.placement import listing
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import reasons

GPU = 'CUSTOM_GPU'


def device(number, free=1, total=1, node=None, switch=None, partitions=(),
           traits=(), resource_class=GPU):
    """Return a device with a switch for each two, and a node for each four."""
    place = {'numa_node': str(number // 4 if node is None else node),
             'pcie_root': f'pci{number // 4:04}:00',
             'pcie_switch': str(number // 2 if switch is None else switch)}
    return listing.Device(
        f'card{number}', 'host', str(number), device_traits.Properties(
            '10de:2330', place, frozenset(), dict(partitions)),
        (listing.Units(f'uuid{number}', '', resource_class, frozenset(traits),
                       total - free, free),))


def host(*devices):
    return listing.Host('uuid', 'host', devices)


def rooms(count=1, rules=(), classes=(GPU,), amount=1, **group):
    """Return the rooms for a profile of equal groups."""
    names = tuple(f'ACCEL{number}' for number in range(count))
    profile = device_profile.Profile('p', (device_profile.Group(
        {GPU: amount}, group.pop('traits', {}),
        group.pop('numa', device_profile.OFF),
        any_of=group.pop('any_of', ())),) * count, rules=tuple(
        affinity.Rule(key, same, names) for key, same in rules))
    return room.Rooms(flavor_request.parse(flavor_specs.expand(profile, {})),
                      classes)


@pytest.mark.parametrize('rules, free, servers, left, why', [
    ((), range(8), 4, 0, 'fewer than 2 free CUSTOM_GPU'),
    ((), (0, 4, 5), 1, 1, 'fewer than 2 free CUSTOM_GPU'),
    ([('pcie_switch', True)], (0, 2, 4, 5), 1, 2,
     'fewer than 2 free CUSTOM_GPU on one PCIe switch'),
    ([('numa_node', True)], (0, 3, 4), 1, 1, 'fewer than 2 free CUSTOM_GPU'),
    ([('numa_node', False)], (0, 1, 2), 0, 3,
     '2 free CUSTOM_GPU on fewer than 2 NUMA nodes'),
    ((), (), 0, 0, 'fewer than 2 free CUSTOM_GPU')])
def test_servers_that_fit_and_what_strands_the_rest(rules, free, servers,
                                                    left, why):
    found = rooms(2, rules).of(view.of(host(*(
        device(number, int(number in free)) for number in range(8)))))
    assert (found.servers, found.left) == (servers,
                                           {GPU: left} if left else {})
    assert reasons.stranded(found.obstacle) == why


def test_partition_is_used_as_a_whole_only():
    linked = [('link_domain', True)]
    pair = [device(0, partitions={0: 2}), device(1, partitions={0: 2})]
    assert rooms(2, linked).of(view.of(host(*pair))).servers == 1
    # Its other device is refused, so Placement does not show it.
    trio = [device(number, partitions={0: 3}) for number in range(2)]
    assert rooms(2, linked).of(view.of(host(*trio))).servers == 0


def test_units_of_one_region():
    pool = device(0, free=7, total=8)
    assert rooms(amount=3).of(view.of(host(pool))).servers == 2


def test_only_devices_with_the_traits_serve():
    found = rooms(traits={'CUSTOM_X': 'required'}).of(view.of(host(
        device(0), device(1, traits=['CUSTOM_X']))))
    assert (found.servers, found.left) == (1, {GPU: 1})
    assert reasons.clause(found.obstacle) == (
        'at most 0 of 1 free CUSTOM_GPU with CUSTOM_X')


def test_flavor_that_asks_for_a_class_without_a_profile():
    asked = {f'resources:{GPU}': '1', 'resources:CUSTOM_LICENCE': '1',
             'resources:VCPU': '2'}
    found = room.Rooms(flavor_request.parse(asked), {GPU})
    assert found.classes == {GPU}
    assert found.of(view.of(host(device(0), device(1)))).servers == 2


def test_flavor_that_asks_for_no_devices_fits_nowhere():
    found = room.Rooms(flavor_request.parse({'resources:VCPU': '2'}), {GPU})
    assert found.of(view.of(host(device(0)))).servers == 0


@given(st.lists(st.integers(0, 2), min_size=8, max_size=8), st.randoms())
def test_hosts_that_look_alike_are_equal(free, chance):
    """NUMA nodes, switches and devices in any order."""
    nodes, switches, slots = ([*range(2)], [*range(4)], [*range(8)])
    for names in (nodes, switches, slots):
        chance.shuffle(names)
    other = host(*(listing.Device(
        f'other{slots[number]}', 'other', str(slots[number]),
        device_traits.Properties('10de:2330', {
            'numa_node': str(nodes[number // 4]),
            'pcie_root': f'pci{nodes[number // 4]:04}:00',
            'pcie_switch': str(switches[number // 2])}),
        (listing.Units(f'u{slots[number]}', '', GPU, frozenset(),
                       2 - amount, amount),))
        for number, amount in enumerate(free)))
    assert view.of(other) == view.of(host(*(
        device(number, amount, 2) for number, amount in enumerate(free))))


@given(st.lists(st.booleans(), min_size=8, max_size=8),
       st.sampled_from(['pcie_switch', 'numa_node', 'link_domain']),
       st.integers(1, 4))
def test_view_serves_as_many_as_the_host_itself(free, key, count):
    """The solver gets the devices by their own names and in their order."""
    sets = {number: {number // 2: 2, 4 + number // 4: 4}
            for number in range(8)}
    shown = host(*(device(number, int(is_free), partitions=sets[number])
                   for number, is_free in enumerate(free)))
    asked = rooms(count, [(key, True)])
    named = view.View(tuple(
        item.__class__(units.provider, GPU, frozenset(), units.free,
                       model.Place(number // 4, f'r{number // 4}',
                                   f's{number // 2}', device_.address), 1)
        for number, (item, (device_, units)) in enumerate(zip(
            view.of(shown).units, shown.units, strict=True))), model.Links(
        tuple(frozenset(str(number) for number in range(8)
                        if one in sets[number]) for one in range(6))))
    assert asked.of(view.of(shown)).servers == rooms(
        count, [(key, True)]).of(named).servers


def test_pool_of_many_units_costs_one_search(monkeypatch):
    calls = []
    arranged = choose.choose
    monkeypatch.setattr(choose, 'choose', lambda *arguments: (
        calls.append(arguments), arranged(*arguments))[1])
    pools = host(*(device(number, free=200 + number, total=256)
                   for number in range(4)))
    assert rooms(amount=3).of(view.of(pools)).servers == 66 + 67 + 67 + 67
    assert len(calls) == 5


@pytest.mark.parametrize('count, rules', [
    (2, ()), (2, [('device', False)]), (3, [('numa_node', True)]),
    (2, [('pcie_switch', False)])])
def test_servers_at_once_are_as_many_as_one_by_one(monkeypatch, count, rules):
    chance = random.Random(count)
    pools = [view.of(host(*(device(number, chance.randrange(9), 8)
                            for number in range(0, 8, 2))))
             for _host in range(20)]
    at_once = [rooms(count, rules).of(one).servers for one in pools]
    monkeypatch.setattr(room, '_times', lambda host, taken: 1)
    assert at_once == [rooms(count, rules).of(one).servers for one in pools]
    assert sum(at_once) > 50


def test_devices_of_other_classes_make_no_difference():
    views = {view.of_classes(view.of(host(device(0), device(
        1, free=free, total=8, resource_class='CUSTOM_VF'))),
        frozenset({GPU})) for free in range(8)}
    assert [len(one.units) for one in views] == [1]


@pytest.mark.parametrize('count, left, why', [
    (2, 3, 'nova-compute is down'), (4, 3, 'fewer than 4 free CUSTOM_GPU')])
def test_host_that_gets_no_servers(count, left, why):
    found = rooms(count).of(view.of(host(*map(device, range(3)))),
                            'nova-compute is down')
    assert (found.servers, found.left) == (0, {GPU: left})
    assert reasons.stranded(found.obstacle) == why


def test_views_are_few():
    chance = random.Random(1)
    assert len({view.of(host(*(device(number, chance.randrange(2))
                               for number in range(8))))
                for _host in range(1000)}) == 21


def test_servers_are_counted_by_the_alternative_that_they_get():
    cloud = host(*(device(number, traits=[trait]) for number, trait in
                   enumerate(['CUSTOM_X'] * 3 + ['CUSTOM_Y'] * 5)))
    found = rooms(2, any_of=(('CUSTOM_X',), ('CUSTOM_Y',), ('CUSTOM_Z',))).of(
        view.of(cloud))
    assert (found.servers, found.alternatives, found.left) == (
        3, {0: 1, 1: 2}, {GPU: 2})

# SPDX-License-Identifier: Apache-2.0
"""Fleets at random: which hosts pass, which is the best, by brute force.

Through the real filter and weigher, over what hosts say and Placement answers.
``pytest --hypothesis-profile=long tests/contract/test_brute_force.py`` tries
20,000 requests.
"""

import collections
import dataclasses
import uuid

import hypothesis
from hypothesis import strategies as st
from nova import objects
import nova.conf
from nova.scheduler import host_manager
from nova.scheduler import weights
import pytest

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import host_summary
from nova_accel.core.placement import inventory
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import arrange
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices
from nova_accel.scheduler import filter as filter_
from nova_accel.scheduler import weigher
from tests.unit import brute_force
from tests.unit import build

_TOTAL = 3


@pytest.fixture(scope='module', autouse=True)
def configured():
    objects.register_all()
    nova.conf.CONF([], project='nova', default_config_files=[])


def _address(device):
    return build.address(f'0000:8{device.removeprefix("d")}:00.0')


def _named(links):
    """The same sets, of addresses."""
    return model.Links(*(tuple(frozenset(str(_address(name)) for name in one)
                               for one in sets)
                         for sets in (links.partitions, links.islands)))


def _devices(stocks):
    found = collections.defaultdict(list)
    for number, stock in enumerate(stocks):
        found[stock.place].append(model.Region(
            f'R{number}', stock.resource_class, stock.traits,
            tuple((model.PciAddress(number, 0, unit, 0),)
                  for unit in range(_TOTAL))))
    return [model.Device(
        _address(place.device), '10de:2330', model.Location(
            place.numa_node, place.pcie_root or '', (), place.pcie_switch),
        tuple(regions)) for place, regions in found.items()]


class _Host:
    """One host, as brute force and as nova-scheduler see it."""

    def __init__(self, number, stocks, links):
        self.name = f'host{number}'
        self.root = str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name))
        self.links = links
        offered = inventory.NodeInventory(model.Host((),
                                                     tuple(_devices(stocks))),
                                                     inventory.Node(self.root,
                                                                    self.name)).offered
        by_name = {item.region.name: item.uuid for item in offered}
        self.stocks = [
            dataclasses.replace(stock, provider=by_name[f'R{number}'])
            for number, stock in enumerate(stocks)]
        self.state = host_manager.HostState(self.name, self.name, 'cell')
        self.state.uuid = self.root
        self.state.stats = {host_summary.KEY: host_summary.dumps(offered,
                                                                 links=_named(
                                                                     links))}

    def said(self):
        """What Placement says of each of its providers."""
        return {stock.provider: {
            'resources': {naming.unit_class(stock.resource_class): {
                'capacity': _TOTAL, 'used': _TOTAL - stock.free}},
            'traits': [*stock.traits, *naming.OUR_TRAITS],
            'parent_provider_uuid': self.root,
            'root_provider_uuid': self.root} for stock in self.stocks}

    def candidate(self, groups, answer):
        """What Placement answers, or None if there are too few units."""
        wanted, free = collections.Counter(), collections.Counter()
        for group in groups.values():
            wanted.update(group.resources)
        for stock in self.stocks:
            free[stock.resource_class] += stock.free
        if not wanted <= free:
            return None
        return candidates.Candidate({'allocations': {
            naming.class_provider_uuid(self.root, name): {
                'resources': {name: amount}}
            for name, amount in wanted.items()}, 'mappings': {}}, answer)

    def best(self, groups, rules):
        return brute_force.best(groups, self.stocks, rules,
                                arrange.HostContext(links=self.links))


def _expanded(groups, rules):
    """A flavor's extra specs, through a profile."""
    document = device_profile.Profile('at-random', tuple(
        device_profile.Group(group.resources, {
            trait: wish for trait, wish in group.traits.items()
            if trait not in naming.OUR_TRAITS}, device_profile.OFF)
        for group in groups.values()), rules=tuple(rules))
    try:
        return flavor_specs.expand(document, {})
    except errors.ProfileError:
        hypothesis.reject()


@hypothesis.given(st.lists(st.tuples(brute_force.hosts(), brute_force.links()),
                           min_size=1, max_size=4), brute_force.requests())
def test_hosts_pass_that_can_serve_and_the_best_keeps_most(fleet, request):
    groups, rules, _around = request
    hosts = [_Host(number, *one) for number, one in enumerate(fleet)]
    answer = candidates.Answer({
        provider: said for host in hosts
        for provider, said in host.said().items()}, None)
    specs = _expanded(groups, rules)
    spec = objects.RequestSpec(
        flavor=objects.Flavor(extra_specs=specs), num_instances=1,
        numa_topology=None, pci_requests=None, instance_uuid=build.ROOT)
    asked = []
    for host in hosts:
        host.state.allocation_candidates = [
            found for found in [host.candidate(groups, answer)] if found]
        if host.state.allocation_candidates:
            asked.append(host.state)
    passed = list(filter_.AcceleratorFilter().filter_all(asked, spec))
    best = {host.name: host.best(groups, flavor_specs.rules(specs))
            for host in hosts}
    assert [state.host for state in passed] == [
        name for name, penalty in best.items() if penalty is not None]
    if not passed:
        return
    by_name = {host.name: host for host in hosts}
    for state in passed:
        _check_right(by_name[state.host], groups, flavor_specs.rules(specs),
                     state)
    [first, *_others] = weights.HostWeightHandler().get_weighed_objects(
        [weigher.AcceleratorWeigher()], passed, spec)
    assert best[first.obj.host] == min(
        penalty for penalty in best.values() if penalty is not None)


def _check_right(host, groups, rules, state):
    """What Nova would claim is enough, and keeps the rules in some order."""
    claimed = choose_devices.devices(state.allocation_candidates[0])
    assert sum(claimed.values()) == sum(
        sum(group.resources.values()) for group in groups.values())
    left = [dataclasses.replace(stock, free=claimed[stock.provider])
            for stock in host.stocks if stock.provider in claimed]
    assert all(amount <= stock.free for stock in host.stocks
               for amount in [claimed.get(stock.provider, 0)])
    assert brute_force.best(groups, left, rules, arrange.HostContext(
        links=host.links)) == state.allocation_candidates[0].penalty

# SPDX-License-Identifier: Apache-2.0
"""Comparison of filter and weigher with brute force, on random hosts.

The real filter and weigher run on host summaries and answers of Placement.
``pytest --hypothesis-profile=long tests/contract/test_brute_force.py`` runs
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
from nova_accel.core.placement import providers
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import arrange
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices
from nova_accel.scheduler import filter as filter_
from nova_accel.scheduler import shortlist
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
    """Return the same links, with addresses instead of names."""
    return model.Links(*(tuple(frozenset(str(_address(name)) for name in one)
                               for one in sets)
                         for sets in (links.partitions, links.islands)))


def _devices(available):
    found = collections.defaultdict(list)
    for number, units in enumerate(available):
        found[units.place].append(model.Region(
            f'R{number}', units.resource_class, units.traits,
            tuple((model.PciAddress(number, 0, unit, 0),)
                  for unit in range(_TOTAL))))
    return [model.Device(
        _address(place.device), '10de:2330', model.Location(
            place.numa_node, place.pcie_root or '', (), place.pcie_switch),
        tuple(regions)) for place, regions in found.items()]


class _Host:
    """One host, for brute force and for nova-scheduler."""

    def __init__(self, number, available, links):
        self.name = f'host{number}'
        self.root = str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name))
        self.links = links
        self.inventory = inventory.NodeInventory(
            model.Host((), tuple(_devices(available)), links=_named(links)),
            inventory.Node(self.root, self.name))
        offered = self.inventory.offered
        by_name = {item.region.name: item.uuid for item in offered}
        self.available = [
            dataclasses.replace(units, provider=by_name[f'R{number}'])
            for number, units in enumerate(available)]
        self.state = host_manager.HostState(self.name, self.name, 'cell')
        self.state.uuid = self.root
        self.state.stats = {host_summary.KEY: host_summary.dumps(
            offered, links=_named(links))}

    def said(self):
        """Return Placement's summaries of the host's resource providers."""
        free = {units.provider: units.free for units in self.available}
        return {provider.uuid: {
            'resources': {name: {'capacity': total,
                                 'used': total - free[provider.uuid]}
                          for name, total in provider.totals.items()},
            'traits': sorted(provider.traits),
            'parent_provider_uuid': provider.parent,
            'root_provider_uuid': self.root}
            for provider in providers.desired(self.inventory)}

    @property
    def has_hidden_link(self):
        """Return whether a device without units has a link."""
        linked = frozenset().union(*self.links.partitions, *self.links.islands)
        return bool(linked - {units.place.device for units in self.available})

    def candidate(self, groups, answer):
        """Return Placement's candidate, or None if there are too few units."""
        wanted, free = collections.Counter(), collections.Counter()
        for group in groups.values():
            wanted.update(group.resources)
        for units in self.available:
            free[units.resource_class] += units.free
        if not wanted <= free:
            return None
        return candidates.Candidate({'allocations': {
            naming.class_provider_uuid(self.root, name): {
                'resources': {name: amount}}
            for name, amount in wanted.items()}, 'mappings': {}}, answer)

    def best(self, groups, rules):
        return brute_force.best(groups, self.available, rules,
                                arrange.HostContext(links=self.links))


def _expanded(groups, rules, per=''):
    """Return the extra specs of a flavor, expanded from a profile."""
    document = device_profile.Profile('at-random', tuple(
        device_profile.Group(group.resources, {
            trait: strength for trait, strength in group.traits.items()
            if trait not in naming.OUR_TRAITS}, device_profile.OFF,
            any_of=group.any_of)
        for group in groups.values()), rules=tuple(rules), per=per)
    try:
        return flavor_specs.expand(document, {})
    except errors.ProfileError:
        hypothesis.reject()


def _asked(hosts, groups):
    """Return the states of the hosts that Placement finds."""
    answer = candidates.Answer({
        provider: said for host in hosts
        for provider, said in host.said().items()}, None)
    for host in hosts:
        host.state.allocation_candidates = [
            found for found in [host.candidate(groups, answer)] if found]
    return [host.state for host in hosts if host.state.allocation_candidates]


def _spec(specs):
    return objects.RequestSpec(
        flavor=objects.Flavor(extra_specs=specs), num_instances=1,
        numa_topology=None, pci_requests=None, instance_uuid=build.ROOT)


def _first(passed, spec):
    """Return the host that the weigher puts first."""
    return weights.HostWeightHandler().get_weighed_objects(
        [weigher.AcceleratorWeigher()], passed, spec)[0].obj


@hypothesis.given(st.lists(st.tuples(brute_force.hosts(), brute_force.links()),
                           min_size=1, max_size=4), brute_force.requests())
def test_capable_hosts_pass_and_least_penalty_comes_first(fleet, request):
    groups, rules, _around = request
    hosts = [_Host(number, *one) for number, one in enumerate(fleet)]
    specs = _expanded(groups, rules)
    spec, asked = _spec(specs), _asked(hosts, groups)
    ranking = shortlist.rank(flavor_request.parse(specs), {
        state.uuid: state.allocation_candidates for state in asked},
        len(asked))
    passed = list(filter_.AcceleratorFilter().filter_all(asked, spec))
    best = {host.name: host.best(groups, flavor_specs.rules(specs))
            for host in hosts}
    assert [state.host for state in passed] == [
        name for name, penalty in best.items() if penalty is not None]
    by_root = {host.root: best[host.name] for host in hosts}
    assert all(by_root[root] is None for root in ranking.objections())
    fitting = [root for root in ranking.fitting if by_root[root] is not None]
    assert fitting == sorted(fitting, key=by_root.get)
    # A device that Placement does not show can join two islands.
    assert all(root in fitting or host.has_hidden_link for host in hosts
               for root in ranking.fitting if root == host.root)
    if not passed:
        return
    by_name = {host.name: host for host in hosts}
    for state in passed:
        _check_right(by_name[state.host], groups, flavor_specs.rules(specs),
                     state)
    assert best[_first(passed, spec).host] == min(
        penalty for penalty in best.values() if penalty is not None)


_MODELS = 'CUSTOM_T', 'CUSTOM_U'


@st.composite
def _with_alternatives(draw):
    groups, rules, _around = draw(brute_force.requests())
    # In any order: of alternatives that are never chosen, too.
    alternatives = st.permutations(
        [('CUSTOM_T',), ('CUSTOM_U',), ()]).map(tuple)
    some = draw(st.sets(st.sampled_from(sorted(groups)), min_size=1,
                        max_size=2))
    return {name: dataclasses.replace(
        group, traits={naming.MARKER_TRAIT: 'required'},
        any_of=draw(alternatives)) if name in some else group
        for name, group in groups.items()}, rules


@hypothesis.given(st.lists(st.tuples(
    brute_force.hosts(traits=_MODELS), brute_force.links()),
    min_size=1, max_size=4), _with_alternatives(),
    st.sampled_from(['', 'host']))
def test_first_alternative_that_fits_is_given(fleet, request, per):
    groups, rules = request
    hosts = [_Host(number, *one) for number, one in enumerate(fleet)]
    specs = _expanded(groups, rules, per)
    spec, asked = _spec(specs), _asked(hosts, groups)
    ranking = shortlist.rank(flavor_request.parse(specs), {
        state.uuid: state.allocation_candidates for state in asked},
        len(asked))
    passed = list(filter_.AcceleratorFilter().filter_all(asked, spec))
    plain = list(brute_force.with_alternatives(groups))
    every = {host.name: [host.best(one, flavor_specs.rules(specs))
                         for one in plain] for host in hosts}
    best = {name: next((number, penalty) for number, penalty
                       in enumerate(penalties) if penalty is not None)
            for name, penalties in every.items()
            if any(penalty is not None for penalty in penalties)}
    assert [state.host for state in passed] == list(best)
    if not passed:
        return
    by_name = {host.name: host for host in hosts}
    for state in passed:
        number, _penalty = best[state.host]
        _check_right(by_name[state.host], plain[number],
                     flavor_specs.rules(specs), state)
    # A device that Placement does not show can join two islands.
    names = {host.root: host.name for host in hosts
             if host.name in best and not host.has_hidden_link}
    order = {name: found[per == 'host':] for name, found in best.items()}
    assert order[_first(passed, spec).host] == min(order.values())
    # Of other hosts, the shortlist knows too little.
    for ranked in ranking.fitting + ranking.later, ranking.later:
        found = [order[names[root]] for root in ranked if root in names]
        assert found == sorted(found)
    assert all(best[names[root]][0] for root in ranking.later
               if root in names)


def _check_right(host, groups, rules, state):
    """Check that the chosen units are available and meet the rules."""
    claimed = choose_devices.devices(state.allocation_candidates[0])
    assert sum(claimed.values()) == sum(
        sum(group.resources.values()) for group in groups.values())
    left = [dataclasses.replace(units, free=claimed[units.provider])
            for units in host.available if units.provider in claimed]
    assert all(amount <= units.free for units in host.available
               for amount in [claimed.get(units.provider, 0)])
    assert brute_force.best(groups, left, rules, arrange.HostContext(
        links=host.links)) == state.allocation_candidates[0].penalty

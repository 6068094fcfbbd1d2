# SPDX-License-Identifier: Apache-2.0
"""Servers that are to be in one host domain, compared with brute force.

Nova's own loop over the servers of a request runs with its anti-affinity
filter and our filter and weigher, on hosts with eight GPUs in random domains.
``pytest --hypothesis-profile=long tests/contract/test_same_domain.py`` runs
20,000 requests.
"""

import collections
import itertools
import types
import uuid

import hypothesis
from hypothesis import strategies as st
from nova import context
from nova import exception
from nova import objects
import nova.conf
from nova.scheduler import filters
from nova.scheduler import manager
from nova.scheduler import utils
from nova.scheduler import weights
from nova.scheduler.filters import affinity_filter
import pytest

from nova_accel import group_hosts
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.scheduler import choose_devices
from nova_accel.scheduler import filter as filter_
from nova_accel.scheduler import host_rooms
from nova_accel.scheduler import no_valid_host
from nova_accel.scheduler import patches
from nova_accel.scheduler import same_domain
from nova_accel.scheduler import weigher
from tests.bench import fleet as fleets

_NAMES = 'abc'
_DOMAINS = st.sampled_from(['', 'a', 'a', 'b', 'b', 'c', 'ab']).map(frozenset)


@pytest.fixture(scope='module', autouse=True)
def configured():
    nova.conf.CONF([], project='nova', default_config_files=[])
    _Scheduler.filters = [affinity_filter.ServerGroupAntiAffinityFilter(),
                          affinity_filter.ServerGroupAffinityFilter(),
                          filter_.AcceleratorFilter()]
    _Scheduler.weighers = [weigher.AcceleratorWeigher()]


class Case:
    """A request for servers, and the hosts for it.

    :param hosts: domains and numbers of the devices in use, for each host
    :param count: number of devices of a server
    :param numa: whether these are to be on one NUMA node
    :param present: numbers of the hosts of other servers of the group
    :param new: number of servers
    :param policy: of the group
    :param thefts: numbers of hosts of which another request gets a device,
        one before each claim
    """

    def __init__(self, hosts, count, numa, present, new, policy='',
                 strength='required', thefts=()):
        self.fleet = fleets.Fleet(len(hosts))
        self.domains = {}
        for host, (names, in_use) in zip(self.fleet.hosts, hosts,
                                         strict=True):
            self.fleet.claim(host, [list(host.devices)[number]
                                    for number in in_use])
            if names:
                self.domains[host.state.host] = frozenset(names)
            self.fleet.summaries[host.root] = {
                'root_provider_uuid': host.root, 'traits': (),
                'resources': {'VCPU': {'capacity': 999, 'used': 0},
                              'MEMORY_MB': {'capacity': 1 << 30, 'used': 0}}}
        self.count, self.numa, self.policy = count, numa, policy
        if policy == 'affinity':
            present = present[:1]
        self.present = [self.fleet.hosts[number % len(hosts)].state.host
                        for number in present]
        self.uuids = [str(uuid.UUID(int=number)) for number in range(1,
                                                                     new + 1)]
        self.thefts = iter(thefts)
        self.claims = {}
        self.spec = fleets.request(
            count, device_profile.REQUIRED if numa else device_profile.OFF)
        self.spec.flavor.extra_specs[flavor_specs.SAME_DOMAIN_KEY] = strength
        # That of the request with which the server was created.
        self.spec.num_instances = new + len(present)
        self.spec.requested_resources = []
        if policy:
            self.spec.instance_group = objects.InstanceGroup(
                uuid=str(uuid.UUID(int=99)), policy=policy, _rules={},
                policies=[policy], hosts=list({*self.present}),
                members=[*self.uuids, *self._members])

    @property
    def _members(self):
        return [str(uuid.UUID(int=100 + number))
                for number in range(len(self.present))]

    def states(self):
        for state in self.fleet.states(self.count):
            state.instances = {
                member: None for member, host in zip(
                    self._members, self.present, strict=True)
                if host == state.host}
            yield state

    def claim(self, _context, _client, _spec, server, candidate, **_more):
        for number in itertools.islice(self.thefts, 1):
            host = self.fleet.hosts[number % len(self.fleet.hosts)]
            self.fleet.claim(host, self.fleet.free(host)[:1])
        devices = list(choose_devices.devices(candidate))
        if any(map(self.fleet.used, devices)):
            return False
        [host] = [host for host in self.fleet.hosts
                  if devices[0] in host.devices]
        self.fleet.claim(host, devices)
        self.claims[server] = host, devices
        return True

    def delete_allocation_for_instance(self, _context, server, **_more):
        self.fleet.release(*self.claims.pop(server))

    def run(self):
        """Let Nova schedule the servers; return its reason if it fails."""
        found = {state.uuid: state.allocation_candidates
                 for state in self.states()}
        with pytest.MonkeyPatch.context() as patch, no_valid_host.watching(
                self.spec, len(self.uuids)) as attempt:
            patch.setattr(utils, 'claim_resources', self.claim)
            patch.setattr(group_hosts, 'domains',
                          lambda _context: self.domains)
            patch.setattr(group_hosts, 'in_all_cells', lambda *_arguments: [
                types.SimpleNamespace(host=host) for host in self.present])
            try:
                self.selected = patches.schedule.wrapper(
                    patches.schedule.original, _Scheduler(self),
                    context.get_admin_context(), self.spec, self.uuids, found,
                    self.fleet.summaries, return_alternates=True)
            except exception.NoValidHost:
                return attempt.reason()
            return None

    def hosts(self):
        """Return the names of the hosts that the servers got."""
        return [host.state.host for host, _devices in self.claims.values()]

    def alternates(self):
        """Return the names of hosts on which Nova tries failed builds."""
        return [selection.service_host for [_first, *others] in self.selected
                for selection in others]

    # Brute force

    def slots(self, host):
        """Return how many servers fit on a host."""
        nodes = collections.Counter(host.devices[device] if self.numa else 0
                                    for device in self.fleet.free(host))
        slots = sum(free // self.count for free in nodes.values())
        if self.policy == 'anti-affinity':
            slots = min(slots, 1 - self.present.count(host.state.host))
        if self.policy == 'affinity' and self.present:
            slots *= host.state.host in self.present
        return max(slots, 0)

    def most(self):
        """Return how many servers of the group can be in one domain."""
        slots = {host.state.host: self.slots(host)
                 for host in self.fleet.hosts}
        return max((sum(name in self.domains.get(host, ())
                        for host in self.present) + number
                    for name in _NAMES
                    for number in range(len(self.uuids) + 1)
                    if any(self._fits(hosts, slots) for hosts in
                           itertools.combinations_with_replacement(
                        [host for host in slots
                         if name in self.domains.get(host, ())], number))),
                   default=0)

    def total(self):
        return len(self.uuids) + sum(host in self.domains
                                     for host in self.present)

    def _fits(self, hosts, slots):
        if self.policy == 'affinity' and len({*hosts, *self.present}) > 1:
            return False
        return all(number <= slots[host] for host, number
                   in collections.Counter(hosts).items())


class _Scheduler(manager.SchedulerManager):
    """Nova's scheduler, whose hosts and whose Placement are those of a case.

    :param case: Case
    """

    def __init__(self, case):
        self._case = case
        self.host_manager = self

    placement_client = property(lambda self: self._case)

    def _get_all_host_states(self, _context, _spec, summaries):
        return (state for state in self._case.states()
                if state.uuid in summaries)

    def get_filtered_hosts(self, hosts, spec, index):
        return filters.HostFilterHandler().get_filtered_objects(
            self.filters, hosts, spec, index)

    def get_weighed_hosts(self, hosts, spec):
        return weights.HostWeightHandler().get_weighed_objects(
            self.weighers, hosts, spec)


def _cases(**more):
    return st.builds(
        Case, st.lists(st.tuples(_DOMAINS, st.integers(0, 255).map(
            lambda bits: [number for number in range(8)
                          if bits >> number & 1])), min_size=1, max_size=6),
        st.sampled_from([1, 2, 4, 8]), st.booleans(),
        st.lists(st.integers(0, 5), max_size=2), st.integers(1, 4),
        st.sampled_from(['', 'soft-anti-affinity', 'anti-affinity',
                         'affinity']), **more)


@hypothesis.given(_cases())
def test_all_servers_get_one_domain_or_the_largest_is_named(case):
    hypothesis.assume(case.count < 8 or not case.numa)
    most, total = case.most(), case.total()
    has_host = any(map(case.slots, case.fleet.hosts))
    reason = case.run()
    if reason is None:
        assert most == total
        _check_together(case)
        return
    assert most < total and not case.claims
    if total > 1 and has_host:
        assert reason == (
            f'No host domain has room for all {total} servers that are to be '
            f'in one; the most is {most}')


@hypothesis.given(_cases(thefts=st.lists(st.integers(0, 5), max_size=8)))
def test_claims_of_other_requests_never_spread_servers(case):
    hypothesis.assume(case.count < 8 or not case.numa)
    if case.run() is None:
        _check_together(case)
    else:
        assert not case.claims


@hypothesis.given(_cases(strength=st.just('preferred')))
def test_as_many_as_possible_are_in_one_domain_if_preferred(case):
    hypothesis.assume(case.count < 8 or not case.numa)
    most = case.most()
    if case.run() is None:
        assert most == max(sum(
            name in case.domains.get(host, ())
            for host in (*case.hosts(), *case.present)) for name in _NAMES)


def _check_together(case):
    assert len(case.hosts()) == len(case.uuids)
    assert frozenset.intersection(
        *(case.domains[host]
          for host in (*case.hosts(), *case.alternates())),
        *(case.domains[host] for host in case.present
          if host in case.domains))


@pytest.mark.parametrize('owner, name, value', [
    # The room of hosts is known before Nova places a server,
    (same_domain, '_MOST_TRIES', 1),
    # and if it is not, another domain is tried.
    (host_rooms.HostRooms, '_of_devices', lambda *arguments: arguments[-1])])
def test_domain_without_room_for_the_second_server(monkeypatch, owner, name,
                                                   value):
    monkeypatch.setattr(owner, name, value)
    # The host of domain a has free devices for two servers, but two on one
    # NUMA node for one only.
    case = Case([('a', [0, 4, 5, 6]), ('b', []), ('b', [])], 2, True, [], 2)
    assert case.run() is None
    _check_together(case)


@pytest.mark.parametrize('strength', ['required', 'preferred'])
def test_search_that_gives_up_is_no_reason_to_refuse(monkeypatch, strength):
    monkeypatch.setattr(host_rooms.HostRooms, '_of_devices', lambda *_: 1)
    case = Case([('a', [])], 2, True, [], 4, strength=strength)
    assert case.run() is None


def test_servers_of_an_affinity_group_need_one_host():
    case = Case([('a', [0]), ('a', [1]), ('b', []), ('b', [0, 1, 2])], 4,
                False, [], 2, 'affinity')
    assert case.run() is None
    assert case.hosts() == ['host2'] * 2


@pytest.mark.parametrize('names', ['ab', 'ba'])
def test_affinity_group_is_not_bound_to_a_host_without_room(monkeypatch,
                                                            names):
    monkeypatch.setattr(host_rooms.HostRooms, '_of_devices',
                        lambda *arguments: arguments[-1])
    # One host has two free devices on one NUMA node only. In one of the two
    # cases, Nova finds that out when it has placed the first server there.
    case = Case([(names[0], [0, 4, 5, 6]), (names[1], [])], 2, True, [], 2,
                'affinity')
    assert case.run() is None
    assert case.hosts() == ['host1'] * 2

# SPDX-License-Identifier: Apache-2.0
"""The shortlist, and the rounds in which Nova examines hosts."""

from nova import objects
import nova.conf
import pytest

from nova_accel.core.request import flavor_request
from nova_accel.scheduler import filter as filter_
from nova_accel.scheduler import shortlist
from tests.bench import fleet as fleets


@pytest.fixture(autouse=True)
def two_hosts_for_one_server():
    nova.conf.CONF([], project='nova', default_config_files=[])
    filter_.AcceleratorFilter()
    nova.conf.CONF.set_override('shortlist_size', 1, 'nova_accel')
    yield
    nova.conf.CONF.clear_override('shortlist_size', 'nova_accel')


class Case:
    """A request for devices, and the hosts for it.

    :param in_use: for each host the numbers of its devices in use
    """

    def __init__(self, *in_use, count=2, numa='required'):
        self.fleet = fleets.Fleet(len(in_use))
        for host, numbers in zip(self.fleet.hosts, in_use, strict=True):
            self.fleet.claim(host, [list(host.devices)[number]
                                    for number in numbers])
        self.spec = fleets.request(count, numa)
        self.found = {state.uuid: state.allocation_candidates
                      for state in self.fleet.states(count)}
        self.summaries = self.fleet.summaries

    @property
    def wanted(self):
        return flavor_request.parse(self.spec.flavor.extra_specs)

    def rounds(self, servers=('server',)):
        for summaries in shortlist.rounds(self.spec, servers, self.found,
                                          self.summaries):
            yield self.names(summary['root_provider_uuid']
                             for summary in summaries.values())

    def names(self, roots):
        return {self.fleet.by_root[root].state.host for root in roots}

    def rank(self, enough=100):
        ranking = shortlist.rank(self.wanted, self.found, enough)
        return [self.names(roots) for roots in (
            ranking.fitting, ranking.unsure, ranking.objections())]

    def forget_places(self, number):
        """Remove the NUMA traits of a host's devices from Placement."""
        root = self.fleet.hosts[number].root
        for summary in self.summaries.values():
            if summary['root_provider_uuid'] == root:
                summary['traits'] = [trait for trait in summary['traits']
                                     if '_NUMA_NODE_' not in trait]


def test_fullest_hosts_come_first_and_all_that_fit_follow():
    case = Case([], [0], range(7), [0, 1, 2, 3, 4])
    assert list(case.rounds()) == [{'host1', 'host3'},
                                   {'host0', 'host1', 'host3'}]


def test_each_server_of_a_request_adds_a_host():
    case = Case([], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3])
    first, _second = case.rounds(['one', 'two'])
    assert len(first) == 3


def test_few_hosts_are_not_ranked():
    assert list(Case([], [0]).rounds()) == [{'host0', 'host1'}]


def test_hosts_without_the_devices_are_never_examined():
    assert list(Case(*[[0, 1, 2, 4, 5, 6]] * 4).rounds()) == []


def test_hosts_without_units_of_nova_accel_are_always_examined():
    """Hosts without units of nova_accel are in each round.

    Their class can come from Nova's own driver or from provider.yaml.
    """
    case = Case([], *[[0]] * 4)
    [candidate] = case.found[case.fleet.hosts[0].root]
    del candidate['allocations'][case.fleet.hosts[0].counter]
    first, second = case.rounds()
    assert len(first) == 3 and 'host0' in first
    assert len(second) == 5


def test_equal_hosts_are_in_random_order():
    case = Case(*[[]] * 4)
    assert len({frozenset(next(case.rounds())) for _time in range(99)}) > 1


def test_host_is_unsure_if_places_that_a_rule_needs_are_unknown():
    case = Case([], [], [0, 1, 2, 4, 5, 6])
    case.forget_places(1)
    assert case.rank() == [{'host0'}, {'host1'}, {'host2'}]
    case = Case([], [], [0, 1, 2, 4, 5, 6], numa='off')
    case.forget_places(1)
    assert case.rank() == [{'host0', 'host1', 'host2'}, set(), set()]


def test_hosts_are_unsure_if_enough_fit_and_the_steps_are_spent(monkeypatch):
    monkeypatch.setattr(shortlist, '_MORE_STEPS', 0)
    case = Case([0], [0, 1], [0, 1, 2])
    assert case.rank(enough=2) == [{'host1', 'host2'}, {'host0'}, set()]


def test_spread_hosts_are_examined_in_the_other_order():
    case = Case([0], [0, 1], [0, 1, 2])
    nova.conf.CONF.set_override('accel_pack_weight_multiplier', -10.,
                                'nova_accel')
    try:
        assert next(case.rounds()) == {'host0', 'host1'}
    finally:
        nova.conf.CONF.clear_override('accel_pack_weight_multiplier',
                                      'nova_accel')


@pytest.mark.parametrize('field', ['force_hosts', 'force_nodes'])
def test_forced_host_is_not_ranked(field):
    case = Case(*[[]] * 4)
    setattr(case.spec, field, ['host3'])
    assert [len(names) for names in case.rounds()] == [4]


def test_nothing_is_ranked_without_placement():
    spec = Case([]).spec
    assert list(shortlist.rounds(spec, None, None, None)) == [None]


def test_hosts_of_the_group_are_restored_between_rounds():
    case = Case(*[[]] * 4)
    case.spec.instance_group = objects.InstanceGroup(hosts=['before'])
    rounds = case.rounds()
    next(rounds)
    case.spec.instance_group.hosts.append('host1')
    next(rounds)
    assert case.spec.instance_group.hosts == ['before']
    assert 'hosts' not in case.spec.instance_group.obj_what_changed()


def test_hosts_with_a_later_alternative_come_after_those_that_may_have_it():
    ranking = shortlist.Ranking(None, ['first'], ['unsure'], [], [], ['later'])
    assert ranking.rounds(2) == [{'first', 'unsure'},
                                 {'first', 'unsure', 'later'}]

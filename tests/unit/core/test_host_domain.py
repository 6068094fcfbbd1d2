# SPDX-License-Identifier: Apache-2.0
"""Which host domain servers go to, compared with brute force; late checks."""

import collections
import itertools

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_accel.core import host_domain

_NAMES = 'abc'
_DOMAINS = st.sets(st.sampled_from(_NAMES), max_size=2).map(frozenset)


@pytest.mark.parametrize('metadata, domains', [
    ({host_domain.KEY: 'rack1'}, {'h': {'rack1'}}),
    ({host_domain.KEY: ' rack1 '}, {'h': {'rack1'}}),
    ({host_domain.KEY: ' '}, {}), ({'other': 'rack1'}, {})])
def test_name_is_in_the_metadata_of_aggregates(metadata, domains):
    assert host_domain.by_host([(metadata, ['h'])]) == domains


def test_host_in_two_aggregates_has_two_domains():
    assert host_domain.by_host([({host_domain.KEY: 'rack'}, ['one', 'two']),
                                ({host_domain.KEY: 'pod'}, ['two'])]) == {
        'one': {'rack'}, 'two': {'rack', 'pod'}}


@st.composite
def _requests(draw):
    """Return domains and free slots by host, present hosts, a number."""
    hosts = [f'h{number}' for number in range(draw(st.integers(1, 5)))]
    domains = {host: names for host in hosts if (names := draw(_DOMAINS))}
    free = {host: draw(st.integers(0, 3)) for host in hosts}
    present = draw(st.lists(st.sampled_from([*hosts, 'outside']), max_size=3))
    return domains, free, present, draw(st.integers(1, 3))


def _most(name, domains, free, present, new):
    """Return how many servers of the group a domain can have."""
    for number in range(new, -1, -1):
        for hosts in itertools.combinations_with_replacement(
                [host for host in free if name in domains.get(host, ())],
                number):
            if all(count <= free[host] for host, count
                   in collections.Counter(hosts).items()):
                return number + sum(name in domains.get(host, ())
                                    for host in present)
    return 0


@hypothesis.given(_requests(), st.booleans())
def test_domains_are_those_of_brute_force(request, pack):
    domains, free, present, new = request
    rooms = host_domain.total_rooms({
        host: host_domain.Room(*[min(slots, new)] * 2)
        for host, slots in free.items() if host in domains}, domains, False)
    servers = host_domain.Servers.of(present, domains, new)
    most = {name: found for name in _NAMES
            if (found := _most(name, domains, free, present, new))}
    together = servers.together(rooms)
    assert {name: number for name, number in together.items() if number} == (
        most)
    assert {name for name in rooms
            if servers.may_hold_all(name, rooms[name])} == {
        name for name, number in most.items() if number == servers.total
        and rooms.get(name)}
    order = servers.order(rooms, pack, 'seed')
    assert [together[name] for name in order] == sorted(
        (together[name] for name in order), reverse=True)
    assert {*order} == {name for name, room in rooms.items() if room.most}


@pytest.mark.parametrize('pack, first', [(True, 'small'), (False, 'large')])
def test_of_domains_that_fit_the_packed_or_the_emptiest_is_first(pack, first):
    rooms = {'large': host_domain.Room(4, 4), 'small': host_domain.Room(2, 2),
             'full': host_domain.Room(1, 4)}
    order = host_domain.Servers((), 2).order(rooms, pack, '')
    assert (order[0], order[-1]) == (first, 'full')


def test_requests_for_one_group_prefer_the_same_of_equal_domains():
    rooms = dict.fromkeys(_NAMES, host_domain.Room(1, 1))
    firsts = [host_domain.Servers((), 1).order(dict(items), True, seed)[0]
              for seed in 'wxyz' for items in (
                  rooms.items(), reversed(rooms.items()))]
    assert firsts[::2] == firsts[1::2]
    assert len({*firsts}) > 1


def test_servers_that_are_to_be_on_one_host_need_the_room_of_one():
    assert host_domain.total_rooms(
        {'one': host_domain.Room(1, 2), 'two': host_domain.Room(2, 2)},
        {'one': frozenset('a'), 'two': frozenset('a')}, True) == {
        'a': host_domain.Room(2, 2)}


class _Builds:
    """Servers of one group that are built at once, step by step."""

    def __init__(self, domains):
        self.domains = dict(enumerate(domains))
        # What each server has stored, and whether it has decided.
        self.stored = {}
        self.passed = set()
        self.steps = {number: self._build(number) for number in self.domains}

    def _build(self, number):
        self.stored[number] = False
        yield
        while True:
            verdict = host_domain.late_check(self.domains[number], number, [
                host_domain.Other(self.domains[other], other, decided)
                for other, decided in self.stored.items() if other != number])
            yield
            if verdict is not host_domain.Verdict.WAITS:
                break
        if verdict is host_domain.Verdict.STAYS:
            self.stored[number] = True
            self.passed.add(number)
        else:
            del self.stored[number]

    def step(self, number):
        if number in self.steps and next(self.steps[number], self) is self:
            del self.steps[number]

    def end(self):
        """Take the remaining steps in turn."""
        for _time in range(20 * len(self.domains)):
            for number in list(self.steps):
                self.step(number)
        assert not self.steps


@hypothesis.given(st.lists(_DOMAINS.filter(len), min_size=2, max_size=5),
                  st.lists(st.integers(0, 4), max_size=30))
@hypothesis.example([frozenset('a'), frozenset('b')], [1, 1, 0, 0, 0, 1])
def test_servers_that_pass_the_late_check_are_in_one_domain(domains, order):
    builds = _Builds(domains)
    for number in order:
        builds.step(number)
    builds.end()
    assert builds.passed
    assert frozenset.intersection(*(domains[number]
                                    for number in builds.passed))


@pytest.mark.parametrize('here, others, verdict', [
    ('', [], 'LEAVES'),
    ('a', [], 'STAYS'),
    ('a', [('', 1, True)], 'STAYS'),
    ('a', [('b', 9, True)], 'LEAVES'),
    ('a', [('b', 1, False)], 'LEAVES'),
    ('a', [('b', 9, False)], 'WAITS'),
    ('a', [('a', 1, False), ('a', 9, False)], 'STAYS'),
])
def test_late_check(here, others, verdict):
    assert host_domain.late_check(frozenset(here), 5, [
        host_domain.Other(frozenset(names), *rest)
        for names, *rest in others]).name == verdict

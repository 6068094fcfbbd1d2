# SPDX-License-Identifier: Apache-2.0
"""The fewest moves, against trying all of them."""

import dataclasses
import os
import random

import pytest

from nova_accel.core.capacity import room
from nova_accel.core.moves import goals
from nova_accel.core.moves import search
from tests.unit.core.moves import brute_force

#: Most moves of the plans that are compared.
_MOST = 4
_FLEETS = int(os.environ.get('NOVA_ACCEL_FLEETS', 60))


def _goals(booked, seed):
    """Yield goals for a fleet, and the same for trying all moves."""
    chance = random.Random(seed)
    name = min(filter(None, (server.host for server in booked.servers)))
    yield goals.Drain(name), brute_force.Fewest(
        booked, lambda _units, where: name not in where.values(), {name})
    for hosts in ([name], list(booked.hosts)):
        open_ = [one for one in hosts if not booked.hosts[one].closed]
        wanted, count = _unserved(booked, open_, chance)
        yield goals.Room(
            room.Rooms(wanted, {brute_force.GPU}), count,
            name if len(hosts) == 1 else ''), brute_force.Fewest(
            booked, lambda units, _where, open_=open_, wanted=wanted,
            count=count: sum(brute_force.rooms(units(one), wanted)
                             for one in open_) >= count)


def _unserved(booked, hosts, chance):
    """Return a request, and one or two more of it than there is room for.

    Most of the time, enough devices are free for that.
    """
    units = [booked.hosts[name].units for name in hosts]
    rooms = {wanted: sum(brute_force.rooms(one, wanted) for one in units)
             for wanted in brute_force.REQUESTS}
    free = sum(each.free for one in booked.hosts.values()
               for each in one.units)
    wanted = chance.choice([
        wanted for wanted, servers in rooms.items()
        if (servers + 1) * wanted.amounts[brute_force.GPU] <= free
    ] or brute_force.REQUESTS)
    return wanted, rooms[wanted] + chance.choice([1, 1, 2])


@pytest.mark.parametrize('count, closed, found', [
    (100, '', search.Plan((), True)),
    (4, 'it is disabled', search.Plan(None, True))])
def test_nothing_to_search(count, closed, found):
    """There is room already, or no move makes any."""
    hosts = [brute_force.host(f'h{number}', 4) for number in range(30)]
    booked = brute_force.Booked([
        dataclasses.replace(hosts[0], closed=closed), *hosts[1:]])
    goal = goals.Room(room.Rooms(brute_force.request(1), {brute_force.GPU}),
                      count, 'h0' if closed else '')
    said = []
    assert search.Search(booked.fleet, goal, say=lambda *words: said.append(
        words)).run() == found
    assert said == []


@pytest.mark.parametrize('seed', range(_FLEETS))
def test_as_few_as_by_trying_all_moves(seed):
    booked = brute_force.random_fleet(seed)
    for goal, fewest in _goals(booked, seed):
        expected = fewest.moves(_MOST)
        found = search.Search(booked.fleet, goal, exact=_MOST).run()
        if expected is None:
            assert found.moves is None or len(found.moves) > _MOST
        else:
            assert (len(found.moves), found.is_least) == (expected, True)

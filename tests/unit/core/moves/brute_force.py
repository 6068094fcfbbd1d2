# SPDX-License-Identifier: Apache-2.0
"""Random small fleets, and the fewest moves by trying all moves.

It shares with the product only the types of a fleet, and the choice of devices
for a server on one host.
"""

import collections
import dataclasses
import random

from nova_accel.core import model
from nova_accel.core.capacity import fit
from nova_accel.core.capacity import room
from nova_accel.core.capacity import view
from nova_accel.core.moves import fleet as fleets
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget

GPU = 'CUSTOM_GPU'


def request(count, key=None, **traits):
    """Return a request for GPUs that have the same of a key."""
    names = tuple(f'ACCEL{number}' for number in range(count))
    return flavor_request.parse(flavor_specs.expand(device_profile.Profile(
        'p', (device_profile.Group({GPU: 1}, traits, device_profile.OFF),
              ) * count, rules=(affinity.Rule(key, True, names),) if key
        else ()), {}))


REQUESTS = [request(1), request(1), request(2), request(2, 'numa_node'),
            request(3), request(1, CUSTOM_X='required')]


def host(name, count, traits=(), each=(), **fields):
    """Return a host with GPUs, two on each NUMA node.

    :param traits: numbers of those with CUSTOM_X
    :param each: a trait of each
    """
    return fleets.Host(name, tuple(arrange.AvailableUnits(
        f'{name} {number}', GPU, frozenset(
            {fleets.model_trait('10de:2330'),
             *(['CUSTOM_X'] if number in traits else []),
             *each[number:number + 1]}), 1,
        model.Place(number // 2, f'r{number // 2}', None, f'd{number}'), 1)
        for number in range(count)), **{'resources': {'VCPU': 100}, **fields})


class Booked:
    """A fleet in which servers are booked one after the other."""

    def __init__(self, hosts):
        self.hosts = {one.name: one for one in hosts}
        self.servers, self.held = [], {}

    def boot(self, at, wanted, vcpus=1, live=True, **fields):
        """Boot a server, and return whether it fits."""
        one = self.hosts[at]
        taken = chosen(wanted, one.units)
        if taken is None or one.resources['VCPU'] < vcpus:
            return False
        self.hosts[at] = dataclasses.replace(
            one, resources={'VCPU': one.resources['VCPU'] - vcpus},
            units=tuple(dataclasses.replace(
                units, free=units.free - taken.get(units.provider, 0))
                for units in one.units))
        uuid = fields.pop('uuid', f's{len(self.servers)}')
        self.servers.append(fleets.Server(uuid, uuid, at, wanted, **fields))
        self.held[uuid] = fleets.Held(taken, {'VCPU': vcpus}, live)
        return True

    @property
    def fleet(self):
        return fleets.Fleet(
            self.hosts.values(), self.servers, lambda servers: {
                server.uuid: self.held[server.uuid] for server in servers})


def chosen(wanted, units):
    """Return the devices that a server gets of a host, None if it gets none.
    """
    found = fit.fit(wanted, wanted.amounts, units, model.Links(), True,
                    search_budget.Budget())
    return None if found.arranged.objection else dict(found.taken)


def random_fleet(seed):
    """Return a fleet, nearly full."""
    chance = random.Random(seed)
    troubles = chance.random() < .5
    booked = Booked(host(
        f'h{number}', chance.randint(2, 4),
        chance.sample(range(4), chance.choice([0, 0, 1, 2])),
        resources={'VCPU': chance.choice([3, 9])},
        zone=chance.choice(['', '', '', 'z']))
        for number in range(chance.randint(3, 4)))
    group = fleets.Group(chance.choice(['anti-affinity', 'affinity', 'soft']),
                         frozenset(f's{number}' for number in
                                   chance.sample(range(6), 3)),
                         chance.choice([1, 1, 2]))
    for _try in range(chance.randint(3, 9)):
        uuid = f's{len(booked.servers)}'
        if len(booked.servers) == 6:
            break
        booked.boot(
            chance.choice(list(booked.hosts)), chance.choice(REQUESTS),
            chance.choice([1, 1, 2]), chance.random() < .8,
            obstacle=chance.choice([*[''] * 9, 'it is in error'])
            if troubles else '',
            group=group if uuid in group.members and seed % 3 == 0 else None,
            zone=chance.choice([*[''] * 9, 'z']))
    for name, one in booked.hosts.items():
        booked.hosts[name] = dataclasses.replace(
            one, closed=chance.choice([*[''] * 9, 'nova-compute is down'])
            if troubles else '',
            kept_back=frozenset(units.provider for units in one.units
                                if chance.random() < .05))
    return booked


class Fewest:
    """The fewest moves to a goal, found by trying all.

    :param is_reached: whether a state reaches it: takes a function from a
        host's name to its units, and the host of each server
    :param closed: hosts that get no servers
    """

    def __init__(self, booked, is_reached, closed=()):
        self._hosts, self._held = booked.hosts, booked.held
        self._servers = {server.uuid: server for server in booked.servers}
        self._is_reached, self._closed = is_reached, closed

    def moves(self, most):
        """Return how many, None if there is no plan of so many."""
        begin = frozenset(
            (uuid, server.host, frozenset(self._held[uuid].units.items()))
            for uuid, server in self._servers.items())
        states = {begin}
        seen = set(states)
        for number in range(most + 1):
            if any(self._is_reached(
                    lambda name, state=state: self._units(state, name),
                    {uuid: at for uuid, at, _held in state})
                   for state in states):
                return number
            states = {after for state in states
                      for after in self._after(state)} - seen
            seen |= states
        return None

    def _after(self, state):
        where = {uuid: at for uuid, at, _held in state}
        for uuid, at, held in state:
            for name in self._hosts:
                if name != at and name not in self._closed and (
                        taken := self._taken(state, where, uuid, name)
                        ) is not None:
                    yield state - {(uuid, at, held)} | {
                        (uuid, name, frozenset(taken.items()))}

    def _taken(self, state, where, uuid, name):
        """Return what a server gets on a host, None if it must not go."""
        server, one = self._servers[uuid], self._hosts[name]
        if server.obstacle or one.closed or server.zone not in ('', one.zone):
            return None
        group = server.group
        if group and group.policy == 'affinity' and name not in {
                where[member] for member in group.members & where.keys()}:
            return None
        if group and group.policy == 'anti-affinity' and sum(
                where[member] == name for member in
                group.members & where.keys() - {uuid}) >= group.most:
            return None
        used = collections.Counter()
        for other, server_ in self._servers.items():
            used[where[other]] += self._held[other].resources['VCPU']
            used[server_.host] -= self._held[other].resources['VCPU']
        if one.resources['VCPU'] - used[name] < (
                self._held[uuid].resources['VCPU']):
            return None
        return chosen(server.wanted, self._units(state, name))

    def _units(self, state, name):
        """Return the units of a host in a state."""
        free = {units.provider: units.free for units in
                self._hosts[name].units}
        for uuid, server in self._servers.items():
            for provider, amount in self._held[uuid].units.items():
                if server.host == name:
                    free[provider] += amount
        for _uuid, at, held in state:
            for provider, amount in held:
                if at == name:
                    free[provider] -= amount
        kept = self._hosts[name].kept_back
        return tuple(dataclasses.replace(
            units, free=min(units.free, free[units.provider])
            if units.provider in kept else free[units.provider])
            for units in self._hosts[name].units)


def rooms(units, wanted):
    """Return how many servers fit on a host."""
    return room.Rooms(wanted, {GPU}).of(view.canonical(
        units, model.Links())).servers

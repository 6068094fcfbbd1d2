# SPDX-License-Identifier: Apache-2.0
"""Lists of devices from a real Placement with many hosts and servers.

It runs in a process of its own (:mod:`tests.bench.worker`). The providers are
those that nova-compute reports for the recorded machine.
"""

# First: it monkey-patches threads before any thread exists.
from tests.bench import fleet  # isort: split

import collections.abc
import contextlib
import functools
import gc
import statistics
import time
import types
import uuid

import fixtures
from keystoneauth1 import session
from nova.scheduler import utils
import os_traits

from nova_accel.core import naming
from nova_accel.core.placement import device_traits
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.osc import plugin
from tests.bench import filled
from tests.bench import listing
from tests.functional import cloud
from tests.functional import openstack

#: A request is repeated until it took so many seconds in total, or was made
#: so many times.
PATIENCE, ROUNDS = 10, 15

#: Resources and traits of a compute node besides devices. It has more traits
#: than from Nova's driver, in place of the traits of its processor.
_NODE = {'VCPU': fleet.VCPUS, 'MEMORY_MB': fleet.MEMORY_MB,
         'DISK_GB': fleet.DISK_GB, naming.HOST_CLASS: 1}
_NODE_TRAITS = os_traits.get_traits('COMPUTE_')


class Catalogue(filled.Placement):

    #: The microversion that Nova requests.
    VERSION = '1.36'

    def setUp(self):
        super().setUp()
        self._there = None
        reported = fleet.reported_by(_uuid(0), 'host0')
        self.define('resource_classes', {naming.HOST_CLASS, *(
            name for provider in reported for name in provider.totals)})
        self.define('traits', {
            trait for provider in reported for trait in provider.traits
            if trait.startswith('CUSTOM_')})

    def answer(self, hosts, way, traits=True) -> dict:
        """Make a list or request candidates repeatedly; return medians.

        :param way: a way of :mod:`tests.bench.listing`, for example DEVICES
        :param traits: whether providers have the traits of device_traits
        """
        if self._there != (hosts, traits):
            self._fill(hosts, traits)
            self._there = hosts, traits
            # Fill connection pools and statement caches.
            self.ask(f'/allocation_candidates?{_query()}')
        self._placement.conf_fixture.config(
            group='placement', max_allocation_candidates=(
                listing.limit(hosts) if way == listing.LIMITED else -1))
        ask = {listing.DEVICES: self._devices, listing.LIMITED: self._devices,
               listing.HOSTS: self._hosts, listing.SINGLY: self._singly,
               listing.CAPACITY: self._capacity,
               listing.CANDIDATES: self._candidates}[way]
        rounds: list[dict] = []
        while len(rounds) < ROUNDS and (
                sum(item['seconds'] for item in rounds) < PATIENCE):
            gc.collect()
            with _watched() as watched:
                begin = time.perf_counter()
                found = ask(hosts)
                took = time.perf_counter() - begin
            rounds.append({'seconds': took, **watched, **found})
        return {**rounds[-1], 'rounds': len(rounds), **{
            key: round(statistics.median(item[key] for item in rounds), 6)
            for key in ('seconds', 'placement_seconds')}}

    def _devices(self, hosts) -> dict:
        rows = self._client().run('accel device list')
        assert len(rows) == hosts * fleet.DEVICES
        held = sum(row['Status'] == 'held' for row in rows)
        assert held == sum(map(_held, range(hosts)))
        return {'rows': len(rows)}

    def _hosts(self, hosts) -> dict:
        rows = self._client().run('accel host list')
        assert [row['Used'] for row in sorted(
            rows, key=lambda row: int(row['Name'].removeprefix('host')))
            ] == [_held(host) for host in range(hosts)]
        return {'rows': len(rows)}

    def _singly(self, hosts) -> dict:
        """Make the requests of osc-placement's commands for some hosts."""
        client = self._client().cloud.nova_accel
        begin = time.perf_counter()
        listed = client.get('/resource_providers')['resource_providers']
        list_seconds = time.perf_counter() - begin
        roots = {_uuid(host) for host in range(listing.sample(hosts))}
        for provider in listed:
            if provider['root_provider_uuid'] in roots:
                path = f'/resource_providers/{provider["uuid"]}'
                for part in ('inventories', 'usages', 'traits'):
                    client.get(f'{path}/{part}')
        return {'sample': len(roots), 'list_seconds': round(list_seconds, 6)}

    def _capacity(self, hosts) -> dict:
        client = self._client()
        client.cloud.sdk_connection = types.SimpleNamespace(
            placement=client.cloud.sdk_connection.placement,
            compute=_nova(hosts))
        client.cloud.nova_accel = plugin.make_client(client.cloud)
        rows = client.run('accel capacity list', '--by', 'profile')
        assert len(rows) == listing.PROFILES
        return {'rows': len(rows)}

    def _candidates(self, hosts) -> dict:
        answer = self.ask(f'/allocation_candidates?{_query()}')
        found = answer.json()
        # A host without a free device is no candidate.
        assert len(found['allocation_requests']) == sum(
            _held(host) < fleet.DEVICES for host in range(hosts))
        return {'bytes': len(answer.content),
                'candidates': len(found['allocation_requests'])}

    def _client(self) -> openstack.Openstack:
        # There is no nova-api. _capacity simulates its answers, and the other
        # commands do not call it.
        return openstack.Openstack(self._placement.endpoint,
                                   self._placement.endpoint)

    def _fill(self, hosts, traits) -> None:
        rows = filled.Rows()
        for host in range(hosts):
            root, name = _uuid(host), f'host{host}'
            share = _held(host) / fleet.DEVICES
            rows.add(root, name, _NODE, {
                'VCPU': int(fleet.VCPUS * share),
                'MEMORY_MB': int(fleet.MEMORY_MB * share)} if share else {},
                traits=_NODE_TRAITS)
            *devices, counter = fleet.reported_by(root, name)
            for number, provider in enumerate(devices):
                rows.add(provider.uuid, provider.name, provider.totals,
                         provider.totals if number < _held(host) else {},
                         provider.parent, provider.traits.difference(
                             () if traits else _device_traits()))
            rows.add(counter.uuid, counter.name, counter.totals,
                     {cloud.GPU: _held(host)} if share else {},
                     counter.parent, counter.traits)
        rows.write()


@contextlib.contextmanager
def _watched() -> collections.abc.Iterator[dict]:
    """Count the client's requests, and measure the time of answers."""
    found = {'requests': 0, 'placement_seconds': 0., 'bytes': 0}
    request = session.Session.request

    def watched(*args, **kwargs):
        begin = time.perf_counter()
        answer = request(*args, **kwargs)
        found['requests'] += 1
        found['placement_seconds'] += time.perf_counter() - begin
        found['bytes'] += len(answer.content)
        return answer

    with fixtures.MockPatchObject(session.Session, 'request', watched):
        yield found


@functools.cache
def _nova(hosts: int) -> types.SimpleNamespace:
    """Return openstacksdk's answers for two servers on each host."""
    profiles = list(_profiles())
    assert len(profiles) == listing.PROFILES
    flavors = [types.SimpleNamespace(
        name=profile.name, original_name=None,
        extra_specs={'accel:device_profile': profile.name})
        for profile in profiles]
    # A server's flavor has the groups of the profile.
    booted = [types.SimpleNamespace(
        name=None, original_name=profile.name,
        extra_specs=flavor_specs.expand(profile, {})) for profile in profiles]
    servers = [types.SimpleNamespace(
        id=str(number), name='server', image={},
        hypervisor_hostname=f'host{number % hosts}',
        flavor=booted[number % len(booted)])
        for number in range(max(2 * hosts, len(booted)))]
    hypervisors = [types.SimpleNamespace(
        name=f'host{host}', state='up', status='enabled')
        for host in range(hosts)]
    return types.SimpleNamespace(
        flavors=lambda **_query: flavors, servers=lambda **_query: servers,
        hypervisors=lambda: hypervisors)


def _profiles() -> collections.abc.Iterator[device_profile.Profile]:
    def profile(name, count, numa='off', **rules):
        group = device_profile.Group({cloud.GPU: 1}, {}, numa)
        names = tuple(f'ACCEL{number}' for number in range(count))
        return device_profile.Profile(
            f'{name}-{count}', (group,) * count, rules=tuple(
                affinity.Rule(level, together, names)
                for level, together in rules.items()))
    for count in (1, 2, 4, 8):
        for numa in ('off', 'required', 'preferred'):
            yield profile(numa, count, numa)
    for count in (2, 3, 4, 5):
        yield profile('switch', count, pcie_switch=True)
        yield profile('apart', count, pcie_switch=False)


def _held(host: int) -> int:
    """Return the devices of a host's server: half of all on average."""
    return host % (fleet.DEVICES + 1)


@functools.cache
def _query() -> str:
    """Return Nova's query for a server with one device."""
    return utils.ResourceRequest.from_request_spec(
        fleet.request(1)).to_querystring()


@functools.cache
def _device_traits() -> frozenset[str]:
    machine = fleet.machine()
    return frozenset().union(*(
        device_traits.dumps(device, machine.links)
        for device in machine.devices))


def _uuid(host: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f'host{host}'))

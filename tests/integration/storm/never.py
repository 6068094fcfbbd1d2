# SPDX-License-Identifier: Apache-2.0
"""What must never be, checked on what was seen from outside of Nova."""

import collections
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses

from tests.integration.storm import sights


@dataclasses.dataclass(frozen=True)
class Server:
    """A server as nova-api shows it, without a task.

    :param host: its host, '' without one
    :param source: the host that it still can go back to, '' without one
    :param migration: the consumer of the devices there
    :param wants: the units of its flavor by resource class
    """

    uuid: str
    status: str
    host: str
    wants: Mapping[str, int]
    source: str = ''
    migration: str = ''


@dataclasses.dataclass(frozen=True)
class Allocations:
    """The allocations of devices from a host.

    :param classes: units by resource class, by consumer
    :param cards: units of cards, by consumer
    """

    classes: Mapping[str, collections.Counter]
    cards: Mapping[str, collections.Counter]


#: Statuses in which a server has a domain, and the state of the domain.
_STATES = {'ACTIVE': 'running', 'PAUSED': 'paused', 'SHUTOFF': 'off',
           'SUSPENDED': 'off', 'VERIFY_RESIZE': 'running'}


def happened(sights_: Mapping[str, sights.Sight],
             servers: Collection[Server],
             allocations: Mapping[str, Allocations],
             excused: Collection[str] = ()) -> list[str]:
    """Return what must never happen and did, one line each.

    :param sights_: by host
    :param allocations: by host
    :param excused: servers and migrations that Nova left in the middle of an
        operation. They may have too much, but nobody else's devices.
    """
    return [*_shared(sights_), *_leaked(sights_),
            *(line for server in servers if server.uuid not in excused
              and server.status in _STATES
              for line in _wrong(server, sights_, allocations)),
            *_orphans(sights_, servers, allocations, excused)]


def changed(before: Mapping[str, sights.Sight],
            after: Mapping[str, sights.Sight],
            servers: Collection[str]) -> list[str]:
    """Return which servers have other devices than before, one line each.

    :param servers: UUIDs of servers that should have kept theirs
    """
    was, is_ = _held(before), _held(after)
    return [f'{uuid} had {sorted(was[uuid])}, and has {sorted(is_[uuid])}'
            for uuid in servers
            if was.get(uuid) and uuid in is_ and was[uuid] != is_[uuid]]


def _held(sights_):
    held = collections.defaultdict(set)
    for host, sight in sights_.items():
        for uuid, domain in sight.domains.items():
            held[uuid].update((host, device) for device in domain.hostdevs)
    return held


def _shared(sights_) -> Iterator[str]:
    """A device in two guests."""
    for host, sight in sights_.items():
        holders = collections.defaultdict(set)
        for device, uuids in sight.opened.items():
            holders[device].update(uuids)
        for uuid, domain in sight.domains.items():
            if domain.state != 'off':
                for device in domain.hostdevs:
                    holders[device].add(uuid)
        for device, uuids in sorted(holders.items()):
            if len(uuids) > 1:
                yield (f'{host}: {device} is in the guests of '
                       + ', '.join(sorted(uuids)))


def _leaked(sights_) -> Iterator[str]:
    """Data of another guest that a guest has read."""
    for host, sight in sights_.items():
        for uuid, device, value in sorted(sight.read):
            if value:
                yield (f'{host}: the guest of {uuid} read {value:#x} in its '
                       f'{device}')


def _wrong(server, sights_, allocations) -> Iterator[str]:
    """A server that lacks devices or has others than it has allocated."""
    sight = sights_[server.host]
    domain = sight.domains.get(server.uuid)
    said = f'{server.uuid} is {server.status} on {server.host}'
    if domain is None:
        yield f'{said}, without a domain'
        return
    # Nova may resize a server that does not run.
    if (server.status != 'VERIFY_RESIZE'
            and domain.state != _STATES[server.status]):
        yield f'{said}, and its domain is {domain.state}'
        return
    promised = allocations[server.host]
    classes = promised.classes.get(server.uuid, collections.Counter())
    cards = promised.cards.get(server.uuid, collections.Counter())
    if classes != collections.Counter(server.wants):
        yield (f'{said} and has allocations of {dict(classes)} instead of '
               f'{dict(server.wants)}')
    held = domain.hostdevs
    # Nova detaches the devices of a suspended server.
    if server.status != 'SUSPENDED' and sight.cards_of(held) != cards:
        yield (f'{said} with {sorted(held)}, and has allocations of '
               f'{dict(cards)}')
    opened = sight.opened_by(server.uuid)
    if opened != (sorted(held) if domain.state != 'off' else []):
        yield (f'{said} with {sorted(held)}, and its QEMU has {opened} open')


def _orphans(sights_, servers, allocations, excused) -> Iterator[str]:
    """Domains and allocations of no server."""
    there = collections.defaultdict(set)
    for server in servers:
        there[server.host].add(server.uuid)
        if server.source:
            there[server.source] |= {server.uuid, server.migration}
    broken = {server.uuid for server in servers
              if server.status == 'ERROR'}.union(excused)
    for host, sight in sights_.items():
        for uuid in sorted(sight.domains.keys() - there[host] - broken):
            yield f'{host}: a domain of {uuid}, which is not there'
        promised = allocations[host]
        for uuid in sorted((promised.classes.keys() | promised.cards.keys())
                           - there[host] - broken):
            yield f'{host}: allocations of {uuid}, which is not there'

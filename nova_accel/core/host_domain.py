# SPDX-License-Identifier: Apache-2.0
"""Which host domain the servers of a group, or of one request, go to.

A host domain is a set of hosts between which servers communicate well: a rack
of NVL72, or a pod of one InfiniBand rail. The operator names it in the
metadata of a host aggregate. A host can be in several domains, such as its
rack and its pod. A server on a host without a domain restricts no other.
"""

import collections
import collections.abc
import dataclasses
import enum
import functools
import hashlib
import typing

#: The metadata key of a host aggregate; the value is the name of a domain.
KEY = 'nova_accel:domain'

#: The names of the domains that a host is in.
Names = frozenset[str]

_NONE: Names = frozenset()


def by_host(aggregates: collections.abc.Iterable[
        tuple[collections.abc.Mapping[str, str],
              collections.abc.Iterable[str]]]) -> dict[str, Names]:
    """Return the domains of each host that is in any.

    :param aggregates: metadata and hosts of each
    """
    found: dict[str, set[str]] = collections.defaultdict(set)
    for metadata, hosts in aggregates:
        if name := metadata.get(KEY, '').strip():
            for host in hosts:
                found[host].add(name)
    return {host: frozenset(names) for host, names in found.items()}


class Room(typing.NamedTuple):
    """How many servers of a request hosts have room for.

    :param servers: as far as is known
    :param most: certainly not more than this
    """

    servers: int
    most: int


@dataclasses.dataclass(frozen=True)
class Servers:
    """Servers that are to be in one domain.

    :param present: the domains of each server that is on a host with domains
    :param new: how many servers are to be placed
    """

    present: tuple[Names, ...]
    new: int

    @classmethod
    def of(cls, hosts: collections.abc.Iterable[str],
           domains: collections.abc.Mapping[str, Names],
           new: int) -> 'Servers':
        """Return the servers of a group.

        :param hosts: those of the servers that have one, once for each server
        :param domains: by host
        """
        return cls(tuple(domains[host] for host in hosts if host in domains),
                   new)

    @property
    def total(self) -> int:
        return len(self.present) + self.new

    @functools.cached_property
    def there(self) -> collections.Counter[str]:
        """How many of the servers each domain has."""
        return collections.Counter(
            name for names in self.present for name in names)

    def together(self, rooms: collections.abc.Mapping[str, Room],
                 ) -> dict[str, int]:
        """Return how many of the servers each domain can have.

        :param rooms: by domain
        """
        return {name: self.there[name] + min(
            self.new, rooms[name].servers if name in rooms else 0)
            for name in {*rooms, *self.there}}

    def order(self, rooms: collections.abc.Mapping[str, Room], pack: bool,
              seed: str) -> list[str]:
        """Return the domains with room, the best first.

        The best one can have the most of the servers; of equal ones, it has
        the least room, so that others stay free for larger groups. Requests
        for one group that are handled at once get the same order.

        :param pack: False to prefer those with the most room
        :param seed: decides between domains with equal room
        """
        together = self.together(rooms)
        return sorted(
            (name for name, room in rooms.items() if room.most), key=lambda
            name: (-together[name], rooms[name].servers * (1 if pack else -1),
                   hashlib.sha256(f'{seed} {name}'.encode()).digest()))

    def may_hold_all(self, name: str, room: Room) -> bool:
        """Whether a domain has all present servers, and room for the new."""
        return (self.there[name] == len(self.present)
                and room.most >= self.new)

    def refusal(self, rooms: collections.abc.Mapping[str, Room]) -> str:
        """Return why they cannot be in one domain, for their owner."""
        if self.total == 1:
            return 'No host that has room for the server is in a host domain'
        most = max(self.together(rooms).values(), default=0)
        return (f'No host domain has room for all {self.total} servers that '
                f'are to be in one; the most is {most}')

    def lines(self, rooms: collections.abc.Mapping[str, Room]) -> list[str]:
        """Return a text for each domain, for operators, the best first."""
        together = self.together(rooms)
        return [f'{name}: {self.there[name]} there, room for '
                f'{rooms[name].servers if name in rooms else 0}'
                for name in sorted(together, key=lambda name: (
                    -together[name], name))]


def total_rooms(rooms: collections.abc.Mapping[str, Room],
                domains: collections.abc.Mapping[str, Names],
                on_one_host: bool) -> dict[str, Room]:
    """Return the room of each domain.

    :param rooms: by host
    :param domains: by host
    :param on_one_host: whether all servers are to be on one host
    """
    hosts: dict[str, list[Room]] = collections.defaultdict(list)
    for host, room in rooms.items():
        for name in domains.get(host, _NONE):
            hosts[name].append(room)
    total = max if on_one_host else sum
    return {name: Room(*map(total, zip(*found, strict=True)))
            for name, found in hosts.items()}


class Other(typing.NamedTuple):
    """Another server of the group that has a host.

    :param domains: those of its host
    :param number: the server with the lower one decides first
    :param is_decided: whether it has passed the late check
    """

    domains: Names
    number: int
    is_decided: bool


class Verdict(enum.Enum):
    """Whether a server that is being built stays on its host."""

    STAYS = enum.auto()
    WAITS = enum.auto()
    LEAVES = enum.auto()


def late_check(here: Names, number: int,
               others: collections.abc.Iterable[Other]) -> Verdict:
    """Decide whether a server that has been placed is in the right domain.

    Requests for one group that are handled at once do not know of each other.
    Each server first stores its host and then reads those of the others, so
    of two servers at least one knows of the other. The one with the higher
    number leaves. The one with the lower number waits, because the other may
    have decided to stay before it could know.

    :param here: the domains of the host
    :param number: of the server, as in :class:`Other`
    """
    with_earlier, with_all = here, here
    for other in others:
        if other.domains:
            with_all &= other.domains
            if other.is_decided or other.number < number:
                with_earlier &= other.domains
    if not with_earlier:
        return Verdict.LEAVES
    return Verdict.STAYS if with_all else Verdict.WAITS

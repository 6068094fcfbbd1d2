# SPDX-License-Identifier: Apache-2.0
"""The hosts and servers of a cloud, as a plan of moves regards them."""

import collections
import collections.abc
import dataclasses
import functools

from nova_accel.core import model
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import arrange

#: How a server moves: its guest runs on, or is stopped.
LIVE, COLD = 'live', 'cold'

#: All that tells a server from others, for one purpose.
Look = tuple[collections.abc.Hashable, ...]

#: Policies of Nova's server groups. The soft ones exclude no host.
AFFINITY, ANTI_AFFINITY = 'affinity', 'anti-affinity'


@dataclasses.dataclass(frozen=True)
class Host:
    """A compute node that has devices.

    :param units: all units of its devices, free or not, by the uuids of their
        providers; they have the trait of :func:`model_trait`
    :param resources: free amounts of the compute node's own resources, such as
        MEMORY_MB
    :param service: the name of its nova-compute
    :param zone: its availability zone
    :param closed: why it gets no new servers, '' if it does
    :param kept_back: the providers whose units get to no new server when their
        present server leaves, such as those of drained devices
    """

    name: str
    units: tuple[arrange.AvailableUnits, ...]
    links: model.Links = model.Links()
    resources: collections.abc.Mapping[str, int] = dataclasses.field(
        default_factory=dict)
    service: str = ''
    zone: str = ''
    closed: str = ''
    kept_back: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Group:
    """A server group.

    :param policy: Nova's name of it
    :param members: uuids of servers
    :param most: the limit of members on one host, for anti-affinity
    """

    policy: str
    members: frozenset[str]
    most: int = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Server:
    """A server.

    :param host: name of its compute node
    :param wanted: the request of its flavor
    :param ways: how it can move, the preferred way first
    :param obstacle: why it cannot move, '' if it can
    :param zone: the availability zone that it must stay in, '' for any
    """

    uuid: str
    name: str
    host: str
    wanted: flavor_request.Request
    ways: tuple[str, ...] = (LIVE, COLD)
    obstacle: str = ''
    zone: str = ''
    group: Group | None = None


@dataclasses.dataclass(frozen=True)
class Held:
    """What a server has on its host.

    :param units: of devices, by provider
    :param resources: amounts of the compute node's own resources
    :param live: whether the state of all these devices can move
    """

    units: collections.abc.Mapping[str, int]
    resources: collections.abc.Mapping[str, int] = dataclasses.field(
        default_factory=dict)
    live: bool = True


#: The name of a host that does not exist. No compute node has such a name.
SPARE = '(spare)'
# More than any host has of a resource.
_PLENTY = 1 << 40

#: Reads what servers have, by uuid.
Read = collections.abc.Callable[[collections.abc.Collection[Server]],
                                collections.abc.Mapping[str, Held]]


class Fleet:
    """Hosts and servers. What a server has is read when it is needed.

    :param hosts: those that have devices
    :param servers: those with devices, and members of their groups
    """

    def __init__(self, hosts: collections.abc.Iterable[Host],
                 servers: collections.abc.Iterable[Server],
                 read: Read) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.servers = {server.uuid: server for server in servers}
        self._read = read
        self._held: dict[str, Held] = {}
        self._counts: dict[str, dict[str, int]] = {}

    @functools.cached_property
    def classes(self) -> frozenset[str]:
        """The resource classes of devices."""
        return frozenset(units.resource_class for host in self.hosts.values()
                         for units in host.units)

    @functools.cached_property
    def on(self) -> collections.abc.Mapping[str, tuple[str, ...]]:
        """The uuids of the servers with devices, by host."""
        found = collections.defaultdict(list)
        for server in self.servers.values():
            if server.host in self.hosts and self.counts(server.uuid):
                found[server.host].append(server.uuid)
        return {name: tuple(found[name]) for name in self.hosts}

    @functools.cached_property
    def without_devices(self) -> frozenset[str]:
        """The uuids of the servers that are members of groups only."""
        return frozenset(self.servers).difference(*self.on.values())

    def with_spare(self, closed: collections.abc.Container[str],
                   ) -> tuple[str, 'Fleet']:
        """Return this fleet with one more host, and the host that it is like.

        The other host is free. It is like the one with the most units.

        :param closed: names of hosts that it must not be like
        """
        like = max((host for name, host in self.hosts.items()
                    if name not in closed), default=None,
                   key=lambda host: sum(each.total for each in host.units))
        if like is None:
            return '', self
        spare = dataclasses.replace(
            like, name=SPARE, closed='', kept_back=frozenset(),
            units=tuple(dataclasses.replace(each, free=each.total)
                        for each in like.units),
            resources=dict.fromkeys(like.resources, _PLENTY))
        return like.name, Fleet([*self.hosts.values(), spare],
                                self.servers.values(), self._read)

    def counts(self, uuid: str) -> collections.abc.Mapping[str, int]:
        """Return how many units of devices a server asks for, by class."""
        if uuid not in self._counts:
            self._counts[uuid] = {
                name: amount for name, amount
                in self.servers[uuid].wanted.amounts.items()
                if name in self.classes}
        return self._counts[uuid]

    def held_by_others(self, host: str) -> int:
        """Return how many units of a host no server there has.

        Such as those of a resize that is not confirmed.
        """
        return sum(units.total - units.free
                   for units in self.hosts[host].units) - sum(
            sum(self.held(uuid).units.values()) for uuid in self.on[host])

    def held(self, uuid: str) -> Held:
        """Return what a server has."""
        if uuid not in self._held:
            self.read([self.servers[uuid].host])
        return self._held[uuid]

    def read(self, hosts: collections.abc.Iterable[str]) -> None:
        """Read what the servers of some hosts have, if that is not known."""
        missing = [self.servers[uuid] for name in hosts
                   for uuid in self.on[name] if uuid not in self._held]
        if missing:
            found = self._read(missing)
            self._held.update({server.uuid: found.get(
                server.uuid, Held({})) for server in missing})


def model_trait(text: str) -> str:
    """Return what stands among the traits of units for their model.

    The state of a device can move to another of the same model only.

    :param text: tells the model, and the type of a virtual device
    """
    return f'{_MODEL}{text}'


def models(units: arrange.AvailableUnits) -> frozenset[str]:
    """Return the traits of :func:`model_trait` that units have."""
    return frozenset(trait for trait in units.traits
                     if trait.startswith(_MODEL))


# No trait of Placement has this form.
_MODEL = 'model '

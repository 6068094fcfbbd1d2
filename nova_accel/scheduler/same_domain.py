# SPDX-License-Identifier: Apache-2.0
"""Place the servers of a group, or of one request, in one host domain.

The filter keeps the hosts of one domain at a time: the one with the other
servers of the group, or one that has room for all servers of the request
(:mod:`nova_accel.core.host_domain`). If Nova does not find a host there for
each of them, another domain is tried. A request that does not ask for a
domain costs one look into its flavor.
"""

import collections
import collections.abc
import contextlib
import contextvars
import math

import nova.conf
from nova.scheduler import utils
from oslo_log import log as logging

from nova_accel import group_hosts
from nova_accel.core import errors
from nova_accel.core import host_domain
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.scheduler import candidates
from nova_accel.scheduler import device_request
from nova_accel.scheduler import host_rooms
from nova_accel.scheduler import no_valid_host
from nova_accel.scheduler import rounds

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# Domains that may have room and are tried for one request.
_MOST_TRIES = 8
# Most domains in a line of the log.
_EXAMPLES = 5


class Search:
    """The search of a domain for the servers of one request.

    :param spec_obj: nova.objects.RequestSpec
    :param uuids: of these servers
    :param present: the hosts of the servers that they belong together with,
        once for each of these servers
    :param domains: by host
    :ivar name: of the domain that is tried
    """

    def __init__(self, spec_obj, uuids: collections.abc.Sequence[str],
                 present: collections.abc.Sequence[str],
                 domains: collections.abc.Mapping[str, host_domain.Names]):
        self._spec = spec_obj
        self._uuids = uuids
        self._hosts = collections.Counter(present)
        self._domains = domains
        self._servers = host_domain.Servers.of(present, domains, len(uuids))
        self._wanted = device_request.of(spec_obj)
        self._rooms: dict[str, host_domain.Room] = {}
        self._failed: dict[str, host_domain.Room] = {}
        # Hosts without room for all servers, if all are to be on one.
        self._small: set[str] = set()
        self.name: str | None = None
        self._placed = 0

    @property
    def is_required(self) -> bool:
        return self._wanted.same_domain == device_profile.REQUIRED

    def rounds(self, found, provider_summaries):
        """Yield the provider summaries for each domain that is tried.

        :param found: as for :func:`.rounds.fresh`
        """
        return rounds.fresh(self._spec, found, (
            (provider_summaries, False) for _try in self._tries()))

    def _tries(self) -> collections.abc.Iterator[None]:
        for _time in range(_MOST_TRIES):
            self.name, self._placed = None, 0
            yield
            if not self.is_required or self.name is None:
                return
            self._failed[self.name] = self._known

    def place(self) -> None:
        """Count a server of the request that has got a host."""
        self._placed += 1

    def has(self, host_state) -> bool:
        """Whether a host is in the domain that is tried."""
        return (self.name in self._domains.get(host_state.host, ())
                and host_state.host not in self._small)

    def keep(self, hosts: list) -> list:
        """Return the hosts that the next server may get.

        :param hosts: those that pass all filters
        """
        if self.name is None:
            self._choose(hosts)
        kept = [host for host in hosts if self.has(host)]
        if not self.is_required:
            return hosts
        if hosts and not kept and self._placed < len(self._uuids):
            self._refuse()
        return kept

    def _choose(self, hosts: list) -> None:
        group = self._spec.instance_group
        policy = group.policy if group else None
        rooms = host_rooms.HostRooms(
            self._wanted, len(self._uuids), self._limit(group)
            if policy == 'anti-affinity' else lambda _host: math.inf)
        of_hosts = {host.host: rooms.of(host) for host in hosts
                    if host.host in self._domains}
        on_one_host = policy == 'affinity'
        if on_one_host:
            new = len(self._uuids)
            sure = {name for name, room in of_hosts.items()
                    if room.servers >= new}
            self._small = of_hosts.keys() - (sure or {
                name for name, room in of_hosts.items() if room.most >= new})
        self._rooms = {**host_domain.total_rooms(
            of_hosts, self._domains, on_one_host), **self._failed}
        order = [
            name for name in self._servers.order(
                self._rooms, CONF.nova_accel.pack_devices,
                # Very old requests lack the uuid.
                group.uuid if group and 'uuid' in group else self._uuids[0])
            if not self.is_required
            or self._servers.may_hold_all(name, self._rooms[name])]
        self.name = next(iter(order), None)
        for host in hosts:
            if answer := candidates.of(host):
                answer.has_more_hosts = self.is_required and len(order) > 1

    def _limit(self, group) -> collections.abc.Callable[[str], int]:
        most = int((group.rules or {}).get('max_server_per_host', 1))
        return lambda host: max(0, most - self._hosts[host])

    @property
    def _known(self) -> host_domain.Room:
        """The room of the domain that is tried, as far as Nova got."""
        return host_domain.Room(self._placed, self._placed)

    def _refuse(self) -> None:
        """Log and note that no domain has room for all servers."""
        rooms = self._rooms if self.name is None else {
            **self._rooms, self.name: self._known}
        reason = self._servers.refusal(rooms)
        LOG.info('%s has no valid host for %s: %s. Host domains: %s',
                 self._spec.instance_uuid, self._wanted.name, reason,
                 '; '.join(self._servers.lines(rooms)[:_EXAMPLES]) or (
                     'none has room' if self._domains else
                     'no aggregate with hosts has the metadata '
                     f'{host_domain.KEY}'))
        no_valid_host.refused(reason)


_current: contextvars.ContextVar[Search | None] = contextvars.ContextVar(
    'nova_accel_same_domain', default=None)


@contextlib.contextmanager
def searching(context, spec_obj, uuids: list[str] | None,
              ) -> collections.abc.Iterator[Search | None]:
    """Search one domain within the context, if the flavor asks for that.

    :param context: nova.context.RequestContext
    :param spec_obj: nova.objects.RequestSpec
    """
    search = (_search(context, spec_obj, uuids)
              if uuids and _asks(spec_obj) else None)
    token = _current.set(search)
    try:
        yield search
    finally:
        _current.reset(token)


def keep(hosts: list) -> list:
    """Return those of the hosts that the next server may get."""
    search = _current.get()
    return search.keep(hosts) if search else hosts


def place() -> None:
    """Count a server that has got a host."""
    if search := _current.get():
        search.place()


def weights(hosts: collections.abc.Iterable) -> dict[str, list[float]]:
    """Return the weights of hosts by the name of their multiplier."""
    search = _current.get()
    return {'accel_domain_weight_multiplier': [
        float(search.has(host)) for host in hosts]} if search else {}


def _asks(spec_obj) -> bool:
    """Whether the flavor asks for one domain, in a way that is understood."""
    flavor = spec_obj.flavor
    if ('extra_specs' not in flavor
            or flavor_specs.SAME_DOMAIN_KEY not in flavor.extra_specs
            # Nova runs no filters.
            or spec_obj.force_hosts or spec_obj.force_nodes
            or utils.request_is_rebuild(spec_obj)):
        return False
    try:
        return bool(flavor_specs.same_domain(flavor.extra_specs))
    except errors.ProfileError:
        # The filter logs it.
        return False


def _search(context, spec_obj, uuids: list[str]) -> Search:
    group = spec_obj.instance_group
    present: list = []
    if group:
        present = group_hosts.in_all_cells(
            context, lambda cell: group_hosts.of_group(cell, uuids, group))
    elif spec_obj.num_instances > 1:
        present = group_hosts.in_all_cells(
            context, lambda cell: group_hosts.of_request(cell, uuids))
    return Search(spec_obj, uuids, [instance.host for instance in present],
                  group_hosts.domains(context))

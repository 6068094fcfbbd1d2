# SPDX-License-Identifier: Apache-2.0
"""Reads who holds the devices of this host: from libvirt, Nova, Placement.

Most servers have a domain, so that reading the others needs two queries of
Nova's database, and none of Placement.

Seams: ``nova.objects.InstanceList.get_uuids_by_host`` and
``get_by_filters``; ``nova.objects.MigrationList.
get_in_progress_by_host_and_node``, which includes resizes that wait to be
confirmed; ``nova.objects.MigrationList.get_by_filters``, since the status of a
migration is ``reverted`` before the guest is back, or ``error`` if it fails to
come back.
"""

import collections
import collections.abc
import dataclasses

from nova import context
from nova import objects
from nova.compute import task_states
from nova.compute import vm_states
import nova.conf
from oslo_log import log as logging

from nova_accel.compute import instance_request
from nova_accel.compute.state import device_claims
from nova_accel.compute.state import libvirt_domains
from nova_accel.compute.state import placement
from nova_accel.compute.state import reverts
from nova_accel.core import claim as claims
from nova_accel.core.assignment import holders

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

#: Consumers in Placement by the server that their allocations are for.
_Consumers = collections.abc.Mapping[str, set[str]]


class NodeHolders:
    """Reads the Holders of one compute node."""

    def __init__(self, domains: libvirt_domains.LibvirtDomains,
                 claims: device_claims.DeviceClaims,
                 placement_client: placement.PlacementClient) -> None:
        self._domains = domains
        self._claims = claims
        self._placement_client = placement_client
        self._last: holders.Holders | None = None

    def hostdevs(self) -> dict[str, tuple]:
        """Return what domains hold, and what servers keep without a domain.

        :returns: hostdevs by the uuid of the domain or server
        :raises errors.AssignmentError: if any domain cannot be read
        """
        kept = self._claims.without_domain().values()
        found = dict(self._domains.read())
        for claim in kept:
            known = found.get(claim.server, ())
            found[claim.server] = (*known, *(
                device for device in claim.hostdevs
                if device.address not in {one.address for one in known}))
        return found

    def read(self, nodename: str) -> holders.Holders:
        """Read who holds devices now.

        :raises errors.AssignmentError: if any domain cannot be read
        """
        hostdevs = self.hostdevs()
        try:
            here, busy, consumers = self._without_domain(nodename)
            moving = _moving(self._claims.lingering())
        except Exception as error:
            # What is known of domains and claims is of use without this.
            LOG.warning('Could not read from Nova which servers have no '
                        'domain; no devices are released or reset: %s', error)
            found = holders.Holders(hostdevs, is_known=False,
                                    new=self._new())
        else:
            found = dataclasses.replace(
                self._with_allocations(hostdevs, consumers),
                here=frozenset(here), busy=frozenset(busy), moving=moving)
        self._last = found
        return found

    def recent(self, nodename: str) -> holders.Holders:
        """Return the last reading, with the domains and claims of now.

        :raises errors.AssignmentError: as :meth:`read`
        """
        if self._last is None:
            return self.read(nodename)
        return dataclasses.replace(self._last, hostdevs=self.hostdevs(),
                                   new=self._new())

    def _new(self) -> frozenset:
        """Return the addresses that servers without a domain never had."""
        return frozenset().union(*(
            claim.addresses for claim
            in self._claims.without_domain().values() if claim.is_new))

    def _with_allocations(self, hostdevs, consumers) -> holders.Holders:
        answers = {server: {
            consumer: self._placement_client.allocations_of_consumer(consumer)
            # A revert moves the allocations of a migration to the server:
            # read those of the server last.
            for consumer in sorted(every, key=lambda one: one == server)}
            for server, every in consumers.items()}
        return holders.Holders(
            hostdevs, {server: tuple(map(placement.allocated, every.values()))
                       for server, every in answers.items()},
            unallocated=frozenset(
                consumer for every in answers.values()
                for consumer, answer in every.items() if answer == {}),
            is_known=self._placement_client.answers and not any(
                None in every.values() for every in answers.values()),
            new=self._new())

    def _without_domain(self, nodename,
                        ) -> tuple[set[str], set[str], _Consumers]:
        """Return servers of this host, and consumers.

        :returns: the servers without a domain; those that claim devices and
            have a task in progress; the consumers
        """
        admin = context.get_admin_context()
        domains = self._domains.read()
        lacking = set(objects.InstanceList.get_uuids_by_host(
            admin, CONF.host)) - domains.keys()
        consumers: dict[str, set[str]] = collections.defaultdict(set)
        for consumer, claim in self._claims.without_domain().items():
            consumers[claim.server].update((consumer, claim.server))
        lingering = self._claims.lingering()
        for consumer, claim in lingering.items():
            consumers[claim.server].add(consumer)
        for server in _asking(admin, lacking):
            consumers[server.uuid].update((
                server.uuid, *_last_migrations(admin, server)))
        for move in objects.MigrationList.get_in_progress_by_host_and_node(
                admin, CONF.host, nodename):
            consumers_of_move = _consumers(move, nodename, domains)
            if consumers_of_move:
                consumers[move.instance_uuid].update(consumers_of_move)
        return lacking, _busy(admin, {
            claim.server for claim in lingering.values()}), consumers


def _moving(lingering: collections.abc.Mapping[str, claims.Claim],
            ) -> frozenset[str]:
    """Return the migrations that have claims and have not ended."""
    return frozenset(consumer for consumer, claim in lingering.items()
                     if consumer != claim.server and reverts.is_waiting(
                         consumer))


def _busy(admin, uuids: set[str]) -> set[str]:
    """Return those of these servers of this host with a task in progress."""
    return {server.uuid for server in objects.InstanceList.get_by_filters(
        admin, {'uuid': sorted(uuids), 'host': CONF.host, 'deleted': False},
        expected_attrs=[]) if server.task_state} if uuids else set()


def _asking(admin, uuids: set[str]) -> list:
    """Return those of these servers that may have had devices.

    A server that is being built has had none yet.
    """
    if not uuids:
        return []
    return [server for server in objects.InstanceList.get_by_filters(
        admin, {'uuid': sorted(uuids), 'deleted': False, 'soft_deleted': True},
        expected_attrs=['flavor'])
        if server.vm_state != vm_states.BUILDING
        and instance_request.of(server).classes]


def _last_migrations(admin, server) -> list[str]:
    """Return the migration whose allocations may be those of a server.

    These servers are in ERROR, or their resize is being reverted.
    """
    if server.vm_state != vm_states.ERROR and (
            server.task_state != task_states.RESIZE_REVERTING):
        return []
    return [move.uuid for move in objects.MigrationList.get_by_filters(
        admin, {'instance_uuid': server.uuid,
                'status': ['reverted', 'error']},
        sort_keys=['id'], sort_dirs=['desc'], limit=1)]


def _consumers(move, nodename, domains) -> set[str]:
    """Return the consumers with allocations that a move has on this node."""
    server = move.instance_uuid
    if move.source_node == nodename:
        if move.dest_node != nodename and server in domains:
            # The old domain is still defined here, and holds them.
            return set()
        return {move.uuid, server}
    # It has no domain here yet.
    return set() if server in domains else {server}

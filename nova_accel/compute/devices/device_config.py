# SPDX-License-Identifier: Apache-2.0
"""Builds the device config that a server's profile requests, for its kind.

A profile names a bitstream by its image in Glance. The kind gets it as a file,
and gets the other servers that hold the region to be programmed.
"""

import collections.abc
import dataclasses

from nova import context as nova_context
from nova import exception
from nova import objects
import nova.conf

from nova_accel import conf
from nova_accel.compute import instance_request
from nova_accel.compute.devices import bitstreams
from nova_accel.compute.state import node_state
from nova_accel.core import errors
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core.request import flavor_request
from nova_accel.core.request import fpga

CONF = nova.conf.CONF


class DeviceConfigs:
    """Builds the device configs of a server that is about to start.

    :param context: of the request
    :param instance: nova.objects.Instance, or None if it is not known
    """

    def __init__(self, context, instance, state: node_state.NodeState):
        self._context = context
        self._instance = instance
        self._state = state
        self._claims = state.claims
        self._domains = state.domains

    @property
    def project(self) -> str:
        """Id of the server's project, '' if it is not known."""
        return self._instance.project_id if self._instance else ''

    def image(self, group: str) -> str | None:
        """Return the image of the bitstream that a group requests, or None."""
        return self._instance and _image(self._instance.flavor, group)

    def build(self, group: str,
              affected: collections.abc.Collection[model.Address],
              ) -> kind.DeviceConfig:
        """Build the device config of a group, and fetch its bitstream.

        :param affected: the devices that change when one is programmed
        :raises errors.AssignmentError: if a bitstream cannot be fetched
        """
        if self._instance is None:
            return kind.DeviceConfig()
        request = instance_request.of(self._instance)
        image = self.image(group)
        return kind.DeviceConfig(
            self._bitstream(group, image, affected) if image else None,
            frozenset(request.traits(group) if group in request.groups
                      else ()), self.project)

    def check_strangers(self, thing: str, affected: collections.abc.Collection[
            model.Address]) -> None:
        """Check that a new server shares nothing with another project.

        :param thing: what it would share, for the error
        :param affected: as for :meth:`build`
        :raises errors.AssignmentError: if it does, and isolation is strict
        """
        if not (conf.is_strict(CONF) and self._instance
                and self._claims.is_new(self._instance)):
            return
        others = {uuid for uuid, _device in self._claims.holders_of(affected)
                  }.union(self._without_domain(affected))
        strangers = sorted(
            uuid for uuid in others - {self._instance.uuid}
            if getattr(_find(uuid), 'project_id', '') != self.project)
        if strangers:
            raise errors.AssignmentError(
                thing, 'isolation is strict, and servers of other projects '
                f'have a part of the same region: {", ".join(strangers)}')

    def _bitstream(self, group, image, affected) -> fpga.Bitstream:
        bitstream = bitstreams.fetch(self._context, image,
                                     self._instance.trusted_certs)
        # After the download, which can take minutes.
        sharing, conflicting_servers = self._others(group, image, affected)
        return dataclasses.replace(
            bitstream, shared=bool(sharing),
            shared_with_others=bool(sharing - {self._instance.uuid}),
            conflicting_servers=tuple(sorted(conflicting_servers)))

    def _others(self, group, image, affected) -> tuple[set[str], set[str]]:
        """Return which servers use the same bitstream, and which conflict.

        Servers conflict if they use another bitstream in the region, or if
        their guest is running. A server without a domain conflicts, too.
        """
        sharing, conflicting_servers = set(), set()
        for uuid, device in self._claims.holders_of(affected):
            mine = uuid == self._instance.uuid
            if mine and device.group == group:
                continue
            same = bool(device.group) and (
                self._images(uuid, device.group) == {image})
            if same:
                sharing.add(uuid)
            if not same or not mine and self._domains.attached(uuid):
                conflicting_servers.add(uuid)
        return sharing, conflicting_servers | {
            uuid for uuid in self._without_domain(affected)
            if self._images(uuid) != {image}}

    def _without_domain(self, affected) -> set[str]:
        """Return other servers that have a region, but no domain.

        :raises errors.AssignmentError: if that is not known
        """
        here, _unreadable = self._state.read_or_empty(cached=True)
        known = self._state.holders.read(here.node.name)
        if not known.is_known:
            raise errors.AssignmentError(
                'device request', 'Nova or Placement does not tell which '
                'servers without a domain have the region', 'try again')
        return known.servers_lacking(
            [item for item in here.offered if any(
                not affected.isdisjoint(unit)
                for unit in item.region.units)]) - {self._instance.uuid}

    def _images(self, uuid, group=None) -> set[str | None]:
        """Return the images that a server requests for a group, or for all.
        """
        flavors = [self._instance.flavor]
        if uuid != self._instance.uuid:
            instance = _find(uuid)
            if not instance:
                return set()
            # A resize that is not confirmed can be reverted.
            flavors = [*filter(None, (instance.flavor, instance.old_flavor))]
        return {_image(flavor, name) for flavor in flavors
                for name in ([group] if group is not None
                             else _programmed_groups(flavor))}


def _find(uuid: str):
    """Return a server with its flavor, None if Nova does not know it."""
    try:
        return objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), uuid, expected_attrs=['flavor'])
    except exception.InstanceNotFound:
        return None


def _programmed_groups(flavor) -> list[str]:
    """Return the groups of a flavor that request a bitstream."""
    return [name for name, group in flavor_request.parse(
        flavor.extra_specs).groups.items() if group.bitstream]


def _image(flavor, group: str) -> str | None:
    found = flavor_request.parse(flavor.extra_specs).groups.get(group)
    return (found.bitstream or None) if found else None

# SPDX-License-Identifier: Apache-2.0
"""What a server's profile asks of a device, in the form that kinds take.

A Profile names a bitstream by its image; the kind gets a file, and is told
who else holds the region that it is to be programmed into.
"""

import collections.abc
import dataclasses

from nova import context as nova_context
from nova import exception
from nova import objects

from nova_accel.compute import instance_request
from nova_accel.compute.devices import bitstreams
from nova_accel.compute.state import node_state
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.request import flavor_request
from nova_accel.core.request import fpga


class DeviceConfigs:
    """What a server that is about to start asks of its devices, by group.

    :param context: of the request
    :param instance: nova.objects.Instance, or None if it is not at hand
    """

    def __init__(self, context, instance, state: node_state.NodeState):
        self._context = context
        self._instance = instance
        self._claims = state.claims
        self._domains = state.domains

    def image(self, group: str) -> str | None:
        """The image of the bitstream that a group asks for."""
        return self._instance and _image(self._instance.flavor, group)

    def build(self, group: str,
              affected: collections.abc.Collection[model.Address],
              ) -> kind.DeviceConfig:
        """Build what a group asks for, and fetch its bitstream.

        :param affected: the devices that change when one is programmed
        :raises errors.AssignmentError: if a bitstream cannot be fetched
        """
        if self._instance is None:
            return kind.DeviceConfig()
        asked = instance_request.of(self._instance)
        image = self.image(group)
        return kind.DeviceConfig(
            image and self._bitstream(group, image, affected),
            frozenset(asked.traits(group) if group in asked.groups else ()))

    def _bitstream(self, group, image, affected) -> fpga.Bitstream:
        shared, rivals = self._others(group, image, affected)
        return dataclasses.replace(
            bitstreams.fetch(self._context, image,
                             self._instance.trusted_certs), shared=shared,
            rivals=tuple(sorted(rivals)))

    def _others(self, group, image, affected) -> tuple[bool, set[str]]:
        """Whether others want the same of a region, and who wants it kept.

        Kept as it is: for a guest that runs, and for a server that has, or is
        about to have, something else there.
        """
        shared, rivals = False, set()
        for uuid, device in self._claims.holders_of(affected):
            other = naming.parse_alias(device.alias)
            mine = uuid == self._instance.uuid
            if mine and other and other[0] == group:
                continue
            same = bool(other) and self._images(uuid, other[0]) == {image}
            shared = shared or same
            if not same or not mine and self._domains.attached(uuid):
                rivals.add(uuid)
        return shared, rivals

    def _images(self, uuid, group) -> set[str | None]:
        """The images of the bitstreams that a server asks for, for a group.
        """
        flavors = [self._instance.flavor]
        if uuid != self._instance.uuid:
            try:
                instance = objects.Instance.get_by_uuid(
                    nova_context.get_admin_context(), uuid,
                    expected_attrs=['flavor'])
            except exception.InstanceNotFound:
                return set()
            # While a resize waits, it can go back to what it had.
            flavors = filter(None, (instance.flavor, instance.old_flavor))
        return {_image(flavor, group) for flavor in flavors}


def _image(flavor, group: str) -> str | None:
    asked = flavor_request.parse(flavor.extra_specs).groups.get(group)
    return asked and asked.bitstream

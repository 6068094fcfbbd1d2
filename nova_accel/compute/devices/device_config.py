# SPDX-License-Identifier: Apache-2.0
"""What a server's Profile wishes, made into what a kind can use.

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
from nova_accel.compute.state import device_claims
from nova_accel.compute.state import libvirt_domains
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.request import flavor_specs

#: What :func:`nova_accel.core.request.flavor_specs.wishes` calls a
#: bitstream's image.
BITSTREAM = 'bitstream'


class Wishes:
    """What a server that is about to start wishes, by group.

    :param context: of the request
    :param instance: nova.objects.Instance, or None where it is not at hand
    :param claimed: what servers have, or are about to
    :param recorded: what their guests have
    """

    def __init__(self, context, instance, claimed: device_claims.Claims,
                 recorded: libvirt_domains.Record):
        self._context = context
        self._instance = instance
        self._claims = claimed
        self._record = recorded

    def of(self, group: str,
           affected: collections.abc.Collection[model.Address] | None,
           ) -> dict[str, str]:
        """A group's wishes, by key.

        :param affected: the devices that change if they are granted; None
            if that is not to be yet
        :raises errors.AssignmentError: if a bitstream cannot be had
        """
        if self._instance is None:
            return {}
        wishes = flavor_specs.wishes(self._instance.flavor.extra_specs, group)
        asked = instance_request.of(self._instance)
        if group in asked.groups:
            wishes['traits'] = ' '.join(asked.traits(group))
        if wishes.get(BITSTREAM) and affected is not None:
            wishes.update(self._bitstream(group, wishes[BITSTREAM], affected))
        return wishes

    def _bitstream(self, group, image, affected) -> dict[str, str]:
        shared, rivals = self._others(group, image, affected)
        return dataclasses.replace(
            bitstreams.fetch(self._context, image,
                             self._instance.trusted_certs), shared=shared,
            rivals=tuple(sorted(rivals))).as_wishes()

    def _others(self, group, image, affected) -> tuple[bool, set[str]]:
        """Whether others want the same of a region, and who wants it kept.

        Kept as it is: for a guest that runs, and for a server that has, or is
        about to have, something else there.
        """
        shared, rivals = False, set()
        for uuid, device in self._claims.holding(affected):
            other = naming.parse_alias(device.alias)
            mine = uuid == self._instance.uuid
            if mine and other and other[0] == group:
                continue
            same = bool(other) and self._wished(uuid, other[0]) == {image}
            shared = shared or same
            if not same or not mine and self._record.running(uuid):
                rivals.add(uuid)
        return shared, rivals

    def _wished(self, uuid, group) -> set[str | None]:
        """The images of the bitstreams that a server wishes for a group."""
        specs = [self._instance.flavor.extra_specs]
        if uuid != self._instance.uuid:
            try:
                instance = objects.Instance.get_by_uuid(
                    nova_context.get_admin_context(), uuid,
                    expected_attrs=['flavor'])
            except exception.InstanceNotFound:
                return set()
            # While a resize waits, it can go back to what it had.
            specs = [of.extra_specs for of
                     in (instance.flavor, instance.old_flavor) if of]
        return {flavor_specs.wishes(of, group).get(BITSTREAM) for of in specs}

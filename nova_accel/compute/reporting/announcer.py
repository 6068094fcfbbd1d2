# SPDX-License-Identifier: Apache-2.0
"""Announces changes of devices, once for each, as notifications.

What was announced is the difference to what is there: withheld units to the
traits of their providers in Placement, and the devices of servers to libvirt's
domains when nova-compute started.

Seam: ``nova.objects.Instance``, to describe a server.
"""

import collections.abc
import threading

from nova import context
from nova import exception
from nova import objects
from oslo_log import log as logging

from nova_accel.compute import instance_request
from nova_accel.compute import notifications
from nova_accel.compute.state import node_state
from nova_accel.core import changes
from nova_accel.core import held_devices
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)


_Held = dict[str, dict[model.Address, hostdev.Hostdev]]


class Announcer:
    """The notifications of one nova-compute."""

    def __init__(self, state: node_state.NodeState) -> None:
        self._state = state
        self._claims = state.claims
        self._domains = state.domains
        self._withheld: changes.Snapshot | None = None
        #: Devices by address, by server; None until domains could be read.
        self._held: _Held | None = None
        self._lock = threading.Lock()

    def start(self, held: held_devices.Held) -> None:
        """Take the devices that servers hold as announced.

        :param held: what libvirt's domains hold
        """
        self._held = _ours(held)

    def announce_devices(self, here: inventory.NodeInventory) -> None:
        """Announce the units that are withheld now, or not any more.

        :param here: what the compute node offers, and its providers as they
            were before this round
        """
        now = changes.withheld(here)
        before = (changes.told(here) if self._withheld is None
                  else self._withheld)
        now = changes.still(before, now, here)
        # First, so that a failure is not announced again in each round.
        self._withheld = now
        found = changes.between(before, now)
        holders = self._domains.holders() if found else {}
        for is_begin, states in ((False, found.ended), (True, found.begun)):
            for (uuid, state), units in states.items():
                addresses = [address for unit in units for address in unit]
                notifications.device_changed(
                    here.by_uuid[uuid], here.node.name, state, units,
                    is_begin, _reason(here, addresses) if is_begin else '',
                    {holders[address] for address in addresses
                     if address in holders})

    def announce_servers(self) -> None:
        """Announce what servers got or lost outside of their operations.

        A confirmed resize undefines the domain on the source, for example.
        """
        now = self._domains.read()
        if self._held is None:
            self._held = _ours(now)
        for uuid in {*self._held, *now}:
            if (self._held.get(uuid, {}) != _by_address(now.get(uuid, ()))
                    # Other programs' domains, and operations in progress.
                    and not self._claims.is_claimed(uuid)):
                self._announce(uuid, lambda uuid=uuid: _find(uuid))

    def operation_ended(self, instance) -> None:
        """Announce what a server got or released in an operation.

        :param instance: nova.objects.Instance
        """
        try:
            if self._may_have_changed(instance):
                self._announce(instance.uuid, lambda: instance)
        except Exception:
            # The operation itself has ended.
            LOG.exception('Could not announce the devices of server %s',
                          instance.uuid)

    def _may_have_changed(self, instance) -> bool:
        """Whether a server has, had or may have got devices."""
        uuid = instance.uuid
        return self._held is not None and not self._claims.is_claimed(
            uuid) and (uuid in self._held
                       or bool(instance_request.of(instance).classes))

    def _announce(self, uuid: str,
                  instance: collections.abc.Callable) -> None:
        """Announce the change of a server's devices.

        :param instance: returns the server; called only if there is a change
        """
        with self._lock:
            now = _by_address(self._domains.held_by(uuid))
            held = {} if self._held is None else self._held
            before = held.pop(uuid, {})
            if now:
                held[uuid] = now
        found = changes.between({uuid: frozenset(before)},
                                {uuid: frozenset(now)})
        if not found:
            return
        here, _unreadable = self._state.read_or_empty(cached=True)
        server = instance()
        for is_begin, devices, addresses in (
                (False, before, found.ended), (True, now, found.begun)):
            if addresses.get(uuid):
                notifications.instance_changed(
                    uuid, server, here.node.name,
                    [devices[address] for address in addresses[uuid]],
                    is_begin, len(now), here)


def _ours(held: held_devices.Held) -> _Held:
    return {uuid: _by_address(hostdevs) for uuid, hostdevs in held.items()}


def _by_address(hostdevs) -> dict[model.Address, hostdev.Hostdev]:
    """Return the hostdevs that are ours."""
    return {device.address: device for device in hostdev.ours(hostdevs)}


def _reason(here, addresses) -> str:
    """Return why a device is withheld, '' if nothing says so."""
    return next((refusal.reason for refusal in here.host.refusals
                 if refusal.address in addresses), '')


def _find(uuid: str):
    """Return a server of this cell, even if deleted, or None."""
    try:
        return objects.Instance.get_by_uuid(
            context.get_admin_context(read_deleted='yes'), uuid,
            expected_attrs=['flavor'])
    except exception.InstanceNotFound:
        return None

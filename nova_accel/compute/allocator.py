# SPDX-License-Identifier: Apache-2.0
"""Claims the allocated devices of a server, or those that it has already."""

import enum

from nova import exception
from oslo_log import log as logging

from nova_accel.compute import faults
from nova_accel.compute import instance_request
from nova_accel.compute.devices import firmware_probes
from nova_accel.compute.devices import reclaim
from nova_accel.compute.state import device_claims
from nova_accel.compute.state import node_state
from nova_accel.compute.state import placement
from nova_accel.compute.state import reverts
from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import hostdev
from nova_accel.core.assignment import allocations
from nova_accel.core.assignment import ownership
from nova_accel.core.assignment import verify
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)


class _Operation(enum.Enum):
    """For what a server gets or keeps devices."""

    SPAWN = enum.auto()
    MOVE = enum.auto()
    RESTART = enum.auto()
    REVERT = enum.auto()

    @property
    def is_here(self) -> bool:
        """Whether the server is on this host already."""
        return self in (self.RESTART, self.REVERT)

    @property
    def exactly(self) -> bool:
        """As in :func:`verify.matches_allocations`."""
        return self in (self.MOVE, self.REVERT)

    @property
    def keep(self) -> bool:
        """As in :meth:`device_claims.DeviceClaims.claim`."""
        return self is not self.SPAWN


class Allocator:
    """Claims devices for servers, and records them in Placement."""

    def __init__(self, state: node_state.NodeState,
                 probes: firmware_probes.FirmwareProbes,
                 reclamation: reclaim.Reclamation) -> None:
        self._state = state
        self._probes = probes
        self._reclamation = reclamation
        self._claims = state.claims
        self._placement_client = state.placement_client

    def for_spawn(self, instance, allocations) -> None:
        """Claim devices for a server that is new on this host.

        :param allocations: in Placement's form; None if it does not answer
        :raises nova.exception.ComputeResourcesUnavailable: with which Nova
            tries the next host
        """
        self._allocate(instance, allocations, _Operation.SPAWN)

    def for_move(self, instance, allocations) -> None:
        """Claim devices for a server that was moved or resized to this host.

        Parameters and errors are those of :meth:`for_spawn`.
        """
        self._allocate(instance, allocations, _Operation.MOVE)

    def for_restart(self, instance, migration=None) -> None:
        """Claim the devices of a server that is on this host already.

        Nova does not pass its allocations, so read them from Placement.

        :param migration: the resize that is being reverted, if one is
        :raises nova.exception.ComputeResourcesUnavailable: if they cannot be
            claimed
        """
        if instance_request.of(instance).classes:
            self._allocate(
                instance,
                self._placement_client.allocations_of_consumer(instance.uuid),
                _Operation.REVERT if migration else _Operation.RESTART,
                migration)

    def _allocate(self, instance, allocations, operation: _Operation,
                  migration=None) -> None:
        """Claim what a server keeps (:mod:`.ownership`), else choose.

        :param migration: as for :meth:`for_restart`
        """
        request = instance_request.of(instance)
        if not request.classes:
            return
        allocated = placement.allocated(allocations)
        # The claim of the resource tracker has just read the Host.
        here, unreadable = self._state.read_or_empty(
            cached=operation is _Operation.SPAWN)
        # A rebuild starts with a claim. Its ComputeResourcesUnavailable would
        # make Nova restore ACTIVE although the server has no domain.
        is_rebuilt = self._claims.get(instance) is not None
        is_owner = operation.is_here or is_rebuilt
        keep = operation.keep or is_rebuilt
        fault = (exception.InstanceDeployFailure if is_rebuilt
                 else exception.ComputeResourcesUnavailable)
        try:
            held = self._claims.held(instance)
            if allocations is not None and is_owner:
                allocated = self._after_revert(instance, allocated, here,
                                               migration)
            if not (_keeps(held, allocated, operation.exactly)
                    or verify.includes_our_devices(request, allocated, here)):
                # An empty claim settles this for the whole operation.
                self._claims.claim(instance, ())
                return
            if not allocated and allocations is not None and is_owner:
                allocated = self._rebuild_allocations(instance, held, here)
            kept = ownership.kept(self._claims.had(instance), request,
                                  allocated, here, operation.exactly)
            if kept is not None:
                self._claims.claim(instance, kept, keep)
                return
            self._claims.release(instance.uuid)
            self._choose_allocated(instance, allocated, here, unreadable,
                                   is_owner, keep)
        except errors.AccelError as error:
            raise fault(reason=faults.log_and_redact(
                'Server gets no devices', error, instance)) from None

    def _choose_allocated(self, instance, allocated, here,
                          unreadable: errors.TreeError | None, is_owner,
                          keep) -> None:
        """Choose and claim devices, if allocations and Host were readable."""
        if not allocated:
            raise errors.AssignmentError(
                f'server {instance.uuid}', 'Placement returned no allocations '
                'for it', 'try again once Placement answers')
        if unreadable:
            raise unreadable
        chosen = self.choose(instance, allocated, here, is_owner=is_owner,
                             keep=keep)
        if chosen:
            LOG.info('Server gets %s', ', '.join(
                str(device.address) for device in chosen),
                instance=instance)

    def _after_revert(self, instance, allocated, here, migration,
                      ) -> allocations.Allocations:
        """Return the allocations of a server of this host.

        Nova can leave those of its devices to a migration that has ended.

        :param allocated: as Placement has them
        :param migration: as for :meth:`for_restart`
        :raises errors.AssignmentError: if Placement rejects the change
        """
        had = next(filter(None, self._claims.had(instance)), ())
        is_done = (verify.are_allocated(had, allocated, here) if had
                   else not migration)
        if not is_done and reverts.finish(
                instance, had, here, self._placement_client, migration):
            return placement.allocated(
                self._placement_client.allocations_of_consumer(instance.uuid))
        return allocated

    def _rebuild_allocations(self, instance, held,
                             here: inventory.NodeInventory,
                             ) -> allocations.Allocations:
        """Return the allocations of a server of this host; write lost ones.

        :param held: the devices that it has
        :raises errors.AssignmentError: if it has no devices, and Placement
            does not accept new allocations
        """
        allocations = self._placement_client.allocations_of_consumer(
            instance.uuid)
        if allocations is None or allocations:
            return placement.allocated(allocations)
        allocated = verify.rebuild_allocations(
            held, instance_request.of(instance),
            placement.requested_amounts(instance), here)
        if not allocated:
            return {}
        try:
            self._placement_client.restore(instance, allocated,
                                           here.providers.union(
                here.counting(instance_request.of(instance).classes)))
        except errors.AssignmentError as error:
            if not held:
                raise
            # The server keeps its devices; the audit reports them.
            LOG.warning('%s', error, instance=instance)
            return {}
        for item, functions in held_devices.dirty(held, here):
            # Restoring has made it free for a moment.
            self._state.use(item, functions)
        return allocated

    def choose(self, instance, allocated, here: inventory.NodeInventory,
               **how: bool) -> hostdev.Hostdevs:
        """Choose and claim devices, and sanitize them for the new owner.

        :param how: ``is_live_migration``, ``is_owner`` and ``keep`` of
            :meth:`device_claims.DeviceClaims.choose`
        :raises errors.AccelError: if there are not enough
        """
        while True:
            chosen = self._claims.choose(
                instance, allocated, here,
                self._placement_client.units_by_consumer, **how)
            is_owner = how.get('is_owner', False)
            # A reset would unbind the driver that a probe may need.
            if (is_owner or self._probes.passes(chosen.hostdevs, here)) and (
                    self._reclamation.sanitize(instance, chosen.hostdevs, here,
                                               is_owner)):
                self._book(instance, chosen)
                return chosen.hostdevs
            # A device that is dirty, whose firmware has changed, or whose
            # reset failed, is no longer offered. Try others.
            self._claims.release(instance.uuid)
            here = self._state.read()

    def _book(self, instance, chosen: device_claims.Chosen) -> None:
        """Write the chosen devices to the allocations, if they differ.

        The scheduler's filter writes its own choice. But Nova skips filters
        if a server is forced to a host, and allocations on alternate hosts
        name no device.

        :raises errors.AssignmentError: if Placement rejects the change
        """
        if chosen.unallocated:
            self._placement_client.reallocate(
                instance.uuid, chosen.unallocated, chosen.surplus)
            LOG.info('Devices were chosen on this host, %s; updated the '
                     'allocations in Placement',
                     'instead of the allocated ones' if chosen.surplus
                     else 'since the scheduler chose none',
                     instance=instance)


def _keeps(held, allocated, exactly) -> bool:
    """Whether a server keeps its devices, even if none are allocated to it.

    With other allocations, a resized server may have those of its old flavor.
    """
    return bool(held) and not (allocated and exactly)

# SPDX-License-Identifier: Apache-2.0
"""A server gets the devices that it was promised, or the ones it has."""

from nova import exception
from oslo_log import log as logging

from nova_accel.compute import faults
from nova_accel.compute import instance_request
from nova_accel.compute.devices import reclaim
from nova_accel.compute.state import device_claims
from nova_accel.compute.state import node_state
from nova_accel.compute.state import placement
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core.assignment import assign
from nova_accel.core.assignment import verify
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)


class Allocator:
    """Claims devices for servers, and records them in Placement."""

    def __init__(self, state: node_state.NodeState,
                 reclamation: reclaim.Reclamation) -> None:
        self._state = state
        self._reclamation = reclamation
        self._claims = state.claims
        self._placement_client = state.placement_client

    def for_spawn(self, instance, allocations) -> None:
        """Claim devices for a server that is new on this host.

        :param allocations: in Placement's form; None if it does not answer
        :raises nova.exception.ComputeResourcesUnavailable: with which Nova
            tries the next host
        """
        # For its claim, the machine was read a moment ago.
        self._allocate(instance, allocations, cached=True)

    def for_move(self, instance, allocations) -> None:
        """Claim devices for a server that comes with another flavor, maybe.

        :param allocations: as in :meth:`for_spawn`, as is what is raised
        """
        self._allocate(instance, allocations, exactly=True)

    def for_restart(self, instance, is_reverted: bool = False) -> None:
        """Claim the devices of a server that is on this host already.

        Nova does not tell its allocations, so Placement is asked.

        :param is_reverted: whether it has its old flavor again
        :raises nova.exception.ComputeResourcesUnavailable: if it cannot have
            them
        """
        if instance_request.of(instance).classes:
            self._allocate(
                instance,
                self._placement_client.allocations_of_consumer(instance.uuid),
                is_here=True, exactly=is_reverted)

    def _allocate(self, instance, allocations, cached=False, is_here=False,
                  exactly=False) -> None:
        """Claim what a server has, if it was promised that, or a choice.

        :param exactly: as in :func:`verify.matches_allocations`
        """
        asked = instance_request.of(instance)
        if not asked.classes:
            return
        allocated = placement.allocated(allocations)
        here, unreadable = self._state.read_or_empty(cached)
        held = self._claims.held(instance)
        # What it has says that it does, too; but not of another flavor.
        if not (verify.includes_our_devices(asked, allocated, here)
                or held and not (allocated and exactly)):
            # Said once for the whole operation.
            self._claims.claim(instance, ())
            return
        # A rebuild comes with a claim. For it, Nova would take the other
        # fault for a host that was never left: ACTIVE, without allocations.
        is_rebuilt = self._claims.get(instance) is not None
        fault = (exception.InstanceDeployFailure if is_rebuilt
                 else exception.ComputeResourcesUnavailable)
        try:
            if not allocated and allocations is not None and (
                    is_rebuilt or is_here):
                allocated = self._rebuild_allocations(instance, held, here)
            if held and verify.matches_allocations(held, asked, allocated,
                                                   here, exactly):
                self._claims.claim(instance, held)
                return
            self._claims.release(instance.uuid)
            chosen = self._chosen(instance, allocated, here, unreadable)
        except errors.AccelError as error:
            raise fault(reason=faults.told('Server gets no devices', error,
                                           instance)) from None
        if chosen:
            LOG.info('Server gets %s', ', '.join(
                str(device.address) for device in chosen),
                instance=instance)

    def _chosen(self, instance, allocated, here,
                unreadable) -> hostdev.Hostdevs:
        if not allocated:
            raise errors.AssignmentError(
                f'server {instance.uuid}', 'Placement does not say what '
                'it was promised', 'try again once Placement answers')
        if unreadable:
            raise unreadable
        return self.choose(instance, allocated, here)

    def _rebuild_allocations(self, instance, held,
                       here: inventory.NodeInventory) -> assign.Allocations:
        """What a server of this host is promised, where Nova says nothing.

        :param held: what it has
        :raises errors.AssignmentError: if it has nothing, and Placement does
            not agree that it gets something
        """
        allocations = self._placement_client.allocations_of_consumer(
            instance.uuid)
        if allocations is None or allocations:
            return placement.allocated(allocations)
        allocated = verify.rebuild_allocations(
            held, instance_request.of(instance), placement.asked(instance),
            here)
        if not allocated:
            return {}
        try:
            self._placement_client.allocate(instance, allocated)
        except errors.AssignmentError as error:
            if not held:
                raise
            # It has what it has; the comparison with the promises says so.
            LOG.warning('%s', error, instance=instance)
            return {}
        return allocated

    def choose(self, instance, allocated, here: inventory.NodeInventory,
               comes_live=False) -> hostdev.Hostdevs:
        """Choose and claim devices of which nobody's traces are left.

        :param comes_live: as in :func:`instance_request.wanted`
        :raises errors.AccelError: if there are not enough
        """
        while True:
            chosen = self._claims.choose(
                instance, allocated, here,
                self._placement_client.units_by_consumer, comes_live)
            if self._reclamation.sanitize(chosen.hostdevs,
                                          self._state.domains.holders()):
                self._book(instance, chosen)
                for item in chosen.once:
                    # Before its guest is there: whatever happens next, it is
                    # not forgotten.
                    self._placement_client.reserve(item)
                return chosen.hostdevs
            # What failed is not offered any more; its like may do.
            self._claims.release(instance.uuid)
            here = self._state.read()

    def _book(self, instance, chosen: device_claims.Chosen) -> None:
        """Tell Placement which devices were chosen here.

        The scheduler's filter does that with its choice, but Nova skips
        filters where somebody forces a server onto a host, and alternates of
        the host that it chose are promised no device in particular.

        :raises errors.AssignmentError: if Placement does not agree
        """
        if chosen.unallocated:
            self._placement_client.reallocate(
                instance.uuid, chosen.unallocated, chosen.surplus)
            LOG.info('Devices were chosen here, %s; Placement knows now',
                     'in place of those that it was promised'
                     if chosen.surplus else 'for the scheduler had not',
                     instance=instance)

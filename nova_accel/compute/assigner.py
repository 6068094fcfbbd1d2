# SPDX-License-Identifier: Apache-2.0
"""A server gets the devices that it was promised, or the ones it has."""

import collections.abc

from nova import exception
from oslo_log import log as logging

from nova_accel.compute import claims
from nova_accel.compute import faults
from nova_accel.compute import ledger
from nova_accel.compute import machine
from nova_accel.compute import promise
from nova_accel.compute import record
from nova_accel.compute import upkeep
from nova_accel.core import assignment
from nova_accel.core import errors
from nova_accel.core import flavor
from nova_accel.core import hostdev
from nova_accel.core import providers

LOG = logging.getLogger(__name__)


class Assigner:
    """Who gets what, of what there is.

    :param node: what the compute node is by now
    """

    def __init__(self, machine: machine.Machine, upkeep: upkeep.Upkeep,
                 record: record.Record, claims: claims.Claims,
                 ledger: ledger.Ledger,
                 node: collections.abc.Callable[[], providers.Node]) -> None:
        self._machine = machine
        self._upkeep = upkeep
        self._record = record
        self._claims = claims
        self._ledger = ledger
        self._node = node

    def assign(self, instance, allocations, lately=False,
               is_here=False, is_resized=False) -> None:
        """Claim the devices that a server was promised.

        Those that it has, if they are what it was promised, whatever the
        configuration says by now; otherwise a choice.

        :param allocations: in Placement's form; None if it does not answer
        :param lately: whether the Host of a moment ago does
        :param is_here: whether the server is on this host already
        :param is_resized: whether it can have what another flavor asked for
        :raises nova.exception.ComputeResourcesUnavailable: with which Nova
            tries the next host
        """
        if not flavor.classes(instance.flavor.extra_specs):
            return
        promised = ledger.promised(allocations)
        host, unreadable = self._machine.look(lately)
        node = self._node()
        held = self._claims.held(instance)
        # What it has says that it does, too; but not of another flavor.
        if not (promise.concerns_us(instance, promised, host, node)
                or held and not (promised and is_resized)):
            # Said once for the whole operation.
            self._claims.claim(instance, ())
            return
        # A rebuild comes with a claim, and Nova would take this one's fault
        # for a host that was never left: ACTIVE, and without allocations.
        is_rebuilt = self._claims.of(instance) is not None
        fault = (exception.InstanceDeployFailure if is_rebuilt
                 else exception.ComputeResourcesUnavailable)
        try:
            if not promised and allocations is not None and (
                    is_rebuilt or is_here):
                promised = self._promise_again(instance, held, host, node)
            if held and promise.keeps(held, instance, promised, host, node,
                                      is_resized):
                self._claims.claim(instance, held)
                return
            self._claims.release(instance.uuid)
            if not promised:
                raise errors.AssignmentError(
                    f'server {instance.uuid}', 'Placement does not say what '
                    'it was promised', 'try again once Placement answers')
            if unreadable:
                raise unreadable
            chosen = self.choose(instance, promised, host)
        except errors.AccelError as error:
            raise fault(reason=faults.told('Server gets no devices', error,
                                           instance)) from None
        if chosen:
            LOG.info('Server gets %s', ', '.join(
                str(device.address) for device in chosen),
                instance=instance)

    def assign_as_placement_says(self, instance, is_resized=False) -> None:
        """The same, where Nova does not tell what was promised."""
        if flavor.classes(instance.flavor.extra_specs):
            self.assign(instance, self._ledger.of_consumer(instance.uuid),
                        is_here=True, is_resized=is_resized)

    def _promise_again(self, instance, held, host, node,
                       ) -> assignment.Promised:
        """What a server of this host is promised, where Nova says nothing.

        :param held: what it has
        :raises errors.AssignmentError: if it has nothing, and Placement does
            not agree that it gets something
        """
        allocations = self._ledger.of_consumer(instance.uuid)
        if allocations is None or allocations:
            return ledger.promised(allocations)
        promised = promise.again(held, instance, ledger.asked(instance), host,
                                 node)
        if not promised:
            return {}
        try:
            self._ledger.promise(instance, promised)
        except errors.AssignmentError as error:
            if not held:
                raise
            # It has what it has; the comparison with the promises says so.
            LOG.warning('%s', error, instance=instance)
            return {}
        return promised

    def choose(self, instance, promised, host,
               comes_live=False) -> hostdev.Hostdevs:
        """Choose and claim devices of which nobody's traces are left.

        :param comes_live: as in :func:`promise.wanted`
        :raises errors.AccelError: if there are not enough
        """
        while True:
            chosen = self._claims.choose(
                instance, promised, host, self._node(),
                self._ledger.consumers, comes_live)
            if self._upkeep.hand_over(chosen.hostdevs,
                                      self._record.holders()):
                self._book(instance, chosen)
                for item in chosen.once:
                    # Before its guest is there: whatever happens next, it is
                    # not forgotten.
                    self._ledger.reserve(item)
                return chosen.hostdevs
            # What failed is not offered any more; its like may do.
            self._claims.release(instance.uuid)
            host = self._machine.read()

    def _book(self, instance, chosen: claims.Chosen) -> None:
        """Tell Placement which devices were chosen here.

        The scheduler's filter does that with its choice, but Nova skips
        filters where somebody forces a server onto a host, and alternates of
        the host that it chose are promised no device in particular.

        :raises errors.AssignmentError: if Placement does not agree
        """
        if chosen.unbooked:
            self._ledger.move(instance.uuid, chosen.unbooked, chosen.unused)
            LOG.info('Devices were chosen here, %s; Placement knows now',
                     'in place of those that it was promised'
                     if chosen.unused else 'for the scheduler had not',
                     instance=instance)

# SPDX-License-Identifier: Apache-2.0
"""Devices taken back from servers that are gone, and reset for the next."""

import collections.abc

import nova.conf
from oslo_log import log as logging

from nova_accel.compute import background
from nova_accel.compute import log_once
from nova_accel.compute.devices import prepare
from nova_accel.compute.state import node_state
from nova_accel.compute.state import nova_moves
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core.device_spec import reset_methods
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class Reclamation:
    """Takes back what nobody holds, and resets what is free."""

    def __init__(self, state: node_state.NodeState,
                 prepared: prepare.Preparation) -> None:
        self._state = state
        self._prepared = prepared
        self._local_host = state.local_host
        self._claims = state.claims
        self._resets = state.local_host.resets
        self._resetting = background.Runner()
        self._releasing = background.Runner()
        self._being_released: tuple[str, ...] = ()
        self._unreleased: list[log_once.Line] = []
        self._leftovers = log_once.LogOnce(LOG)

    def clear_up(self, node: inventory.Node) -> model.Host:
        """Let go of what an operation left behind that did not end.

        :returns: what there is then
        """
        self._end_claims(node)
        host = self._local_host.read()
        if self.sweep(inventory.NodeInventory(host, node)):
            host = self._local_host.read()
        if self.reset_free(host):
            host = self._local_host.read()
        return host

    def _end_claims(self, node) -> None:
        """End the claims of servers that are not coming."""
        ours = set(node.ours)
        for uuid, claim in self._claims.lingering().items():
            allocated = self._state.placement_client.allocations_of_consumer(
                uuid)
            if (allocated is not None and ours.isdisjoint(allocated)
                    and not nova_moves.is_rebuilding(uuid)
                    and self._claims.release_lingering(uuid, claim)):
                LOG.info('Server %s is not coming: its claim ends', uuid)

    def sweep(self, here: inventory.NodeInventory) -> bool:
        """Take back what was made ready and nobody has any more.

        The kernel does not remove an mdev as long as a program has it open,
        and waits for that. So this, too, goes on beside where it takes long.

        :param here: what the compute node offers now
        :returns: whether there was something, so that the host is another
        """
        given = tuple(self._prepared.given)
        preparers = self._local_host.preparers()
        ready = {name: self._prepared.ready(preparer, here.host)
                 for name, preparer in preparers.items()}
        gone = set(given).difference(*ready.values())
        # Asked after that, so that nothing new is taken for left over.
        somebodys = set(self._claims.addresses_in_use()
                        if gone or any(ready.values()) else ())
        self._prepared.given.difference_update(gone - somebodys)
        left = [(name, preparers[name], address) for name in ready
                for address in sorted(ready[name] - somebodys)]
        nobodys = [address for *_preparer, address in left]
        if left:
            stay = self._awaited(nobodys, here)
            left = [entry for entry in left if entry[-1] not in stay]
        if not self._releasing.is_busy():
            self._unreleased = []
        found = bool(left) and self._releasing.run(
            lambda: self._sweep_aside(left, nobodys, here.node))
        self._leftovers.log([
            (logging.WARNING, f'{thing} is nobody\'s and is not taken back '
             'yet: the kernel waits, for a program that has it open as a '
             'rule; what else is left over waits as well')
            for thing in self._being_released]
            if self._releasing.is_busy() else self._unreleased)
        return found

    def _awaited(self, nobodys, here) -> set[model.Address]:
        """What somebody may come back for, of what nobody holds."""
        return nova_moves.kept(nobodys, here, self._state)

    def _sweep_aside(self, left, nobodys, node) -> None:
        lines: list[log_once.Line] = []
        for name, preparer, address in left:
            with self._claims.set_aside((address,)) as is_free:
                # The one before it can have taken hours.
                here = inventory.NodeInventory(
                    self._local_host.read_ignoring_reset_failures(), node)
                if (is_free
                        and address in self._prepared.ready(preparer,
                                                            here.host)
                        and address not in self._awaited(nobodys, here)):
                    self._being_released = (f'{name} {address}',)
                    lines.extend(_release(name, preparer, address))
                    self._being_released = ()
                    nobodys.remove(address)
                    self._local_host.invalidate()
        self._unreleased = lines

    def sanitize(self, hostdevs: collections.abc.Collection[hostdev.Hostdev],
                 held: collections.abc.Container[model.Address]) -> bool:
        """Leave nobody's traces in what a server is to have.

        What is ready is so for somebody who had it before, and is taken back;
        and it is reset, unless it has been since.

        :param hostdevs: which nobody else gets meanwhile
        :param held: what domains hold; a server can have had it before
        :returns: whether it can have them; those that cannot be reset are
            not offered any more
        :raises errors.AccelError: if something cannot be taken back
        """
        addresses = {device.address for device in hostdevs}
        # Else also what is refused for its reset, which may work by now.
        host = (self._prepared.cached_for(hostdevs)
                or self._local_host.read_ignoring_reset_failures())
        if self._take_back(host, {address for address in addresses
                                  if address not in held}):
            host = self._local_host.read_ignoring_reset_failures()
        return all([
            self._resets.reset(self._local_host.tree, host, unit)
            for unit in reset_methods.units(host)
            if addresses.intersection(unit)
            and not any(address in held for address in unit)])

    def _take_back(self, host, addresses) -> bool:
        """Whether any of these was ready."""
        ready = [(preparer, address)
                 for preparer in self._local_host.preparers().values()
                 for address in sorted(
                     addresses & set(preparer.prepared(host)))]
        for preparer, address in ready:
            try:
                preparer.release(address)
            except OSError as error:
                raise errors.AssignmentError(
                    f'device {address}', 'it cannot be taken back from '
                    f'who had it: {error}') from None
            finally:
                self._local_host.invalidate()
        return bool(ready)

    def reset_free(self, host: model.Host) -> bool:
        """Reset what nobody has any more, so that it is ready for the next.

        Where that takes long it goes on beside, and what comes of it is seen
        the next time.

        :param host: as it is
        :returns: whether there was something, so that the host is another
        """
        if self._resets.refused():
            # It may work by now.
            host = self._local_host.read_ignoring_reset_failures()
        self._resets.forget(host)
        somebodys = self._claims.addresses_in_use()
        self._resets.used(somebodys)
        due = self._resets.due(host, somebodys, _patience())
        return bool(due) and self._resetting.run(
            lambda: self._reset_aside(due))

    def _reset_aside(self, units) -> None:
        for unit in units:
            with self._claims.set_aside(unit) as is_free:
                if not is_free:
                    continue
                # Where some do not answer the last has its turn minutes after
                # the first, and somebody can have bound a driver meanwhile.
                host = self._local_host.read_ignoring_reset_failures()
                if unit in self._resets.due(host, (), _patience()):
                    self._resets.reset(self._local_host.tree, host, unit)


def _patience() -> float:
    """Seconds until a reset that failed is tried again."""
    return CONF.nova_accel.check_interval


def _release(name: str, preparer: kind.Preparer, address: model.Address,
             ) -> collections.abc.Iterator[tuple[int, str]]:
    try:
        preparer.release(address)
    except Exception as error:
        # Of one device, or of one kind: the others go on.
        yield logging.WARNING, (f'{name} {address} is nobody\'s and cannot be '
                                f'taken back: {error}')
    else:
        LOG.info('Took back %s %s, which nobody has', name, address)

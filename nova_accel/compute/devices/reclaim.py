# SPDX-License-Identifier: Apache-2.0
"""Releases the devices that no server holds, and resets them for the next."""

import collections.abc

import nova.conf
from oslo_log import log as logging

from nova_accel.compute import log_once
from nova_accel.compute.devices import cleaning
from nova_accel.compute.devices import prepare
from nova_accel.compute.state import node_state
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core.assignment import holders
from nova_accel.core.device_spec import reset_methods
from nova_accel.core.placement import inventory
from nova_accel.host import background

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class Reclamation:
    """Releases and resets the devices that no server holds."""

    def __init__(self, state: node_state.NodeState,
                 preparation: prepare.Preparation) -> None:
        self._state = state
        self._cleaning = cleaning.Cleaning(state)
        self._preparation = preparation
        self._local_host = state.local_host
        self._claims = state.claims
        self._holders = state.holders
        self._resets = state.local_host.resets
        self._resetting = background.Runner()
        self._releasing = background.Runner()
        self._being_released: tuple[str, ...] = ()
        self._unreleased: list[log_once.Line] = []
        self._leftovers = log_once.LogOnce(LOG)
        self._unknown = log_once.LogOnce(LOG)

    def clear_up(self, node: inventory.Node) -> model.Host:
        """Clean up after operations that were interrupted.

        Nothing is released or reset while it is not known what servers
        without a domain hold.

        :returns: the Host afterwards
        """
        known = self._holders.recent(node.name)
        self._cleaning.take_requests(inventory.NodeInventory(
            self._local_host.read_cached(), node))
        host = self._local_host.read()
        self._forget_programmed(inventory.NodeInventory(host, node))
        self._unknown.log([] if known.is_known else [
            (logging.WARNING, 'No device is released or reset: Nova or '
             'Placement does not tell what servers without a domain hold')])
        if not known.is_known:
            return host
        if self.release_unused(inventory.NodeInventory(host, node)):
            host = self._local_host.read()
        if self.reset_free(inventory.NodeInventory(host, node), known):
            host = self._local_host.read()
        if self._cleaning.start(node, known):
            host = self._local_host.read()
        return host

    def _forget_programmed(self, here: inventory.NodeInventory) -> None:
        """Have FPGAs programmed again that domains have which are not Nova's.
        """
        programmers = self._local_host.programmers()
        for item in here.offered:
            if item.region.kind in programmers:
                held = [device for _uuid, device
                        in self._claims.holders_of(item.functions)]
                if len(hostdev.ours(held)) < len(held):
                    programmers[item.region.kind].forget(item)

    def end_claims(self, node: inventory.Node) -> None:
        """End the claims that Placement does not justify any more.

        The move of a server to this host was given up, for example, or the
        server was deleted while nova-compute was down.

        :param node: the compute node
        """
        lingering = self._claims.lingering()
        known = self._holders.read(node.name)
        if not known.is_known:
            return
        for consumer, claim in lingering.items():
            if claim.kept and claim.server not in known.busy and (
                    self._claims.is_outdated(consumer, claim)):
                self._claims.release_lingering(consumer, claim)
            elif not known.justifies(consumer, claim) and (
                    self._claims.release_lingering(consumer, claim)):
                LOG.info('Ended the claim of server %s: it has no '
                         'allocations on this host', claim.server)

    def release_unused(self, here: inventory.NodeInventory) -> bool:
        """Release the prepared devices that no server holds any more.

        The kernel removes an mdev only when no program has it open, and waits
        for that. So release in a thread.

        :param here: what the compute node offers now
        :returns: whether a release was started, so that the Host changes
        """
        unused = self._unused(here)
        addresses = [address for *_preparer, address in unused]
        if unused:
            kept = self._kept(addresses, here)
            unused = [(name, preparer, address)
                      for name, preparer, address in unused
                      if address not in kept]
        if not self._releasing.is_busy():
            self._unreleased = []
        is_started = bool(unused) and self._releasing.run(
            lambda: self._release_all(unused, addresses, here.node))
        self._leftovers.log([
            (logging.WARNING, f'{thing} is not released yet: no server holds '
             'it, but the kernel waits, usually for a program that has it '
             'open; other releases wait as well')
            for thing in self._being_released]
            if self._releasing.is_busy() else self._unreleased)
        return is_started

    def _kept(self, addresses, here) -> set[model.Address]:
        """Return the unused devices that servers without a domain need."""
        return self._holders.read(here.node.name).kept(addresses,
                                                       here.offered)

    def _unused(self, here) -> list[tuple[str, kind.Preparer, model.Address]]:
        """Return the prepared devices that no server holds or claims."""
        handed_out = tuple(self._preparation.handed_out)
        preparers = self._local_host.preparers()
        ready = {name: self._preparation.ready(preparer, here.host)
                 for name, preparer in preparers.items()}
        gone = set(handed_out).difference(*ready.values())
        # Read last, so that a device prepared meanwhile counts as used.
        in_use = set(self._claims.addresses_in_use()
                     if gone or any(ready.values()) else ())
        self._preparation.handed_out.difference_update(gone - in_use)
        return [(name, preparers[name], address) for name in ready
                for address in sorted(ready[name] - in_use)]

    def _release_all(self, unused, addresses, node) -> None:
        """Release devices, after checking each one again.

        :param unused: name of the kind, its preparer, and the address, of each
        :param addresses: all that no server holds, even if kept for a revert
        """
        lines: list[log_once.Line] = []
        for name, preparer, address in unused:
            with self._claims.set_aside((address,)) as is_free:
                # The release of the previous device may have taken hours.
                here = inventory.NodeInventory(
                    self._local_host.read_ignoring_reset_failures(), node)
                if (is_free
                        and address in self._preparation.ready(preparer,
                                                               here.host)
                        and address not in self._kept(addresses, here)):
                    self._being_released = (f'{name} {address}',)
                    lines.extend(_release(name, preparer, address))
                    self._being_released = ()
                    addresses.remove(address)
                    self._local_host.invalidate()
        self._unreleased = lines

    def sanitize(self, instance,
                 hostdevs: collections.abc.Collection[hostdev.Hostdev],
                 here: inventory.NodeInventory,
                 is_owner: bool = False) -> bool:
        """Remove a previous owner's traces from devices for a server.

        Release each device that is still prepared for a previous owner, and
        reset each one that was not reset since. Those that domains hold stay
        as they are, since the server itself may have had them before.

        :param hostdevs: claimed by the server
        :param here: what the compute node offers
        :param is_owner: whether the server has had its allocated devices
        :returns: whether the server can have them; a device that is dirty, or
            whose reset fails, is no longer offered
        :raises errors.AccelError: if a device cannot be released
        """
        held = self._state.domains.holders()
        if self._are_dirty(hostdevs, here, is_owner, {
                *held, *self._claims.had_before(instance)}):
            self._local_host.invalidate()
            return False
        addresses = {device.address for device in hostdevs}
        # Include devices whose reset failed: it may work now.
        host = (self._preparation.cached_for(hostdevs)
                or self._local_host.read_ignoring_reset_failures())
        if self._release_prepared(host, {address for address in addresses
                                         if address not in held}):
            host = self._local_host.read_ignoring_reset_failures()
        return all([
            self._resets.reset(self._local_host.tree, host, unit)
            for unit in reset_methods.units(host)
            if addresses.intersection(unit)
            and not any(address in held for address in unit)])

    def _are_dirty(self, hostdevs, here, is_owner, own) -> bool:
        """Whether a server cannot have devices before they are cleaned.

        Another server may have left them just now, after the Host was read.
        The only unit of a Region that is allocated to a server was left by
        no other.

        :param own: addresses that the server has had
        :raises errors.AssignmentError: if Placement has not told yet
        """
        items = {device.address: item for device in hostdevs
                 if (item := here.find_by_alias(device.alias, device.address))
                 and device.address not in own
                 and not (is_owner and item.region.is_single)}
        dirt = self._local_host.dirt
        if not dirt.is_known and any(item.region.tracks_dirt
                                     for item in items.values()):
            raise errors.AssignmentError(
                'Placement', 'has not told yet which devices have to be '
                'cleaned', 'try again once it answers')
        return not dirt.among(here.host.functions).isdisjoint(items)

    def _release_prepared(self, host, addresses) -> bool:
        """Release those that are prepared, and return whether any was."""
        ready = [(preparer, address)
                 for preparer in self._local_host.preparers().values()
                 for address in sorted(
                     addresses & set(preparer.prepared(host)))]
        for preparer, address in ready:
            try:
                preparer.release(address)
            except OSError as error:
                raise errors.AssignmentError(
                    f'device {address}', 'cannot be released after its '
                    f'previous use: {error}') from None
            finally:
                self._local_host.invalidate()
        return bool(ready)

    def reset_free(self, here: inventory.NodeInventory,
                   known: holders.Holders) -> bool:
        """Reset the units that no server holds, for their next owner.

        Resets run in a thread. If they take long, the next run of the periodic
        tasks sees the outcome.

        :param here: as read last
        :param known: who holds devices
        :returns: whether resets were started, so that the Host changes
        """
        host = here.host
        if self._resets.refused():
            # Include units whose reset failed: it may work now.
            host = self._local_host.read_ignoring_reset_failures()
        self._resets.forget(host)
        in_use = self._claims.addresses_in_use()
        self._resets.used(in_use)
        due = self._resets.due(host, in_use | known.lacked(here.offered),
                               _retry_interval())
        return bool(due) and self._resetting.run(
            lambda: self._reset_all(due))

    def _reset_all(self, units) -> None:
        """Reset units, after checking each one again."""
        for unit in units:
            with self._claims.set_aside(unit) as is_free:
                if not is_free:
                    continue
                # If devices do not answer, minutes pass before the last reset,
                # and another program can have bound a driver meanwhile.
                host = self._local_host.read_ignoring_reset_failures()
                if unit in self._resets.due(host, (), _retry_interval()):
                    self._resets.reset(self._local_host.tree, host, unit)


def _retry_interval() -> float:
    """Return the seconds until a reset that failed is tried again."""
    return CONF.nova_accel.check_interval


def _release(name: str, preparer: kind.Preparer, address: model.Address,
             ) -> collections.abc.Iterator[tuple[int, str]]:
    try:
        preparer.release(address)
    except Exception as error:
        # Continue with the other devices and kinds.
        yield logging.WARNING, (f'Could not release {name} {address}, which '
                                f'no server holds: {error}')
    else:
        LOG.info('Released %s %s: no server holds it', name, address)

# SPDX-License-Identifier: Apache-2.0
"""Claims: the devices of servers whose libvirt domain is not defined.

A claim exists from the choice of devices until libvirt has defined the domain
that holds them. It keeps two servers that start at the same time apart. A
server that keeps its devices without a domain keeps its claim, even if
nova-compute ends: while Nova defines its domain anew, or until its resize on
this host is confirmed or reverted.
"""

import collections
import collections.abc
import contextlib
import dataclasses
import threading

from oslo_log import log as logging

from nova_accel.compute import instance_request
from nova_accel.compute.state import kept_claims
from nova_accel.compute.state import libvirt_domains
from nova_accel.core import claim as claims
from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.assignment import allocations
from nova_accel.core.assignment import assign
from nova_accel.core.assignment import assigned_units
from nova_accel.core.assignment import ownership
from nova_accel.core.assignment import verify
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)

# Seconds. The kernel waits 60 for a function that does not return from its
# reset (drivers/pci/pci.c: PCIE_RESET_READY_POLL_MS).
_PATIENCE = 120


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Devices for a server, and how they differ from its allocations.

    :param unallocated: what the devices have beyond the allocations
    :param surplus: what the allocations have beyond the devices
    """

    hostdevs: hostdev.Hostdevs
    unallocated: allocations.Allocations
    surplus: allocations.Allocations


class DeviceClaims:
    """The claims of one nova-compute.

    :param domains: libvirt's domains, and the devices that they hold
    :param files: the claims that outlive nova-compute
    """

    def __init__(self, domains: libvirt_domains.LibvirtDomains,
                 files: kept_claims.KeptClaims) -> None:
        self._domains = domains
        self._files = files
        #: By consumer in Placement: a server, or the migration that has the
        #: old allocations of a server that was resized on this host.
        self._claims: dict[str, claims.Claim] = {}
        self._operations: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        #: Called with a server when its operation has ended.
        self.on_end: collections.abc.Callable = lambda instance: None
        #: Addresses being reset or released, and the signal that they changed.
        self._aside: set[model.Address] = set()
        self._back = threading.Condition(self._lock)
        #: Addresses being cleaned, which can take hours: nobody waits.
        self._cleaned: set[model.Address] = set()

    def load(self) -> None:
        """Read the claims that were kept when nova-compute ended.

        :raises errors.AssignmentError: if any domain cannot be read; the
            claims are there nevertheless
        """
        found = self._files.load()
        with self._lock:
            for consumer, claim in found.items():
                self._claims.setdefault(consumer, claim)
        for consumer, claim in found.items():
            if self.is_outdated(consumer, claim):
                self.release_lingering(consumer, claim)

    def is_outdated(self, consumer: str, claim: claims.Claim) -> bool:
        """Whether a kept claim has no meaning any more.

        The domain of the server has the devices; or others have them, since
        the file could not be removed when the claim ended.

        :raises errors.AssignmentError: if any domain cannot be read
        """
        with self._lock:
            holders = {uuid for uuid, _device in self._holders_of(
                claim.addresses) if uuid != claim.server}
            defined = {device.address for device
                       in self._domains.read().get(consumer, ())}
        if holders:
            LOG.warning('Ending the claim of server %s: its devices are held '
                        'by %s', claim.server, ', '.join(sorted(holders)))
        return bool(holders) or claim.addresses <= defined

    def choose(self, instance, allocated: allocations.Allocations,
               inventory: inventory.NodeInventory,
               units_by_consumer: collections.abc.Callable[
                   [str, str], collections.abc.Mapping[str, int]],
               is_live_migration=False, is_owner=False,
               keep=False) -> Chosen:
        """Choose devices that satisfy the allocations, and claim them.

        Choose the devices that the allocations name, or equal ones if these
        cannot be used:

        - Another server has one. Placement can allocate the same unit to two
          concurrent requests: it checks the capacity again in a transaction
          that does not see the other one (placement.objects.allocation.
          replace_all in the transaction of the handler, with MariaDB's
          REPEATABLE READ).
        - They break a rule. Only this host knows the guest's NUMA nodes and
          the functions of its ports, which can differ from those that the
          scheduler assumed.
        - One is refused or gone: its reset failed, for example.

        :param instance: nova.objects.Instance
        :param allocated: the server's allocations
        :param units_by_consumer: returns the allocated units of a provider of
            a class; called if devices are chosen here
        :param is_live_migration: as in :func:`instance_request.wanted`
        :param is_owner: whether the server has had its allocated devices on
            this host already; then withheld ones are its own
        :param keep: as in :meth:`claim`
        :raises errors.AccelError: if there are not enough devices
        """
        verify.check_on_this_host(instance.uuid, instance_request.of(instance),
                                  allocated, inventory)
        wanted = instance_request.wanted(instance, allocated, inventory,
                                         is_live_migration)
        wanted = dataclasses.replace(
            wanted, own=ownership.providers(allocated, is_owner))
        offered = inventory.offered
        unfit = None
        try:
            try:
                verify.check(allocated, inventory, wanted.own)
                if assign.names_devices(allocated, wanted.counts, offered):
                    return self._claim(instance, allocated, wanted, offered,
                                       keep)
            except errors.AssignmentError as error:
                unfit = error
            elsewhere = {
                item.uuid: sum(
                    amount for consumer, amount in units_by_consumer(
                        item.uuid, item.region.resource_class).items()
                    if consumer != instance.uuid)
                for item in offered
                if wanted.counts.get(item.region.resource_class)}
            return self._claim(
                instance, allocated, dataclasses.replace(
                    wanted, elsewhere=elsewhere), offered, keep,
                instead_of=inventory.providers)
        except errors.AssignmentError as error:
            raise unfit or verify.explain(error, offered,
                                          wanted.counts) from None

    def _claim(self, instance, allocated, wanted, offered, keep,
               instead_of=None) -> Chosen:
        """Claim the allocated devices.

        :param instead_of: providers whose allocated devices may be replaced
            by others of the same class; None for none
        """
        kept = (allocated if instead_of is None
                else allocations.without_devices(allocated))
        with self._lock:
            grants = self._assign(instance.uuid, kept, wanted, offered)
            if not grants:
                raise errors.AssignmentError(
                    f'server {instance.uuid}', 'none of its allocated devices '
                    'is present, or no entry names them any more')
            chosen = assigned_units.to_hostdevs(grants)
            self._set(instance.uuid,
                      claims.Claim(instance.uuid, chosen, keep, is_new=True))
        return Chosen(chosen, assigned_units.unallocated(grants, allocated),
                      assigned_units.surplus(grants, allocated,
                                             instead_of or ()))

    def _assign(self, uuid, allocated, wanted, offered):
        while True:
            # Read under the lock: a claim ends when its domain is defined.
            held = [*self._domains.read().items(), *self._by_server()]
            holders = dict.fromkeys(self._aside, 'nova-compute for a reset')
            holders.update(dict.fromkeys(self._cleaned, 'its cleaner'))
            holders.update((device.address, holder) for holder, devices
                           in held for device in devices)
            try:
                grants = assign.assign(allocated, wanted, offered, holders,
                                       uuid, _count_mdevs(held, uuid,
                                                          offered))
            except errors.AssignmentError:
                # A function that is set aside becomes free again: wait. An
                # mdev that is set aside never becomes this server's: fail.
                if not any(isinstance(address, model.PciAddress)
                           for address in self._aside) or (
                               not self._back.wait(_PATIENCE)):
                    raise
            else:
                # A server that gets its mdev back gets the same uuid, which
                # may be set aside.
                if self._aside.isdisjoint(
                        address for grant in grants for address in grant.unit):
                    return grants
                self._wait_for_back()

    def _wait_for_back(self) -> None:
        """Wait until some addresses are no longer set aside.

        The caller holds the lock.

        :raises errors.AssignmentError: after :data:`_PATIENCE` seconds
        """
        if not self._back.wait(_PATIENCE):
            raise errors.AssignmentError(
                f'device {min(map(str, self._aside))}',
                'is being reset or released, which has not finished within '
                f'{_PATIENCE} seconds', 'check the log of the kernel')

    def held(self, instance) -> hostdev.Hostdevs:
        """Return the devices that a server claims, or its domain holds."""
        claimed = self.get(instance)
        if claimed is not None:
            return claimed
        return hostdev.ours(self._domains.held_by(instance.uuid))

    def had(self, instance) -> collections.abc.Iterator[hostdev.Hostdevs]:
        """Yield what a server has, and what it had before its resize.

        What another server has by now is left out.
        """
        with self._lock:
            before = [claim.hostdevs for consumer, claim
                      in self._claims.items()
                      if claim.server == instance.uuid != consumer]
        for hostdevs in self.held(instance), *before:
            if all(uuid == instance.uuid for uuid, _device in self.holders_of(
                    {device.address for device in hostdevs})):
                yield hostdevs

    def had_before(self, instance) -> set[model.Address]:
        """Return what a server had before its resize on this host."""
        with self._lock:
            return set().union(*(
                claim.addresses for consumer, claim in self._claims.items()
                if claim.server == instance.uuid != consumer))

    def without_domain(self) -> dict[str, claims.Claim]:
        """Return the claims that servers keep without a domain, by consumer.

        Other claims are for devices that a server does not have yet.
        """
        with self._lock:
            return {consumer: claim for consumer, claim
                    in self._claims.items() if claim.kept}

    def addresses_in_use(self) -> set[model.Address]:
        """Return the addresses that a domain, a claim or a cleaner has."""
        # Both under the lock: a claim ends when its domain is defined, and
        # starts before its domain is undefined.
        with self._lock:
            return self._addresses().union(self._domains.holders(),
                                           self._cleaned)

    @contextlib.contextmanager
    def set_aside(self, unit: model.Unit, is_short: bool = True,
                  ) -> collections.abc.Iterator[bool]:
        """Keep servers from claiming a unit inside the context.

        :param is_short: whether servers that need the unit wait for its end

        :returns: a context whose value is true if the unit is free, and no
            other context has it
        """
        with self._lock:
            # The unit is about to be changed. An administrator may have added
            # it to a domain since the domains were read.
            self._domains.refresh()
            held = self._addresses().union(self._domains.holders(),
                                           self._cleaned)
            aside = self._aside if is_short else self._cleaned
            free = held.union(self._aside).isdisjoint(unit)
            if free:
                aside.update(unit)
        try:
            yield free
        finally:
            with self._lock:
                if free:
                    aside.difference_update(unit)
                self._back.notify_all()

    def _addresses(self) -> set[model.Address]:
        """Return the claimed addresses. The caller holds the lock."""
        return set().union(*(claim.addresses
                             for claim in self._claims.values()))

    def _by_server(self) -> list[tuple[str, hostdev.Hostdevs]]:
        """Return servers and what they claim. The caller holds the lock."""
        return [(claim.server, claim.hostdevs)
                for claim in self._claims.values()]

    def holders_of(self, addresses: collections.abc.Collection[model.Address],
                ) -> list[tuple[str, hostdev.Hostdev]]:
        """Return who holds or claims any of these addresses, and as what."""
        # Both under the lock, for the reason in addresses_in_use.
        with self._lock:
            return self._holders_of(addresses)

    def by_server(self) -> list[tuple[str, hostdev.Hostdevs]]:
        """Return what servers claim, and what domains hold.

        A server can be there more than once.
        """
        # Both under the lock, for the reason in addresses_in_use.
        with self._lock:
            return self._held()

    def _held(self) -> list[tuple[str, hostdev.Hostdevs]]:
        """As :meth:`by_server`. The caller holds the lock."""
        return [*self._by_server(), *self._domains.read().items()]

    def _holders_of(self, addresses) -> list[tuple[str, hostdev.Hostdev]]:
        """As :meth:`holders_of`. The caller holds the lock."""
        return list(dict.fromkeys(
            (uuid, device) for uuid, devices in self._held()
            for device in devices if device.address in addresses))

    def claim(self, instance, hostdevs: hostdev.Hostdevs,
              keep: bool = False) -> None:
        """Claim devices for a server.

        :param keep: whether the server keeps them until its domain has them:
            they were its own before, or it was moved to this host
        """
        with self._lock:
            before = self._claims.get(instance.uuid)
            # It claimed them before, and got no domain with them.
            is_new = bool(before and before.is_new
                          and before.hostdevs == hostdevs)
            self._set(instance.uuid, claims.Claim(instance.uuid, hostdevs,
                                                  keep, is_new))

    def keep_for(self, consumer: str, instance,
                 hostdevs: hostdev.Hostdevs) -> None:
        """Keep what a server has for a migration, which may be reverted.

        :param consumer: uuid of the migration
        """
        if hostdevs:
            with self._lock:
                self._set(consumer, claims.Claim(instance.uuid, hostdevs,
                                                 kept=True))

    def ensure_claimed(self, instance, hostdevs: hostdev.Hostdevs,
                       keep: bool = False) -> None:
        """Claim devices that were chosen before, unless the claim exists.

        :param keep: as in :meth:`claim`
        :raises errors.AssignmentError: if another server has one of them
        """
        addresses = {device.address for device in hostdevs}
        with self._lock:
            if instance.uuid in self._claims:
                return
            while not self._aside.isdisjoint(addresses):
                self._wait_for_back()
            held = dict.fromkeys(self._cleaned, 'its cleaner') | {
                device.address: uuid for uuid, devices
                in (*self._domains.read().items(), *self._by_server())
                for device in devices}
            for device in hostdevs:
                if held.get(device.address, instance.uuid) != instance.uuid:
                    raise errors.AssignmentError(
                        f'device {device.address}',
                        f'is held by {held[device.address]}')
            self._set(instance.uuid,
                      claims.Claim(instance.uuid, hostdevs, keep))

    def keep(self, instance) -> None:
        """Keep the claim of a server even if nova-compute ends."""
        with self._lock:
            claim = self._claims.get(instance.uuid)
            if claim:
                self._set(instance.uuid, dataclasses.replace(claim, kept=True))

    def release(self, consumer: str) -> None:
        """End the claim of a server or a migration, if there is one."""
        with self._lock:
            self._end(consumer)

    def release_lingering(self, consumer: str, claim: claims.Claim) -> bool:
        """End a claim, unless an operation of the server has started since.

        :param claim: as :meth:`lingering` returned it; a newer claim stays
        :returns: whether the claim was ended
        """
        with self._lock:
            is_lingering = (claim.server not in self._operations
                            and self._claims.get(consumer) is claim)
            if is_lingering:
                self._end(consumer)
            return is_lingering

    def _set(self, consumer: str, claim: claims.Claim) -> None:
        """Begin or change a claim. The caller holds the lock."""
        before = self._claims.get(consumer)
        if claim.kept and claim != before:
            self._files.save(consumer, claim)
        elif not claim.kept:
            self._files.remove(consumer)
        self._claims[consumer] = claim

    def _end(self, consumer: str) -> None:
        """End a claim: from now on the domain shows what the server holds.

        The caller holds the lock.
        """
        self._domains.invalidate(consumer)
        self._claims.pop(consumer, None)
        # There can be a file that was not read at the start.
        self._files.remove(consumer)

    def _end_if_defined(self, uuid: str) -> None:
        """End a server's claim, unless it keeps devices without a domain.

        The caller holds the lock.
        """
        claim = self._claims.get(uuid)
        if claim and claim.kept:
            try:
                defined = {device.address
                           for device in self._domains.held_by(uuid)}
            except Exception as error:
                LOG.warning('Server %s keeps its claim of devices: the '
                            'definition of its domain cannot be read: %s',
                            uuid, error)
                return
            if not claim.addresses <= defined:
                return
        self._end(uuid)

    def lingering(self) -> dict[str, claims.Claim]:
        """Return the claims that no operation will end, by consumer."""
        with self._lock:
            return {consumer: claim
                    for consumer, claim in self._claims.items()
                    if claim.server not in self._operations}

    def is_busy(self, uuid: str) -> bool:
        """Whether an operation of a server is in progress."""
        with self._lock:
            return uuid in self._operations

    def busy(self) -> frozenset[str]:
        """Return the servers of which an operation is in progress."""
        with self._lock:
            return frozenset(self._operations)

    def is_new(self, instance) -> bool:
        """Whether a server claims devices that it did not have before."""
        claim = self._claims.get(instance.uuid)
        return bool(claim and claim.is_new)

    def is_claimed(self, uuid: str) -> bool:
        """Whether a server has a claim, or an operation in progress."""
        with self._lock:
            return uuid in self._operations or uuid in self._claims

    def get(self, instance) -> hostdev.Hostdevs | None:
        """Return the claim of a server, or None if it has none."""
        claim = self._claims.get(instance.uuid)
        return claim.hostdevs if claim else None

    @contextlib.contextmanager
    def operation(self, instance, is_removal: bool = False,
                  ) -> collections.abc.Iterator[None]:
        """End the claim of a server when its operation ends or fails.

        Operations can be nested; the end of the outermost one ends the claim.
        A claim that is kept ends only if the domain has the devices.

        :param is_removal: whether the operation removes the server from this
            host, so that it keeps nothing
        """
        with self._lock:
            self._operations[instance.uuid] += 1
        try:
            yield
        except BaseException:
            # The server may still be here.
            is_removal = False
            raise
        finally:
            with self._lock:
                self._operations[instance.uuid] -= 1
                is_over = not self._operations[instance.uuid]
                if is_over:
                    del self._operations[instance.uuid]
                    (self._end if is_removal
                     else self._end_if_defined)(instance.uuid)
            if is_over:
                self.on_end(instance)


def _count_mdevs(held, except_for: str, offered) -> dict[str, int]:
    """Count the mdevs of each provider that servers hold, except for one.

    :param except_for: uuid of the server to ignore
    """
    others: dict[str, hostdev.Hostdevs] = collections.defaultdict(tuple)
    for uuid, devices in held:
        if uuid != except_for:
            others[uuid] += devices
    found = held_devices.by_region(others, offered)
    return {item.uuid: len(held_devices.holders(found[item.uuid]))
            for item in offered if item.region.mdevs}

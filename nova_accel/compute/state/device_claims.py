# SPDX-License-Identifier: Apache-2.0
"""Devices for servers: chosen, held while an operation lasts, then recorded.

A claim exists only from the choice until libvirt has the definition that
records it; it keeps two servers that start at the same time apart.
"""

import collections
import collections.abc
import contextlib
import dataclasses
import threading

from nova_accel.compute import instance_request
from nova_accel.compute.state import libvirt_domains
from nova_accel.core import errors
from nova_accel.core import holding
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.assignment import assign
from nova_accel.core.assignment import verify
from nova_accel.core.placement import inventory

# The kernel waits a minute for a function that does not come back from its
# reset (drivers/pci/pci.c: PCIE_RESET_READY_POLL_MS).
_PATIENCE = 120


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Devices for a server, and how they differ from its promise.

    :param unbooked: of these, what Placement does not know yet
    :param unused: what it was promised that it does not get
    :param once: of these, the providers of what is for one server only
    """

    hostdevs: hostdev.Hostdevs
    unallocated: assign.Allocations
    surplus: assign.Allocations
    once: tuple[inventory.Offered, ...] = ()


class DeviceClaims:
    """The claims of one nova-compute.

    :param domains: what is held already
    """

    def __init__(self, domains: libvirt_domains.LibvirtDomains):
        self._domains = domains
        self._claimed: dict[str, hostdev.Hostdevs] = {}
        self._operations: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        #: What is being reset, and word that it is no more.
        self._aside: set[model.Address] = set()
        self._back = threading.Condition(self._lock)

    def choose(self, instance, allocated: assign.Allocations,
               inventory: inventory.NodeInventory,
               units_by_consumer: collections.abc.Callable[
                   [str, str], collections.abc.Mapping[str, int]],
               comes_live=False) -> Chosen:
        """Choose the devices that keep a promise, and claim them.

        Those that the promise names; others like them where those do not do:

        - Somebody else has one by now. For where two claims meet, Placement
          can promise the same unit to both: it checks the capacity again in a
          transaction that does not see the other one's
          (placement.objects.allocation.replace_all within that of the
          handler, with MariaDB's REPEATABLE READ).
        - A rule is broken by them. For it is only here that the guest gets
          its NUMA nodes and its ports their functions, and it can be others
          than the scheduler saw free.
        - One is refused by now, or gone: its reset failed, say.

        :param instance: nova.objects.Instance
        :param promised: the server's allocations
        :param units_by_consumer: those that a provider, whose Region has such
            a class, has given away; asked where devices are chosen here
        :param comes_live: as in :func:`instance_request.wanted`
        :raises errors.AccelError: if the promise cannot be kept whole
        """
        verify.check_here(instance.uuid, instance_request.get(instance),
                          allocated, inventory)
        wanted = instance_request.wanted(instance, allocated, inventory,
                                         comes_live)
        offered, used = inventory.offered, inventory.node.used
        unfit = None
        try:
            try:
                verify.check(allocated, inventory)
                if assign.is_chosen(allocated, wanted.counts, offered):
                    return self._claim(instance, allocated, wanted, offered)
            except errors.AssignmentError as error:
                unfit = error
            elsewhere = {
                item.uuid: item.region.total if item.uuid in used else
                sum(amount for consumer, amount in units_by_consumer(
                    item.uuid, item.region.resource_class).items()
                    if consumer != instance.uuid)
                for item in offered
                if wanted.counts.get(item.region.resource_class)}
            return self._claim(
                instance, allocated, dataclasses.replace(
                    wanted, elsewhere=elsewhere), offered,
                instead_of=inventory.providers)
        except errors.AssignmentError as error:
            raise unfit or verify.explain(error, offered, wanted) from None

    def _claim(self, instance, allocated, wanted, offered,
               instead_of=None) -> Chosen:
        """Claim the devices of a promise.

        :param instead_of: providers of which it may be others of their class
        """
        kept = (allocated if instead_of is None
                else assign.without_devices(allocated))
        with self._lock:
            grants = self._assign(instance.uuid, kept, wanted, offered)
            if not grants:
                raise errors.AssignmentError(
                    f'server {instance.uuid}', 'nothing that it was promised '
                    'is there, or an entry names it no more')
            self._claimed[instance.uuid] = chosen = assign.plan(grants)
        return Chosen(chosen, assign.unallocated(grants, allocated),
                      assign.surplus(grants, allocated, instead_of or ()),
                      tuple(grant.offered for grant in grants
                            if grant.offered.region.one_time_use))

    def _assign(self, uuid, allocated, wanted, offered):
        while True:
            # Looked up under the lock: a claim ends when its record begins.
            held = [*self._domains.read().items(), *self._claimed.items()]
            holders = dict.fromkeys(self._aside, 'nova-compute for a reset')
            holders.update((device.address, holder) for holder, devices
                           in held for device in devices)
            try:
                grants = assign.assign(allocated, wanted, offered, holders,
                                       uuid, _count_mdevs(held, uuid,
                                                          offered))
            except errors.AssignmentError:
                # What is aside is going to be free; but another server's
                # mdev is another one.
                if not any(isinstance(address, model.PciAddress)
                           for address in self._aside) or (
                               not self._back.wait(_PATIENCE)):
                    raise
            else:
                # An mdev is the same one again for the same server.
                if self._aside.isdisjoint(
                        address for grant in grants for address in grant.unit):
                    return grants
                self._wait_for_back()

    def _wait_for_back(self) -> None:
        """Wait, under the lock, until something is not aside any more.

        :raises errors.AssignmentError: if that takes too long
        """
        if not self._back.wait(_PATIENCE):
            raise errors.AssignmentError(
                f'device {min(map(str, self._aside))}',
                'is being reset, or taken back from who had it, which does '
                'not end', 'look at the log of the kernel')

    def held(self, instance) -> hostdev.Hostdevs:
        """What a server has: claimed already, or in its definition."""
        claimed = self.get(instance)
        if claimed is not None:
            return claimed
        return hostdev.ours(self._domains.held_by(instance.uuid))

    def addresses_in_use(self) -> set[model.Address]:
        """What any server or other domain holds, or is about to."""
        # Both under the lock: a claim ends when its record begins, and the
        # other way round where a guest is about to be defined again.
        with self._lock:
            return self._addresses().union(self._domains.holders())

    @contextlib.contextmanager
    def set_aside(self, unit: model.Unit) -> collections.abc.Iterator[bool]:
        """Let nobody choose a unit for a while.

        :returns: a context that is true if nobody has the unit
        """
        with self._lock:
            # The unit is about to be changed. An administrator may have given
            # it to a domain since the domains were read.
            self._domains.refresh()
            held = self._addresses().union(self._domains.holders())
            free = held.isdisjoint(unit)
            if free:
                self._aside.update(unit)
        try:
            yield free
        finally:
            with self._lock:
                if free:
                    self._aside.difference_update(unit)
                self._back.notify_all()

    def _addresses(self) -> set[model.Address]:
        """What is claimed; to be called under the lock."""
        return {device.address for devices in self._claimed.values()
                for device in devices}

    def holders_of(self, addresses: collections.abc.Collection[model.Address],
                ) -> list[tuple[str, hostdev.Hostdev]]:
        """Who has any of these, or is about to, and which."""
        # Both under the lock: see everything.
        with self._lock:
            held = [*self._claimed.items(), *self._domains.read().items()]
        return list(dict.fromkeys(
            (uuid, device) for uuid, devices in held
            for device in devices if device.address in addresses))

    def claim(self, instance, hostdevs: hostdev.Hostdevs) -> None:
        """Claim what a server has, whose definition is about to go."""
        with self._lock:
            self._claimed[instance.uuid] = hostdevs

    def claim_again(self, instance, hostdevs: hostdev.Hostdevs) -> None:
        """Claim what was chosen before, unless it is claimed still.

        :raises errors.AssignmentError: if another server has it by now
        """
        addresses = {device.address for device in hostdevs}
        with self._lock:
            if instance.uuid in self._claimed:
                return
            while not self._aside.isdisjoint(addresses):
                self._wait_for_back()
            held = {device.address: uuid for uuid, devices
                    in (*self._domains.read().items(), *self._claimed.items())
                    for device in devices}
            for device in hostdevs:
                if held.get(device.address, instance.uuid) != instance.uuid:
                    raise errors.AssignmentError(
                        f'device {device.address}',
                        f'is held by {held[device.address]} by now')
            self._claimed[instance.uuid] = hostdevs

    def release(self, uuid: str) -> None:
        """Let go of what is not wanted, or what the record has by now."""
        with self._lock:
            self._end(uuid)

    def release_lingering(self, uuid: str, claim: hostdev.Hostdevs) -> bool:
        """End a claim, unless an operation of the server has begun since.

        :param claim: as :meth:`lingering` returned it; another claim stays
        :returns: whether the claim was ended
        """
        with self._lock:
            lingers = (uuid not in self._operations
                       and self._claimed.get(uuid) is claim)
            if lingers:
                self._end(uuid)
            return lingers

    def _end(self, uuid: str) -> None:
        """End a claim: from now on the record says what the server holds.

        The caller holds the lock.
        """
        self._domains.invalidate(uuid)
        self._claimed.pop(uuid, None)

    def lingering(self) -> dict[str, hostdev.Hostdevs]:
        """The claims that no operation is going to let go, by server."""
        with self._lock:
            return {uuid: claim for uuid, claim in self._claimed.items()
                    if uuid not in self._operations}

    def is_busy(self, uuid: str) -> bool:
        """Whether an operation of a server goes on."""
        with self._lock:
            return uuid in self._operations

    def get(self, instance) -> hostdev.Hostdevs | None:
        """What is claimed for a server, or None outside an operation."""
        return self._claimed.get(instance.uuid)

    @contextlib.contextmanager
    def during(self, instance) -> collections.abc.Iterator[None]:
        """Let go of an operation's claim when it ends, however it ends.

        Where one operation is part of another, the outer one lets go.
        """
        with self._lock:
            self._operations[instance.uuid] += 1
        try:
            yield
        finally:
            with self._lock:
                self._operations[instance.uuid] -= 1
                if not self._operations[instance.uuid]:
                    del self._operations[instance.uuid]
                    self._end(instance.uuid)


def _count_mdevs(held, but: str, offered) -> dict[str, int]:
    """How many mdevs of each provider servers hold, but for one of them."""
    others = collections.defaultdict(tuple)
    for uuid, devices in held:
        if uuid != but:
            others[uuid] += devices
    found = holding.by_region(others, offered)
    return {item.uuid: len(holding.holders(found[item.uuid]))
            for item in offered if item.region.mdevs}

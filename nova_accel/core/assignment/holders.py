# SPDX-License-Identifier: Apache-2.0
"""Who holds the devices of a compute node.

A domain shows which devices a server holds. A server without a domain holds
what Placement allocates to it on this compute node: while its domain is
defined anew, after an operation that failed, or until its resize is confirmed
or reverted. A claim tells which units these are; without one, only their
number is known.
"""

import collections.abc
import dataclasses
import functools
import itertools

from nova_accel.core import claim as claims
from nova_accel.core import held_devices
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import allocations
from nova_accel.core.placement import inventory

Offers = collections.abc.Collection[inventory.Offered]


@dataclasses.dataclass(frozen=True)
class Holders:
    """Who holds the devices of a compute node, as it was read last.

    :param hostdevs: what servers and other domains hold, by uuid
    :param allocated: allocations of servers without a domain, and of their
        migrations, by server; also those on other compute nodes
    :param here: the servers that Nova has on this host, without a domain
    :param busy: the servers on this host that claim devices, and with a task
        in progress
    :param moving: migrations that have claims and have not ended
    :param unallocated: the servers and migrations of ``allocated`` that have
        none
    :param is_known: whether Nova and Placement answered. If not, any device
        may be held by a server without a domain
    :param new: the addresses of ``hostdevs`` that servers have not had yet
    """

    hostdevs: held_devices.Held = dataclasses.field(default_factory=dict)
    allocated: collections.abc.Mapping[
        str, collections.abc.Sequence[allocations.Allocations]] = (
            dataclasses.field(default_factory=dict))
    here: frozenset[str] = frozenset()
    busy: frozenset[str] = frozenset()
    moving: frozenset[str] = frozenset()
    unallocated: frozenset[str] = frozenset()
    is_known: bool = True
    new: frozenset[model.Address] = frozenset()

    @functools.cached_property
    def addresses(self) -> frozenset[model.Address]:
        """The addresses that are held, as far as they are known."""
        return frozenset(device.address
                         for _uuid, device in held_devices.each(self.hostdevs))

    def justifies(self, consumer: str, claim: claims.Claim) -> bool:
        """Whether a server without a domain keeps what it claims.

        :param consumer: the server, or its migration
        """
        if claim.server in self.busy or consumer in self.moving:
            return True
        if consumer in self.unallocated - {claim.server} and (
                claim.server not in self.here):
            # Its resize on this host has failed.
            return False
        every = self.allocated.get(claim.server, ())
        if not any(every):
            # Nova may have the server here, and have lost its allocations.
            return claim.server in self.here
        return not claim.hostdevs or any(
            device.provider in allocated
            for device in claim.hostdevs for allocated in every)

    def counts(self, offered: Offers) -> dict[str, int]:
        """Return the number of held units by provider."""
        units = held_devices.counts(offered, self.hostdevs)
        for server in self.allocated:
            for item, lacking in self._lacking(server, offered):
                units[item.uuid] = min(item.region.size,
                                       units[item.uuid] + lacking)
        return units

    def withheld_counts(self, offered: Offers,
                        used: collections.abc.Container[str],
                        ) -> dict[str, int]:
        """Return the number of units that are held and withheld, by provider.

        :param used: the providers whose units are all withheld
        """
        found = self.counts(offered)
        for item in offered:
            if item.uuid not in used and found[item.uuid]:
                withheld = {unit for unit, _state in item.region.withheld}
                others = sum(not self.addresses.isdisjoint(unit)
                             for unit in {*item.region.units} - withheld)
                found[item.uuid] = min(len(withheld), max(
                    0, found[item.uuid] - others))
        return found

    def lacked(self, offered: Offers) -> set[model.Address]:
        """Return the functions that a server without a domain may have.

        Which units of a provider these servers have is not known. A unit whose
        reset failed is none of them: no server gets it before a reset works.
        """
        return {address for server in self.allocated
                for item, _lacking in self._lacking(server, offered)
                for unit in item.region.resettable for address in unit}

    def servers_lacking(self, offered: Offers) -> set[str]:
        """Return the servers without a domain that have units of Regions."""
        return {server for server in self.allocated
                for _item, _lacking in self._lacking(server, offered)}

    def kept(self, left: collections.abc.Iterable[model.Address],
             offered: Offers) -> set[model.Address]:
        """Return the prepared devices that servers without a domain need.

        Were these released, another server could take the capacity of their
        card as another type. Keep as many of each Region as are allocated
        beyond what the server holds.

        :param left: prepared devices that no server holds
        """
        left = list(left)
        if not self.is_known:
            return set(left)
        found: set[model.Address] = set()
        for server in self.allocated:
            for item, lacking in self._lacking(server, offered):
                found.update(itertools.islice((
                    address for address in left if address not in found
                    and _may_be_of(address, server, item)), lacking))
        return found

    def _lacking(self, server: str, offered: Offers,
                 ) -> collections.abc.Iterator[tuple[inventory.Offered, int]]:
        """Yield how many units a server has beyond what it holds.

        Allocations of a provider that the Region had before its entry changed
        count as well.
        """
        every = self.allocated[server]
        concerned = [item for item in offered if any(
            provider in allocated for allocated in every
            for provider in _providers(item))]
        holds = held_devices.by_region(
            {server: self.hostdevs.get(server, ())}, offered
            ) if concerned else {}
        for item in concerned:
            amount = sum(allocations.count_units(
                allocated.get(provider, {}), item.region.resource_class)
                for allocated in every for provider in _providers(item))
            lacking = amount - len(held_devices.units(holds[item.uuid], item))
            if lacking > 0:
                yield item, lacking


def _providers(item: inventory.Offered) -> set[str]:
    """Return the provider of a Region and the one under its other name."""
    return {item.uuid, item.other_uuid}


def _may_be_of(address: model.Address, server: str,
               item: inventory.Offered) -> bool:
    """Whether a server may have been given a device of a Region."""
    if item.region.mdevs:
        return naming.is_mdev_of(str(address), server, _providers(item))
    return any(address in unit for unit in item.region.units)

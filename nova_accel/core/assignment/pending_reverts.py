# SPDX-License-Identifier: Apache-2.0
"""Devices to keep prepared for a server whose resize may be reverted.

A resize to the same host replaces the old domain, one to another cell
undefines it. Only the allocations then show that the server may need its old
devices again. Were these released, another server could take the capacity of
their card as another type before the revert.
"""

import collections.abc
import itertools

from nova_accel.core import holding
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import allocations
from nova_accel.core.placement import inventory


def kept(left: collections.abc.Iterable[model.Address], server: str,
         allocated: collections.abc.Iterable[allocations.Allocations],
         hostdevs: hostdev.Hostdevs,
         offered: collections.abc.Collection[inventory.Offered],
         ) -> set[model.Address]:
    """Return the prepared devices that a server may need for a revert.

    Keep as many of each Region as are allocated beyond what the server holds.
    Allocations of a provider that the Region had before its entry changed
    count as well.

    :param left: prepared devices that no server holds
    :param server: uuid
    :param allocated: allocations of the server, and of its migration
    :param hostdevs: what the server holds
    """
    every = tuple(allocated)
    found: set[model.Address] = set()
    holds = holding.by_region({server: hostdevs}, offered)
    for item in offered:
        amount = sum(allocations.count_units(
            amounts.get(provider, {}), item.region.resource_class)
            for amounts in every for provider in _providers(item))
        lacking = amount - len(holding.units(holds[item.uuid], item))
        candidates = (address for address in left
                      if _may_be_of(address, server, item))
        found.update(itertools.islice(candidates, max(0, lacking)))
    return found


def _providers(item) -> set[str]:
    """Return the provider of a Region and the one under its other name."""
    return {item.uuid, item.other_uuid}


def _may_be_of(address, server, item) -> bool:
    """Whether a server may have been given a device of a Region."""
    if item.region.mdevs:
        return naming.is_mdev_of(str(address), server, _providers(item))
    return any(address in unit for unit in item.region.units)

# SPDX-License-Identifier: Apache-2.0
"""What is ready for a server that may come back for it.

Until a resize is confirmed its server can go back to what it had. Where its
old definition has gone by then (one on the same host has replaced it, one to
another cell has undefined it), nothing but Placement says so; and what were
taken back could be somebody else's type when it comes.
"""

import collections.abc
import itertools

from nova_accel.core import holding
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import assign
from nova_accel.core.placement import inventory


def kept(left: collections.abc.Iterable[model.Address], server: str,
         allocated: collections.abc.Iterable[assign.Allocations],
         hostdevs: hostdev.Hostdevs,
         offered: collections.abc.Collection[inventory.Offered],
         ) -> set[model.Address]:
    """Which of what nobody holds a server may come back for.

    As much of each Region as it is promised beyond what it holds; also as what
    its card was before its entries changed.

    :param left: what is ready and nobody holds
    :param server: uuid
    :param promised: what it is promised, and what its migration is
    :param hostdevs: what it holds
    """
    every = tuple(allocated)
    found: set[model.Address] = set()
    holds = holding.by_region({server: hostdevs}, offered)
    for item in offered:
        amount = sum(assign.count_units(
            amounts.get(provider, {}), item.region.resource_class)
            for amounts in every for provider in _providers(item))
        lacking = amount - len(holding.units(holds[item.uuid], item))
        theirs = (address for address in left
                  if _may_be_of(address, server, item))
        found.update(itertools.islice(theirs, max(0, lacking)))
    return found


def _providers(item) -> set[str]:
    """What counts a Region, or would where the card had more or fewer."""
    return {item.uuid, item.otherwise}


def _may_be_of(address, server, item) -> bool:
    if item.region.mdevs:
        return naming.is_mdev_of(str(address), server, _providers(item))
    return any(address in unit for unit in item.region.units)

# SPDX-License-Identifier: Apache-2.0
"""The rule of holding.

A server keeps the devices that its allocations on its host name. If such a
device is drained, unhealthy, reserved or no longer named by an entry, it is
withheld from new servers only. A device that is missing, is another card by
now, or shares its IOMMU group with other devices by now is refused to its own
server, too, with the reason (:mod:`nova_accel.core.assignment.present`).
"""

import collections.abc

from nova_accel.core import hostdev
from nova_accel.core.assignment import allocations
from nova_accel.core.assignment import verify
from nova_accel.core.placement import inventory
from nova_accel.core.request import flavor_request


def kept(had: collections.abc.Iterable[hostdev.Hostdevs],
         request: flavor_request.Request, allocated: allocations.Allocations,
         here: inventory.NodeInventory, exactly: bool,
         ) -> hostdev.Hostdevs | None:
    """Return the devices that a server keeps.

    :param had: what it has on this host, and what it had before
    :param allocated: its allocations; empty if it has none, or Placement did
        not answer
    :param exactly: as in :func:`verify.matches_allocations`
    :returns: the first that are those of its allocations; None if there are
        none, so that devices are chosen for it
    """
    return next((hostdevs for hostdevs in had
                 if hostdevs and verify.matches_allocations(
                     hostdevs, request, allocated, here, exactly)), None)


def providers(allocated: allocations.Allocations, is_owner: bool,
              ) -> frozenset[str]:
    """Return the providers of which a server has its own units.

    :param is_owner: whether it has had its allocated devices on this host
    """
    return frozenset(allocated if is_owner else ())

# SPDX-License-Identifier: Apache-2.0
"""The units that a server gets, as hostdevs and as allocations."""

import collections
import collections.abc
import dataclasses

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import allocations
from nova_accel.core.placement import inventory


@dataclasses.dataclass(frozen=True)
class Grant:
    """One unit, assigned to one group of a flavor.

    :param group: ``ACCEL0``, or '' if no group of the flavor asked for it
    :param offered: the Region of the unit
    """

    group: str
    offered: inventory.Offered
    unit: model.Unit


def to_hostdevs(grants: collections.abc.Iterable[Grant],
                ) -> hostdev.Hostdevs:
    """Return the hostdevs of a guest, in the order of its Grants."""
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    hostdevs = []
    for grant in grants:
        for address in grant.unit:
            key = grant.group, grant.offered.uuid
            hostdevs.append(hostdev.Hostdev(
                address, naming.alias(
                    *key, seen[key], grant.offered.region.ids_of(address),
                    grant.offered.region.variant, _card(grant.offered)),
                grant.offered.region.managed))
            seen[key] += 1
    return tuple(hostdevs)


def unallocated(grants: collections.abc.Iterable[Grant],
                allocated: allocations.Allocations,
                ) -> dict[str, dict[str, int]]:
    """Return the units of Grants that are not allocated yet.

    :returns: amounts by class by provider
    """
    chosen = collections.Counter(grant.offered for grant in grants)
    return {item.uuid: {naming.unit_class(item.region.resource_class):
                        number - booked}
            for item, number in chosen.items()
            if (booked := allocations.count_units(
                allocated.get(item.uuid, {}),
                item.region.resource_class)) < number}


def surplus(grants: collections.abc.Iterable[Grant],
            allocated: allocations.Allocations,
            here: collections.abc.Container[str],
            ) -> dict[str, dict[str, int]]:
    """Return the allocated units of this host that no Grant uses.

    During a move, and until the host that a server was evacuated from comes
    back, the server also has allocations on another host.

    :param here: uuids of the providers of this host, offered or not
    :returns: amounts by class by provider
    """
    chosen = collections.Counter(grant.offered.uuid for grant in grants)
    return {uuid: {name: amount - chosen[uuid]}
            for uuid, amounts in allocated.items() if uuid in here
            for name, amount in amounts.items()
            if naming.class_of_units(name) and amount > chosen[uuid]}


def _card(item: inventory.Offered) -> model.PciAddress | None:
    """Return the card that the alias of an mdev names, None for others."""
    address = item.device.address
    return (address if item.region.mdevs
            and isinstance(address, model.PciAddress) else None)

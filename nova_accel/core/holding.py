# SPDX-License-Identifier: Apache-2.0
"""Who holds what, as definitions of domains have it."""

import collections
import collections.abc

from nova_accel.core import hostdev
from nova_accel.core import identity
from nova_accel.core import model
from nova_accel.core import providers

#: Hostdevs by domain; also those that are not ours.
Held = collections.abc.Mapping[str, hostdev.Hostdevs]
#: The same, one by one.
Pairs = collections.abc.Iterable[tuple[str, hostdev.Hostdev]]


def each(held: Held, provider: str | None = None) -> Pairs:
    """Every hostdev and its domain.

    :param provider: only those that were given as this one's
    """
    for uuid, hostdevs in held.items():
        for device in hostdevs:
            if provider in (None, provider_of(device)):
                yield uuid, device


def holders(pairs: Pairs) -> dict[model.Address, set[str]]:
    """Domains by device."""
    found = collections.defaultdict(set)
    for uuid, device in pairs:
        found[device.address].add(uuid)
    return found


def units(pairs: Pairs, item: providers.Offered | None,
          ) -> dict[model.Unit, set[str]]:
    """Domains by unit of a Region, where they hold any of its functions.

    :param item: None where its device has gone, and with it the knowledge of
        which functions travelled together
    """
    found = holders(pairs)
    if item is None or item.region.mdevs:
        return {(address,): uuids for address, uuids in found.items()}
    by_unit = {unit: set().union(*(found.get(address, ())
                                   for address in unit))
               for unit in item.region.units}
    return {unit: uuids for unit, uuids in by_unit.items() if uuids}


def of_region(held: Held, item: providers.Offered,
              offered: collections.abc.Iterable[providers.Offered],
              ) -> list[tuple[str, hostdev.Hostdev]]:
    """What could be of a Region.

    A function is held by whoever has it, as what it may; which Region an mdev
    belongs to, its alias says; and so of a function that could be several
    things, as long as its card offers what it was given as. An mdev that was
    given as what no card offers any more is of the Region that has its type.

    :param offered: what else there is
    """
    if item.region.mdevs:
        known = {other.uuid for other in offered}
        return [(uuid, device) for uuid, device in each(held)
                if (provider := provider_of(device)) == item.uuid
                or provider not in known
                and device.address in item.region.instances]
    others = {other.uuid for other in offered if item.region.variant
              and other.device.address == item.device.address
              } - {item.uuid}
    return [(uuid, device) for uuid, device in each(held)
            if provider_of(device) not in others]


def counts(offered: collections.abc.Collection[providers.Offered],
           held: Held) -> dict[str, int]:
    """How many units are held, by provider."""
    return {item.uuid: len(units(of_region(held, item, offered), item))
            for item in offered}


def provider_of(device: hostdev.Hostdev) -> str | None:
    """The provider that a hostdev serves, if it is one of ours."""
    alias = identity.parse_alias(device.alias)
    return alias[1] if alias else None

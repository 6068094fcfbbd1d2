# SPDX-License-Identifier: Apache-2.0
"""Who holds what, as definitions of domains have it."""

import collections
import collections.abc

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory

#: Hostdevs by domain; also those that are not ours.
Held = collections.abc.Mapping[str, hostdev.Hostdevs]
#: The same, one by one.
Pairs = collections.abc.Iterable[tuple[str, hostdev.Hostdev]]


def each(held: Held) -> Pairs:
    """Every hostdev and its domain."""
    for uuid, hostdevs in held.items():
        for device in hostdevs:
            yield uuid, device


def holders(pairs: Pairs) -> dict[model.Address, set[str]]:
    """Domains by device."""
    found = collections.defaultdict(set)
    for uuid, device in pairs:
        found[device.address].add(uuid)
    return found


def units(pairs: Pairs, item: inventory.Offered | None,
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


def by_region(held: Held,
              offered: collections.abc.Collection[inventory.Offered],
              ) -> dict[str, list[tuple[str, hostdev.Hostdev]]]:
    """What could be of each Region, by its provider.

    A function is held by whoever has it, as what it may; which Region an mdev
    belongs to, its alias says; and so of a function that could be several
    things, as long as its card offers what it was given as. An mdev that was
    given as what no card offers any more is of the Region that has its type.

    Each hostdev is looked at once, however many Regions there are.
    """
    known = {item.uuid: item for item in offered}
    at = collections.defaultdict(list)
    for item in offered:
        for address in (item.region.instances if item.region.mdevs else {
                address for unit in item.region.units for address in unit}):
            at[address].append(item)
    found = {item.uuid: [] for item in offered}
    for uuid, device in each(held):
        given_as = known.get(provider_of(device))
        if given_as and given_as.region.mdevs:
            found[given_as.uuid].append((uuid, device))
        for item in at.get(device.address, ()):
            if (given_as is None if item.region.mdevs
                    else not _is_anothers(item, given_as)):
                found[item.uuid].append((uuid, device))
    return found


def _is_anothers(item: inventory.Offered,
                 given_as: inventory.Offered | None) -> bool:
    """Whether a function of a Region was given as another thing of its card.

    Of several that the function could be.
    """
    return bool(item.region.variant and given_as
                and given_as.uuid != item.uuid
                and given_as.device.address == item.device.address)


def counts(offered: collections.abc.Collection[inventory.Offered],
           held: Held) -> dict[str, int]:
    """How many units are held, by provider."""
    found = by_region(held, offered)
    return {item.uuid: len(units(found[item.uuid], item)) for item in offered}


def provider_of(device: hostdev.Hostdev) -> str | None:
    """The provider that a hostdev serves, if it is one of ours."""
    alias = naming.parse_alias(device.alias)
    return alias[1] if alias else None

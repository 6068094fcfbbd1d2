# SPDX-License-Identifier: Apache-2.0
"""Find which domains hold which devices, by their definitions."""

import collections
import collections.abc

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.placement import dirt
from nova_accel.core.placement import inventory

#: Hostdevs by domain uuid, including those that are not ours.
Held = collections.abc.Mapping[str, hostdev.Hostdevs]
#: Pairs of a domain uuid and one of its hostdevs.
Pairs = collections.abc.Iterable[tuple[str, hostdev.Hostdev]]


def each(held: Held) -> Pairs:
    """Yield each domain and hostdev."""
    for uuid, hostdevs in held.items():
        for device in hostdevs:
            yield uuid, device


def holders(pairs: Pairs) -> dict[model.Address, set[str]]:
    """Return domains by address of the device."""
    found = collections.defaultdict(set)
    for uuid, device in pairs:
        found[device.address].add(uuid)
    return found


def units(pairs: Pairs, item: inventory.Offered | None,
          ) -> dict[model.Unit, set[str]]:
    """Return domains by unit of a Region that they hold any function of.

    :param item: None if the Region is not offered any more; then each
        function counts as a unit
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
    """Return domains and hostdevs of each Region, by its provider.

    The alias names the Region of an mdev. An mdev whose Region is not offered
    any more counts for the Region that has it among its instances. A function
    counts for each Region that has it, whatever its alias; but if its card
    can be several things, only for the Region in the alias while that is
    offered.

    Each hostdev is visited once, regardless of the number of Regions.
    """
    known = {item.uuid: item for item in offered}
    items_at = _by_address(offered)
    found: dict[str, list[tuple[str, hostdev.Hostdev]]] = {
        item.uuid: [] for item in offered}
    for uuid, device in each(held):
        given_as = known.get(device.provider)
        if given_as and given_as.region.mdevs:
            found[given_as.uuid].append((uuid, device))
        for item in items_at.get(device.address, ()):
            if (given_as is None if item.region.mdevs
                    else not _is_other_variant(item, given_as)):
                found[item.uuid].append((uuid, device))
    return found


def _by_address(offered: collections.abc.Collection[inventory.Offered],
                ) -> dict[model.Address, list[inventory.Offered]]:
    """Return the Regions that have each function or mdev."""
    found = collections.defaultdict(list)
    for item in offered:
        for address in (item.region.instances if item.region.mdevs else {
                address for unit in item.region.units for address in unit}):
            found[address].append(item)
    return found


def _is_other_variant(item: inventory.Offered,
                      given_as: inventory.Offered | None) -> bool:
    """Whether a function was assigned as another variant of its card."""
    return bool(item.region.variant and given_as
                and given_as.uuid != item.uuid
                and given_as.device.address == item.device.address)


def counts(offered: collections.abc.Collection[inventory.Offered],
           held: Held) -> dict[str, int]:
    """Return the number of held units by provider."""
    found = by_region(held, offered)
    return {item.uuid: len(units(found[item.uuid], item)) for item in offered}


def dirty(hostdevs: hostdev.Hostdevs, here: inventory.NodeInventory,
          ) -> list[tuple[inventory.Offered, frozenset[model.PciAddress]]]:
    """Return the functions that are dirty after a server has had hostdevs.

    :returns: with the Regions that they were assigned from
    """
    found = {item.uuid: item for device in hostdevs
             if (item := here.find_by_alias(device.alias, device.address))}
    held = {device.address for device in hostdevs}
    return [(item, dirt.functions_of(item, held)) for item in found.values()
            if item.region.tracks_dirt]

# SPDX-License-Identifier: Apache-2.0
"""Devices for one server only, like Nova's ``one_time_use``.

When a server gets one, its provider gets a trait, and is reserved until an
operator sets ``reserved`` to 0, as for Nova's own devices
(nova/compute/pci_placement_translator.py, ``_handle_one_time_use``). This
state is stored only in Placement. The trait tells it from other reasons to
reserve the provider, so that none of them ends it. One more trait for each
further function of the device tells that this function was used with it, even
if entries or IOMMU groups make it a part of another device later.
"""

import collections.abc
import re

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory

#: A server has had the device of the provider, which is for one server only,
#: and no operator has freed it yet.
TRAIT = 'CUSTOM_NOVA_ACCEL_USED'
_WITH = f'{TRAIT}_WITH_'


def traits(item: inventory.Offered) -> frozenset[str]:
    """Return the traits of a used provider."""
    others = item.functions - {item.device.address} if (
        item.region.one_time_use) else ()
    return frozenset({TRAIT, *(
        _WITH + re.sub(r'\W', '_', str(address)).upper()
        for address in others)})


def tells_function(trait: str) -> bool:
    """Whether a trait names a function that was used with a device."""
    return _address(trait) is not None


def used(root: str, existing: collections.abc.Iterable,
         ) -> dict[str, frozenset[str]]:
    """Return the providers that an operator has to free.

    :param root: uuid of the compute node's provider
    :param existing: our providers in Placement, ``providers.Existing``
    :returns: by uuid of the provider, the uuids that the providers of the
        functions that were used with it have, or would have, as devices
    """
    return {
        provider.uuid: frozenset({
            provider.uuid if provider.parent == root else provider.parent,
            *(naming.provider_uuid(root, address) for address
              in map(_address, provider.traits) if address)})
        for provider in existing
        if TRAIT in provider.traits and any(
            values.get('reserved')
            for name, values in provider.inventory.items()
            if naming.class_of_units(name))}


def _address(trait: str) -> model.PciAddress | None:
    """Return the function that a trait names, if any."""
    match = re.fullmatch(f'{_WITH}([0-9A-F]+)_([0-9A-F]{{2}})_([0-9A-F]{{2}})'
                         '_([0-7])', trait)
    return model.PciAddress(*(int(part, 16) for part in match.groups())) if (
        match) else None


def in_use(offered: collections.abc.Iterable[inventory.Offered],
           held: collections.abc.Set[model.Address]) -> frozenset[str]:
    """Return the uuids of one-time-use providers that servers have.

    :param held: the addresses that servers and other domains hold
    """
    return frozenset(item.uuid for item in offered
                     if item.region.one_time_use
                     and not held.isdisjoint(item.functions))

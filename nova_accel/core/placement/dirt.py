# SPDX-License-Identifier: Apache-2.0
"""Dirty functions: a server has had them, and they were not cleaned since.

This is known of devices whose entry says ``clean`` or ``one_time_use``, and is
stored only in Placement. While a function is dirty, the provider from which a
server got it has a trait that names the function. So nothing that happens to
nova-compute or to the host makes it free, and neither do entries or IOMMU
groups that make it a part of another device later.

A cleaner ends this, or an operator. As with Nova's own devices
(nova/compute/pci_placement_translator.py, ``_handle_one_time_use``), the
operator sets ``reserved`` to 0. One more trait tells that the provider waits
for that, so that no other reason to reserve the provider ends it.
"""

import collections.abc
import re
import types

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory

#: The functions of the provider stay dirty until an operator frees it.
TRAIT = 'CUSTOM_NOVA_ACCEL_USED'
#: An operator asks to clean all functions of the provider that no server has.
CLEAN = 'CUSTOM_NOVA_ACCEL_CLEAN'
#: An operator has cleaned all functions of the provider that no server has.
FREE = 'CUSTOM_NOVA_ACCEL_FREE'

_FUNCTION = 'CUSTOM_NOVA_ACCEL_DIRTY_'

#: Dirty functions by uuid of the provider from which a server got them.
Dirt = collections.abc.Mapping[str, frozenset[model.PciAddress]]
NONE: Dirt = types.MappingProxyType({})


def traits(functions: collections.abc.Iterable[model.PciAddress],
           by_operator: bool) -> frozenset[str]:
    """Return the traits of a provider with dirty functions.

    :param by_operator: whether an operator has to free it
    """
    return frozenset({
        *(_FUNCTION + naming.address_to_trait(address)
          for address in functions), *[TRAIT] * by_operator})


def is_trait(name: str) -> bool:
    """Whether a trait is about dirty functions."""
    return name in (TRAIT, CLEAN, FREE) or _function(name) is not None


def read(existing: collections.abc.Iterable[inventory.Existing],
         cleaned: collections.abc.Set[model.PciAddress] = frozenset(),
         ) -> dict[str, frozenset[model.PciAddress]]:
    """Return the dirty functions, as Placement knows them.

    :param existing: our providers in Placement
    :param cleaned: functions that are clean, which Placement does not know
    """
    found = {provider.uuid: frozenset(filter(None, map(
        _function, provider.traits))) - cleaned for provider in existing
        if TRAIT not in provider.traits or _is_reserved(provider)}
    return {uuid: functions for uuid, functions in found.items() if functions}


def with_held(before: Dirt, offered: collections.abc.Iterable[
        inventory.Offered], held: collections.abc.Set[model.Address],
        ) -> dict[str, frozenset[model.PciAddress]]:
    """Return dirty functions, with those that are dirty by their use.

    :param held: the addresses that servers and other domains hold
    """
    found = dict(before)
    for item in offered:
        if item.region.tracks_dirt and (functions := functions_of(item, held)):
            found[item.uuid] = found.get(item.uuid, frozenset()) | functions
    return found


def functions_of(item: inventory.Offered,
                 held: collections.abc.Set[model.Address],
                 ) -> frozenset[model.PciAddress]:
    """Return the functions of those units of which any function is held."""
    return frozenset(address for unit in item.region.units
                     if not held.isdisjoint(unit) for address in unit
                     if isinstance(address, model.PciAddress))


def in_use(offered: collections.abc.Iterable[inventory.Offered],
           dirt: Dirt) -> frozenset[str]:
    """Return the providers whose only unit is dirty or held.

    All of their units are reserved as soon as a server gets the unit, so that
    Placement never has it for the next server.
    """
    return frozenset(item.uuid for item in offered
                     if item.region.is_single and item.uuid in dirt)


def _is_reserved(provider: inventory.Existing) -> bool:
    return any(values.get('reserved')
               for name, values in provider.inventory.items()
               if naming.class_of_units(name))


def _function(trait: str) -> model.PciAddress | None:
    """Return the function that a trait names, if any."""
    match = re.fullmatch(f'{_FUNCTION}({naming.TRAIT_ADDRESS})', trait)
    return naming.address_of_trait(match[1]) if match else None

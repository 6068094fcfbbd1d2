# SPDX-License-Identifier: Apache-2.0
"""Devices for one server only, like Nova's ``one_time_use``.

When a server gets one, its provider gets a trait, and is reserved until an
operator sets ``reserved`` to 0, as for Nova's own devices
(nova/compute/pci_placement_translator.py, ``_handle_one_time_use``). This
state is stored only in Placement. The trait tells it from other reasons to
reserve the provider, so that none of them ends it.
"""

import collections.abc

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory
from nova_accel.core.placement import providers


def used(existing: collections.abc.Iterable[providers.Existing],
         ) -> dict[str, str | None]:
    """Return the providers that an operator has to free, with their parents.

    :param existing: our providers in Placement
    """
    return {
        provider.uuid: provider.parent for provider in existing
        if providers.USED in provider.traits and any(
            values.get('reserved')
            for name, values in provider.inventory.items()
            if naming.class_of_units(name))}


def in_use(offered: collections.abc.Iterable[inventory.Offered],
           held: collections.abc.Container[model.Address]) -> frozenset[str]:
    """Return the uuids of one-time-use providers that servers have.

    :param held: the addresses that servers and other domains hold
    """
    return held_providers(
        (item for item in offered if item.region.one_time_use), held)


def held_providers(offered: collections.abc.Iterable[inventory.Offered],
                   held: collections.abc.Container[model.Address],
                   ) -> frozenset[str]:
    """Return the uuids of the providers of which servers have units.

    :param held: as for :func:`in_use`
    """
    return frozenset(
        item.uuid for item in offered
        if any(address in held
               for unit in item.region.units for address in unit))

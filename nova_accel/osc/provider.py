# SPDX-License-Identifier: Apache-2.0
"""Changes traits and reserved units of resource providers in Placement."""

import collections.abc
import typing

from nova_accel.core import naming
from nova_accel.core.placement import dirt
from nova_accel.core.placement import drain
from nova_accel.core.placement import listing
from nova_accel.core.placement import providers
from nova_accel.osc import cloud

# Reasons to reserve a provider that no command ends.
_OTHER_REASONS = providers.REASONS - {drain.TRAIT}

# A provider changes while servers come and go.
_TRIES = 5

_Result = typing.TypeVar('_Result')


def reserve(client: cloud.Cloud, units: listing.Units,
            is_reserved: bool) -> None:
    """Reserve all units of a Region, or none.

    They stay reserved for any other reason. The traits are read after the
    inventory, whose generation then guards both.
    """
    name = naming.unit_class(units.resource_class)
    path = f'/resource_providers/{units.provider}/inventories/{name}'

    def write() -> None:
        known = client.get(path)
        names = traits(client, units.provider)[0]
        if not is_reserved and (not _OTHER_REASONS.isdisjoint(names)
                               or any(map(dirt.is_trait, names))):
            return
        reserved = known['total'] if is_reserved else 0
        if known['reserved'] != reserved:
            client.put(path, {**known, 'reserved': reserved})
    _retried(write)


def change_traits(client: cloud.Cloud, provider: str,
                  change: collections.abc.Callable[[set[str]], set[str]],
                  ) -> set[str]:
    """Change the traits of a provider, and return those of before."""
    def write() -> set[str]:
        before, generation = traits(client, provider)
        if change(before) != before:
            client.put(f'/resource_providers/{provider}/traits', {
                'traits': sorted(change(before)),
                'resource_provider_generation': generation})
        return before
    return _retried(write)


def traits(client: cloud.Cloud, provider: str) -> tuple[set[str], int]:
    """Return the traits and the generation of a provider."""
    known = client.get(f'/resource_providers/{provider}/traits')
    return set(known['traits']), known['resource_provider_generation']


def _retried(write: collections.abc.Callable[[], _Result]) -> _Result:
    """Repeat a write while something else changes the provider."""
    for _try in range(_TRIES - 1):
        try:
            return write()
        except cloud.Refused as refused:
            if refused.status != 409:
                raise
    return write()

# SPDX-License-Identifier: Apache-2.0
"""Which units of a Region are held, and by whom."""

import collections.abc

from nova_accel.core import hostdev
from nova_accel.core import identity
from nova_accel.core import model
from nova_accel.core import providers

#: Hostdevs by domain; also those that are not ours.
Held = collections.abc.Mapping[str, hostdev.Hostdevs]


def units(item: providers.Offered, held: Held) -> dict[model.Unit, str]:
    """The domain that holds it, for each unit of a Region that is held.

    A function is held by whoever has it; which Region an mdev belongs to,
    only its alias says.
    """
    if item.region.mdev_type:
        return {(device.address,): uuid for uuid, hostdevs in held.items()
                for device in hostdevs
                if isinstance(device.address, model.MdevAddress)
                and provider_of(device) == item.uuid}
    holders = {device.address: uuid for uuid, hostdevs in held.items()
               for device in hostdevs}
    return {unit: holders[address] for unit in item.region.units
            for address in unit if address in holders}


def counts(offered: collections.abc.Iterable[providers.Offered],
           held: Held) -> dict[str, int]:
    """How many units are held, by provider."""
    return {item.uuid: len(units(item, held)) for item in offered}


def provider_of(device: hostdev.Hostdev) -> str | None:
    """The provider that a hostdev serves, if it is one of ours."""
    alias = identity.parse_alias(device.alias)
    return alias[1] if alias else None

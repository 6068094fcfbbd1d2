# SPDX-License-Identifier: Apache-2.0
"""Allocations of one consumer: what they count, and how they change."""

import collections
import collections.abc

from nova_accel.core import naming

#: Amount by resource class by provider uuid.
Allocations = collections.abc.Mapping[str, collections.abc.Mapping[str, int]]


def count_units(amounts: collections.abc.Mapping[str, int],
                resource_class: str | None = None) -> int:
    """Count the units in an allocation of a Device's or Region's provider.

    Inventory that an operator adds to it in provider.yaml is not counted.

    :param amounts: allocated amounts by class
    :param resource_class: the class of the Region, which older versions
        counted units in; None if unknown, then any class counts
    """
    units = sum(amount for name, amount in amounts.items()
                if naming.class_of_units(name))
    return units or sum(amount for name, amount in amounts.items()
                        if resource_class in (None, name))


def without_devices(allocated: Allocations) -> dict[str, dict[str, int]]:
    """Return allocations without those of units, so classes remain."""
    return {uuid: left for uuid, amounts in allocated.items()
            if (left := {name: amount for name, amount in amounts.items()
                         if not naming.class_of_units(name)})}


def changed(allocated: Allocations, more: Allocations,
            less: Allocations) -> dict[str, dict[str, int]]:
    """Return allocations with some amounts added and others removed."""
    amounts = {uuid: collections.Counter(held)
               for uuid, held in allocated.items()}
    for uuid, added in more.items():
        amounts.setdefault(uuid, collections.Counter()).update(added)
    for uuid, taken in less.items():
        amounts.setdefault(uuid, collections.Counter()).subtract(taken)
    return {uuid: left for uuid, counter in amounts.items()
            if (left := dict(+counter))}

# SPDX-License-Identifier: Apache-2.0
"""Compute nodes whose resource providers an older nova_accel has written.

An older nova-compute does not add the unit that marks a compute node with
devices (:data:`nova_accel.core.naming.HOST_CLASS`), or the traits that tell
the properties of a device (:mod:`nova_accel.core.placement.device_traits`).
"""

import collections.abc

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import device_traits
from nova_accel.core.placement import listing
from nova_accel.core.placement import providers

#: Returns the traits of a provider, by its uuid.
Traits = collections.abc.Callable[[str], collections.abc.Collection[str]]


def find(ours: collections.abc.Iterable[listing.Json],
         marked: collections.abc.Container[str],
         traits: Traits) -> list[str]:
    """Return the uuids of these compute nodes, by the names of their devices.

    :param ours: the providers with our trait, as Placement's API shows them
    :param marked: uuids of the compute nodes with the marking unit
    :param traits: called for devices of marked compute nodes
    """
    found: dict[str, None] = {}
    for provider in sorted(ours, key=lambda provider: provider['name']):
        root = provider['root_provider_uuid']
        if naming.is_provider(
                provider['name'], provider['parent_provider_uuid'],
                {naming.MARKER_TRAIT}) and (
                root not in marked or _is_old_device(provider, traits)):
            found[root] = None
    return list(found)


def _is_old_device(provider: listing.Json, traits: Traits) -> bool:
    """Whether a provider of a PCI device lacks the trait of its ids."""
    address, _region = naming.parse_provider_name(provider['name'])
    if (provider['parent_provider_uuid'] != provider['root_provider_uuid']
            or not _is_pci(address)):
        return False
    names = traits(provider['uuid'])
    # A device that is not offered any more keeps the traits that it has.
    return not (device_traits.loads(names).ids
                or providers.REASONS.intersection(names))


def _is_pci(address: str) -> bool:
    try:
        return bool(model.PciAddress.parse(address))
    except ValueError:
        return False

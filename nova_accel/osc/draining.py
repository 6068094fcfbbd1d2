# SPDX-License-Identifier: Apache-2.0
"""Sets and ends the drains of devices and hosts, in Placement.

The units are reserved here at once. nova-compute finds the drain at its next
look at Placement, keeps the units reserved, and reserves them in the provider
of their resource class.
"""

import collections.abc
import contextlib
import datetime

from nova_accel.core import naming
from nova_accel.core.placement import drain
from nova_accel.core.placement import listing
from nova_accel.core.placement import one_time_use
from nova_accel.core.placement import providers
from nova_accel.osc import cloud

# Reasons to reserve a provider that a drain neither sets nor ends.
_OTHER_REASONS = (providers.REASONS | {one_time_use.TRAIT}) - {drain.TRAIT}

# A provider changes while servers come and go.
_TRIES = 5


def add_options(parser) -> None:
    """Add the options of a command that drains."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument('--drain', metavar='<reason>',
                       help='Give it to no new server, for this reason; '
                            'letters and digits of the reason are kept')
    group.add_argument('--undrain', action='store_true',
                       help='Give it to new servers again')


def apply(client: cloud.Cloud, target: str,
          devices: collections.abc.Iterable[listing.Device], options,
          ) -> None:
    """Set or end a drain.

    :param target: uuid of the provider that has it: of the device, or of the
        compute node
    :param devices: those that it is about
    :param options: parsed, of :func:`add_options`
    """
    wanted = (None if options.undrain else drain.Drain(
        datetime.datetime.now(datetime.UTC), options.drain).trait)
    if wanted:
        client.put(f'/traits/{wanted}', {})
        client.put(f'/traits/{drain.TRAIT}', {})
    old = _change_traits(client, target, lambda traits: {
        trait for trait in traits - {drain.TRAIT}
        if not drain.is_trait(trait)} | (
        {wanted, drain.TRAIT} if wanted else set()))
    for trait in filter(drain.is_trait, old - {wanted}):
        # Another device can have the same drain.
        with contextlib.suppress(cloud.Refused):
            client.delete(f'/traits/{trait}')
    for device in devices:
        is_drained = wanted or _is_drained_otherwise(client, device)
        for units in device.regions:
            _mark(client, units, bool(is_drained))
            _reserve(client, units, is_drained)


def _is_drained_otherwise(client, device: listing.Device) -> bool:
    """Whether the device or its host still has a drain."""
    [provider] = client.get(f'/resource_providers?uuid={device.uuid}'
                            )['resource_providers']
    return drain.loads((
        *_traits(client, device.uuid)[0],
        *_traits(client, provider['root_provider_uuid'])[0])) is not None


def _mark(client, units: listing.Units, is_drained: bool) -> None:
    """Add or remove the trait of drained devices."""
    _change_traits(client, units.provider, lambda traits: (
        traits | {drain.TRAIT} if is_drained else traits - {drain.TRAIT}))


def _reserve(client, units: listing.Units, is_drained: bool) -> None:
    """Reserve all units of a Region, or none.

    They stay reserved for any other reason. The traits are read after the
    inventory, whose generation then guards both.
    """
    name = naming.unit_class(units.resource_class)
    path = f'/resource_providers/{units.provider}/inventories/{name}'

    def write():
        known = client.get(path)
        if not is_drained and not _OTHER_REASONS.isdisjoint(
                _traits(client, units.provider)[0]):
            return
        reserved = known['total'] if is_drained else 0
        if known['reserved'] != reserved:
            client.put(path, {**known, 'reserved': reserved})
    _retried(write)


def _change_traits(client, provider: str, change: collections.abc.Callable[
        [set[str]], set[str]]) -> set[str]:
    """Change the traits of a provider, and return those of before."""
    def write():
        traits, generation = _traits(client, provider)
        if change(traits) != traits:
            client.put(f'/resource_providers/{provider}/traits', {
                'traits': sorted(change(traits)),
                'resource_provider_generation': generation})
        return traits
    return _retried(write)


def _traits(client, provider: str) -> tuple[set[str], int]:
    known = client.get(f'/resource_providers/{provider}/traits')
    return set(known['traits']), known['resource_provider_generation']


def _retried(write: collections.abc.Callable):
    """Repeat a write while something else changes the provider."""
    for _try in range(_TRIES - 1):
        try:
            return write()
        except cloud.Refused as refused:
            if refused.status != 409:
                raise
    return write()

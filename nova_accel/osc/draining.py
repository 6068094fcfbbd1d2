# SPDX-License-Identifier: Apache-2.0
"""Sets and ends the drains of devices and hosts, in Placement.

The units are reserved here at once. nova-compute finds the drain at its next
look at Placement, keeps the units reserved, and reserves them in the provider
of their resource class.
"""

import argparse
import collections.abc
import contextlib
import datetime

from nova_accel.core.placement import drain
from nova_accel.core.placement import listing
from nova_accel.osc import cloud
from nova_accel.osc import provider


def add_options(group: argparse._ActionsContainer) -> None:
    """Add the options that drain to a group of a parser."""
    group.add_argument('--drain', metavar='<reason>',
                       help='Give it to no new server, for this reason; '
                            'letters and digits of the reason are kept')
    group.add_argument('--undrain', action='store_true',
                       help='Give it to new servers again')


def apply(client: cloud.Cloud, target: str,
          devices: collections.abc.Iterable[listing.Device],
          options: argparse.Namespace) -> None:
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
    old = provider.change_traits(client, target, lambda traits: {
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
            provider.reserve(client, units, bool(is_drained))


def _is_drained_otherwise(client: cloud.Cloud,
                          device: listing.Device) -> bool:
    """Whether the device or its host still has a drain."""
    return drain.loads((
        *provider.traits(client, device.uuid)[0],
        *provider.traits(client, client.root(device))[0])) is not None


def _mark(client: cloud.Cloud, units: listing.Units, is_drained: bool) -> None:
    """Add or remove the trait of drained devices."""
    provider.change_traits(client, units.provider, lambda traits: (
        traits | {drain.TRAIT} if is_drained else traits - {drain.TRAIT}))

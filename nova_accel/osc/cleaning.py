# SPDX-License-Identifier: Apache-2.0
"""Asks nova-compute to clean a device, or to free one that is clean.

nova-compute finds the request at its next look at Placement.
"""

import argparse

from nova_accel.core.placement import dirt
from nova_accel.core.placement import listing
from nova_accel.osc import cloud
from nova_accel.osc import provider


def add_options(group: argparse._ActionsContainer) -> None:
    """Add the options that ask for it to a group of a parser."""
    group.add_argument('--clean', action='store_true',
                       help='Clean what no server has of it, with the cleaner '
                            'of its entry, also after a cleaning that failed')
    group.add_argument('--free', action='store_true',
                       help='Give it to new servers: you have cleaned it '
                            'yourself since its last server')


def is_asked(options: argparse.Namespace) -> bool:
    """Whether parsed options ask for it."""
    return bool(options.clean or options.free)


def apply(client: cloud.Cloud, device: listing.Device,
          options: argparse.Namespace) -> None:
    """Ask for it."""
    wanted = dirt.CLEAN if options.clean else dirt.FREE
    client.put(f'/traits/{wanted}', {})
    for units in device.regions:
        provider.change_traits(client, units.provider,
                               lambda traits: traits | {wanted})
        if options.clean:
            provider.reserve(client, units, True)

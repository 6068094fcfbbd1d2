# SPDX-License-Identifier: Apache-2.0
"""Accepts changed firmware of devices, in Placement.

What nova-compute knows of the firmware is removed. At its next look at
Placement it takes the present firmware as the first, and offers the device
again.
"""

import argparse
import collections.abc
import contextlib

from nova_accel.core.placement import firmware
from nova_accel.core.placement import listing
from nova_accel.osc import cloud
from nova_accel.osc import provider


def add_option(group: argparse._ActionsContainer) -> None:
    """Add the option of a command that accepts firmware.

    :param group: the options of which one is required
    """
    group.add_argument('--accept-firmware', action='store_true',
                       help='Accept its firmware after a change')


def accept(client: cloud.Cloud, root: str,
           devices: collections.abc.Iterable[listing.Device] | None = None,
           ) -> None:
    """Forget the firmware of devices of a compute node.

    :param root: uuid of the compute node's provider
    :param devices: None for all, also those that are missing
    """
    named = None if devices is None else {
        version.trait for device in devices
        for version in device.known_firmware}

    def forgotten(traits: set[str]) -> set[str]:
        return {version.trait for version in firmware.loads(traits)
                if named is None or version.trait in named}

    old = provider.change_traits(client, root,
                                 lambda traits: traits - forgotten(traits))
    for trait in forgotten(old):
        # A device of another host can have the same.
        with contextlib.suppress(cloud.Refused):
            client.delete(f'/traits/{trait}')

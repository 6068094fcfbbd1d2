# SPDX-License-Identifier: Apache-2.0
"""Reserves one-time-use devices for the server that gets them."""

from nova_accel.compute import nonfatal
from nova_accel.compute.state import node_state
from nova_accel.core import holding
from nova_accel.core import hostdev


class Reservation:
    """Reserves the units of one-time-use devices in Placement."""

    def __init__(self, state: node_state.NodeState) -> None:
        self._state = state

    def reserve(self, held: hostdev.Hostdevs, is_new: bool = True) -> None:
        """Reserve the one-time-use devices that a server gets.

        Its domain is defined, so that nova-compute reserves them at its next
        start if it ends here; and its guest does not run yet.

        :param is_new: whether it did not have them before; otherwise they are
            reserved already, or in the next run of the periodic tasks
        """
        with nonfatal.step(
                'reserve the one-time-use devices of a server',
                if_true=not is_new):
            here, unreadable = self._state.read_or_empty(cached=True)
            if unreadable and held:
                raise unreadable
            for item in holding.one_time(held, here):
                if item.uuid not in here.node.used:
                    self._state.placement_client.reserve(item)

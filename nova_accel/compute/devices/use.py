# SPDX-License-Identifier: Apache-2.0
"""Stores in Placement that devices are dirty, before a server gets them."""

from nova_accel.compute import nonfatal
from nova_accel.compute.state import node_state
from nova_accel.core import held_devices
from nova_accel.core import hostdev


class Use:
    """Stores that devices are dirty from their first server on."""

    def __init__(self, state: node_state.NodeState) -> None:
        self._state = state

    def store(self, held: hostdev.Hostdevs, is_new: bool = True) -> None:
        """Store that the devices which a server gets are dirty.

        Its domain is defined, so that nova-compute stores it at its next start
        if it ends here; and its guest does not run yet.

        :param is_new: whether it did not have them before; otherwise it is
            stored already, or in the next run of the periodic tasks
        """
        with nonfatal.step('store which devices of a server are dirty',
                           if_true=not is_new):
            here, unreadable = self._state.read_or_empty(cached=True)
            if unreadable and held:
                raise unreadable
            dirt = self._state.local_host.dirt
            for item, functions in held_devices.dirty(held, here):
                if not functions <= dirt.in_placement(item.uuid):
                    self._state.use(item, functions)

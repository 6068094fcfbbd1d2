# SPDX-License-Identifier: Apache-2.0
"""Withholds the devices that an operator drains."""

import collections.abc

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory

_REMEDY = ('no action needed, servers that hold it keep it; to give it to new '
           'servers again, run "openstack accel {thing} set --undrain"')


class Drains:
    """The drains of a compute node's devices, as Placement had them last."""

    def __init__(self) -> None:
        self._node = inventory.Node('', '')

    def update(self, node: inventory.Node) -> bool:
        """Take over the drains of a compute node.

        :returns: whether they have changed
        """
        before, self._node = self._node, node
        return before.drained != node.drained

    def withheld(self, functions: collections.abc.Iterable[model.Function],
                 ) -> dict[model.Address, model.Withheld]:
        """Return the functions that are drained, with reason and remedy."""
        node = self._node
        if not node.drained:
            return {}
        of_host = node.drained.get(node.uuid)
        found = {function.address: node.drained.get(naming.provider_uuid(
            node.uuid, function.address), of_host) for function in functions}
        return {address: model.Withheld(
            f'an operator drains it: {drained}', _REMEDY.format(
                thing='host' if drained is of_host else 'device'),
            model.WithheldState.DRAINED)
            for address, drained in found.items() if drained}

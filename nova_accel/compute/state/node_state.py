# SPDX-License-Identifier: Apache-2.0
"""The state of a compute node, by its sources."""

import collections.abc
import dataclasses

from nova_accel.compute.state import device_claims
from nova_accel.compute.state import libvirt_domains
from nova_accel.compute.state import local_host
from nova_accel.compute.state import node_holders
from nova_accel.compute.state import placement
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.placement import inventory


@dataclasses.dataclass(frozen=True)
class NodeState:
    """The state of one compute node.

    :param local_host: its devices, as sysfs shows them
    :param domains: the devices that libvirt's domains hold
    :param claims: the devices that operations of servers claim
    :param placement_client: allocations
    :param holders: who holds its devices, by all of these sources
    :param node: returns its resource providers
    """

    local_host: local_host.LocalHost
    domains: libvirt_domains.LibvirtDomains
    claims: device_claims.DeviceClaims
    placement_client: placement.PlacementClient
    holders: node_holders.NodeHolders
    node: collections.abc.Callable[[], inventory.Node]

    def read(self) -> inventory.NodeInventory:
        """Read what the compute node offers.

        :raises errors.TreeError: if ``sysfs_root`` cannot be read
        """
        return inventory.NodeInventory(self.local_host.read(), self.node())

    def read_or_empty(self, cached: bool = False) -> tuple[
            inventory.NodeInventory, errors.TreeError | None]:
        """Read what the compute node offers, and why it cannot be read.

        :param cached: accept what was read up to some seconds ago
        :returns: an empty inventory and the error, if it cannot be read
        """
        host, error = self.local_host.read_or_empty(cached)
        return inventory.NodeInventory(host, self.node()), error

    def use(self, item: inventory.Offered,
            functions: frozenset[model.PciAddress]) -> None:
        """Store that functions are dirty from now on.

        :param item: the Region from which a server gets them
        :raises errors.AssignmentError: if Placement rejects that
        """
        self.placement_client.mark_dirty(item, functions)
        self.local_host.dirt.use(functions, is_stored=True)

# SPDX-License-Identifier: Apache-2.0
"""What an instance asks for: by its flavor, its image, its ports, its guest.

Seam: ``nova.objects.Instance.get_pci_devices`` and
``InstancePCIRequest.NEUTRON_PORT``.
"""

from nova import objects
import nova.conf

from nova_accel.core.assignment import assign
from nova_accel.core.placement import inventory
from nova_accel.core.request import affinity
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import arrange

CONF = nova.conf.CONF


def of(instance) -> flavor_request.Request:
    """What an instance's flavor asks for.

    :param instance: nova.objects.Instance
    """
    return flavor_request.parse(instance.flavor.extra_specs)


def wanted(instance, allocated: assign.Allocations,
           inventory: inventory.NodeInventory,
           comes_live=False) -> assign.Wanted:
    """What a server asks for, and what the rules are about.

    :param comes_live: whether it is on another host yet, and its ports have
        functions there; those that Nova takes here only the scheduler knows
    """
    asked = flavor_request.parse(
        instance.flavor.extra_specs,
        flavor_specs.image_traits(instance.image_meta))
    host = inventory.host
    guest = instance.numa_topology
    return assign.Wanted(
        asked.groups, asked.rules,
        arrange.HostContext(
            frozenset(cell.id for cell in guest.cells) if guest else None,
            None if comes_live
            else _nodes_of_ports(instance, asked, host.only_node),
            host.only_node, host.links),
        {name: allocated.get(uuid, {}).get(name, 0) for uuid, name
         in inventory.counting(asked.classes).items()},
        pack=CONF.nova_accel.pack_devices)


def _nodes_of_ports(instance, asked, only_node) -> frozenset[int] | None:
    """The NUMA nodes of the functions behind a server's network ports.

    :param only_node: the node of those that do not say theirs
    """
    if not asked.concerns(affinity.NETWORK):
        return None
    devices = instance.get_pci_devices(
        source=objects.InstancePCIRequest.NEUTRON_PORT)
    if not devices:
        return None
    return frozenset(only_node if device.numa_node is None
                     else device.numa_node for device in devices) - {None}

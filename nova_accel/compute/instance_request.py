# SPDX-License-Identifier: Apache-2.0
"""The devices that an instance requests: by flavor, image and ports.

Seam: ``nova.objects.Instance.get_pci_devices`` and
``InstancePCIRequest.NEUTRON_PORT``.
"""

from nova import objects
import nova.conf

from nova_accel import moved_flavors
from nova_accel.core import model
from nova_accel.core.assignment import allocations
from nova_accel.core.assignment import assign
from nova_accel.core.placement import inventory
from nova_accel.core.request import affinity
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import arrange

CONF = nova.conf.CONF


def of(instance) -> flavor_request.Request:
    """Return the request of an instance's flavor.

    :param instance: nova.objects.Instance
    """
    return of_flavor(instance.flavor)


def of_flavor(flavor, image_traits=()) -> flavor_request.Request:
    """Return the request of a flavor, with the new resource classes.

    :param flavor: nova.objects.Flavor
    :param image_traits: the traits that the server's image requires
    """
    return flavor_request.parse(moved_flavors.extra_specs(flavor),
                                image_traits)


def wanted(instance, allocated: allocations.Allocations,
           inventory: inventory.NodeInventory,
           is_live_migration=False) -> assign.Wanted:
    """Return a server's request, with the facts that its rules depend on.

    :param is_live_migration: whether the server is being live-migrated to
        this host: its ports still have functions of the source, and only the
        scheduler knows those of the destination
    """
    request = of_flavor(instance.flavor, flavor_specs.image_traits(
        instance.image_meta))
    host = inventory.host
    guest = instance.numa_topology
    return assign.Wanted(
        request.groups, request.rules,
        arrange.HostContext(
            frozenset(cell.id for cell in guest.cells) if guest else None,
            None if is_live_migration
            else _nodes_of_ports(instance, request, host),
            host.only_node, host.links),
        {name: allocated.get(uuid, {}).get(name, 0) for uuid, name
         in inventory.counting(request.classes).items()},
        pack=CONF.nova_accel.pack_devices)


def _nodes_of_ports(instance, request,
                    host: model.Host) -> frozenset[int] | None:
    """Return the NUMA nodes of the VFs of a server's network ports.

    :returns: None if no rule needs them, or the server has no such ports
    """
    if not request.has_member(affinity.NETWORK):
        return None
    devices = instance.get_pci_devices(
        source=objects.InstancePCIRequest.NEUTRON_PORT)
    if not devices:
        return None
    return model.nodes_with_cpus(
        (device.numa_node for device in devices), host.cpuless_nodes,
        host.only_node)

# SPDX-License-Identifier: Apache-2.0
"""Updates our resource providers in Nova's ProviderTree.

Seam: ``nova.compute.provider_tree.ProviderTree`` (exists, data,
get_provider_uuids, new_child, remove, update_inventory, update_traits).
"""

import collections.abc

from oslo_log import log as logging

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import holders
from nova_accel.core.placement import dirt
from nova_accel.core.placement import drain
from nova_accel.core.placement import firmware
from nova_accel.core.placement import inventory
from nova_accel.core.placement import providers

LOG = logging.getLogger(__name__)


def update(provider_tree, inventory: inventory.NodeInventory,
           allocated: collections.abc.Callable[[str], providers.Units],
           known: holders.Holders,
           cleaned: collections.abc.Set[model.PciAddress] = frozenset(),
           used: collections.abc.Set[model.PciAddress] = frozenset(),
           disputed: collections.abc.Mapping[str, int] = {}) -> None:
    """Update the tree to what the compute node offers.

    :param provider_tree: of this compute node; changed in place
    :param inventory: what the compute node offers
    :param allocated: returns the allocated amounts of a provider by class
    :param known: who holds devices
    :param cleaned: the functions that were dirty, and are clean now
    :param used: dirty functions that Placement may not know
    :param disputed: units by provider that no server may get
    """
    ours = existing(provider_tree, inventory.node.name, {
        *(uuid for item in inventory.offered
          for uuid in (item.uuid, item.other_uuid)),
        *inventory.counting({item.region.resource_class
                             for item in inventory.offered})})
    dirty = dirt.with_held(dirt.read(ours, cleaned), inventory.offered,
                           used | (known.addresses - known.new))
    wanted = providers.desired(inventory, disputed, dirty)
    of_classes, of_devices = _split(ours)
    stuck = providers.stuck(wanted, of_devices, allocated)
    why = providers.reason_not_offered(inventory)
    drained = {provider.uuid for provider in of_devices
               if drain.loads(provider.traits)}
    changes = providers.diff(
        wanted, of_devices, stuck.keys()
        | (dirty.keys() - inventory.by_uuid.keys())
        | drained.difference(item.uuid for item in wanted), why, dirty)
    in_use = dirt.in_use(inventory.offered, dirty)
    counting = providers.classes(
        inventory, disputed, stuck, in_use, known.withheld_counts(
            inventory.offered, in_use))
    changes += providers.diff(counting, of_classes, providers.stuck(
        counting, of_classes, allocated), providers.reason_class_not_offered(
            why, of_devices, stuck))
    for change in changes:
        _apply(provider_tree, change)
    if ours or wanted:
        _mark_host(provider_tree, inventory.node.uuid)


def _split(ours: list[inventory.Existing],
           ) -> tuple[list[inventory.Existing], list[inventory.Existing]]:
    """Return the providers that count units of a class, and the others."""
    of_classes: list[inventory.Existing] = []
    of_devices: list[inventory.Existing] = []
    for provider in ours:
        (of_classes if naming.class_of_provider(provider.name)
         else of_devices).append(provider)
    return of_classes, of_devices


def read_node(provider_tree, uuid: str, name: str) -> inventory.Node:
    """Return what the tree knows of a compute node.

    :param provider_tree: None before its first update
    :param uuid: of the compute node's provider
    """
    if not provider_tree:
        return inventory.Node(uuid, name)
    known = existing(provider_tree, name)
    traits = {uuid: provider_tree.data(uuid).traits,
              **{provider.uuid: provider.traits for provider in known}}

    def marked(marks: collections.abc.Set[str]) -> frozenset[str]:
        return frozenset(uuid for uuid, names in traits.items()
                         if not marks.isdisjoint(names))

    return inventory.Node(
        uuid, name, {provider.uuid: provider.name for provider in known},
        dirt.read(known),
        {uuid: drained for uuid, names in traits.items()
         if (drained := drain.loads(names))},
        marked({dirt.CLEAN}), marked({dirt.FREE}), marked(providers.MARKS),
        providers.withheld(known),
        _classes_of_others(provider_tree, name,
                           {provider.uuid for provider in known}),
        firmware.loads(traits[uuid]))


def _classes_of_others(provider_tree, nodename: str,
                       ours: set[str]) -> frozenset[str]:
    """Return the classes of the providers that are not ours."""
    return frozenset(
        name for uuid in provider_tree.get_provider_uuids(nodename)
        if uuid not in ours for name in provider_tree.data(uuid).inventory)


def existing(provider_tree, nodename: str,
             named: collections.abc.Container[str] = (),
             ) -> list[inventory.Existing]:
    """Return our providers, found by name and trait, parents first.

    :param named: uuids of providers that are ours even without the trait
        (nova-compute may have died after creating one)
    """
    found = []
    for uuid in provider_tree.get_provider_uuids(nodename):
        data = provider_tree.data(uuid)
        if uuid in named or naming.is_provider(
                data.name, data.parent_uuid, data.traits):
            found.append(inventory.Existing(
                uuid, data.name, data.parent_uuid, data.inventory,
                frozenset(data.traits)))
    return found


def _mark_host(provider_tree, root: str) -> None:
    """Add the unit that marks a compute node with devices."""
    before = provider_tree.data(root).inventory
    provider_tree.update_inventory(root, {**before, naming.HOST_CLASS: {
        'total': 1, 'reserved': 0, 'min_unit': 1, 'max_unit': 1,
        'step_size': 1, 'allocation_ratio': 1.0}})


def _apply(provider_tree, change: providers.Change) -> None:
    match change:
        case providers.Put(provider):
            if not provider_tree.exists(provider.uuid):
                LOG.info('Resource provider %s is new: %s', provider.name,
                         dict(provider.totals))
                provider_tree.new_child(provider.name, provider.parent,
                                        uuid=provider.uuid)
            provider_tree.update_inventory(provider.uuid, provider.inventory)
            provider_tree.update_traits(provider.uuid, provider.traits)
        case providers.Reserve(uuid, name, inventory, traits, is_new):
            if is_new:
                LOG.warning(
                    'Resource provider %s is no longer offered in this form, '
                    'but a server holds it, or a server had it and no '
                    'operator has freed it since: it stays reserved until '
                    'then',
                    name)
            provider_tree.update_inventory(uuid, inventory)
            provider_tree.update_traits(uuid, traits)
        case providers.Remove(uuid, name):
            LOG.info('Resource provider %s is no longer offered: removed',
                     name)
            provider_tree.remove(uuid)

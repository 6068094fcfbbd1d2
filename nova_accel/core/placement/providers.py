# SPDX-License-Identifier: Apache-2.0
"""The desired provider tree of a Host, and the changes that lead to it.

Each Device has a provider under that of the compute node. If it has several
Regions, each Region has a provider below. Allocations of these providers show
which devices are in use.

Each resource class has one more provider, with the units of all Devices of the
host. Flavors ask for these: a request for eight units then has one allocation
candidate per host, instead of one per combination of devices.

Nothing here calls Placement.
"""

import collections
import collections.abc
import dataclasses

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import device_traits
from nova_accel.core.placement import dirt
from nova_accel.core.placement import drain
from nova_accel.core.placement import inventory

# Traits that say why a provider is reserved, wholly or in part.
#: Its device is missing.
MISSING = 'CUSTOM_NOVA_ACCEL_MISSING'
#: Its device is refused; the log and "nova-accel host" have the reason.
REFUSED = 'CUSTOM_NOVA_ACCEL_REFUSED'
#: No entry names its device, or the entry has changed.
NOT_NAMED = 'CUSTOM_NOVA_ACCEL_NOT_NAMED'
#: Domains hold more of its units than are allocated.
DISPUTED = 'CUSTOM_NOVA_ACCEL_DISPUTED'
#: Its device is in a state in which no new server gets it.
WITHHELD = {state: f'CUSTOM_NOVA_ACCEL_{state.name}'
            for state in model.WithheldState}
#: All of these traits that follow from the state of the host.
REASONS = frozenset({MISSING, REFUSED, NOT_NAMED, DISPUTED,
                     *WITHHELD.values()})

#: Traits by which an operator asks for something.
MARKS = frozenset({drain.TRAIT, dirt.CLEAN, dirt.FREE})

#: Reasons that end when the provider is not offered any more. The others stay:
#: after a restart, nova-compute knows them from Placement alone.
_OF_OFFERED = REASONS - set(WITHHELD.values())

#: Amounts by resource class.
Units = collections.abc.Mapping[str, int]
#: Returns the trait of :data:`REASONS` of a provider that is not offered.
Why = collections.abc.Callable[[inventory.Existing], str]
_Inventories = inventory.Inventories
_Offered = inventory.Offered


@dataclasses.dataclass(frozen=True)
class Provider:
    """The desired state of one resource provider.

    :param totals: units by resource class; a total of 0 gives no inventory
    :param reserved: units to withhold from scheduling
    :param most: max_unit by resource class, if it is not the total
    """

    uuid: str
    name: str
    parent: str
    totals: collections.abc.Mapping[str, int]
    traits: frozenset[str]
    reserved: int = 0
    most: collections.abc.Mapping[str, int] = dataclasses.field(
        default_factory=dict)

    @property
    def inventory(self) -> dict[str, dict[str, int | float]]:
        """The inventory in the form of Placement's API."""
        return {resource_class: {
            'total': total, 'reserved': min(self.reserved, total),
            'min_unit': 1, 'max_unit': self.most.get(resource_class, total),
            'step_size': 1, 'allocation_ratio': 1.0,
        } for resource_class, total in self.totals.items() if total}


@dataclasses.dataclass(frozen=True)
class Put:
    """Create a provider, or update it to the desired state."""

    provider: Provider


@dataclasses.dataclass(frozen=True)
class Reserve:
    """Reserve a provider that has allocations, instead of removing it.

    :param is_new: whether it was not reserved for this reason before
    """

    uuid: str
    name: str
    inventory: _Inventories
    traits: frozenset[str]
    is_new: bool = True


@dataclasses.dataclass(frozen=True)
class Remove:
    """Remove a provider."""

    uuid: str
    name: str


Change = Put | Reserve | Remove


def desired(inventory: inventory.NodeInventory,
            disputed: collections.abc.Mapping[str, int] = {},
            dirty: dirt.Dirt = dirt.NONE) -> tuple[Provider, ...]:
    """Return the desired providers of Devices and Regions, parents first.

    :param disputed: units to withhold, by provider
    :param dirty: dirty functions, those in use included
    """
    tree, root = [], inventory.node.uuid
    in_use = dirt.in_use(inventory.offered, dirty)
    properties = {device.address: device_traits.dumps(
        device, inventory.host.links, inventory.host.only_node)
        for device in inventory.host.devices}
    for device in inventory.host.devices:
        if len(device.regions) > 1:
            tree.append(Provider(
                naming.provider_uuid(root, device.address),
                naming.device_provider_name(inventory.node.name, device),
                root, {}, naming.OUR_TRAITS | properties[device.address]))
    for item in inventory.offered:
        alone = len(item.device.regions) == 1
        tree.append(Provider(
            item.uuid, item.name,
            root if alone else naming.provider_uuid(
                root, item.device.address),
            {naming.unit_class(item.region.resource_class):
             item.region.size},
            _traits(item, disputed, dirty).union(
                properties[item.device.address] if alone else ()),
            _reserved(item, disputed, in_use)))
    return tuple(tree)


def _traits(item: inventory.Offered, disputed: Units, dirty: dirt.Dirt,
            ) -> frozenset[str]:
    """Return the traits of the provider that has a Region's units."""
    return naming.OUR_TRAITS.union(
        item.region.traits,
        [naming.LIVE_TRAIT] * item.region.live_migratable,
        [WITHHELD[state] for _unit, state in item.region.withheld],
        [DISPUTED] * bool(disputed.get(item.uuid)),
        dirt.traits(dirty[item.uuid], not item.region.cleaner)
        if item.uuid in dirty else ())


def _reserved(item: inventory.Offered, disputed: Units,
              in_use: frozenset[str]) -> int:
    """Return the number of a Region's units to reserve."""
    region = item.region
    return region.size if item.uuid in in_use else (
        region.size - region.total + disputed.get(item.uuid, 0))


def withheld(existing: collections.abc.Iterable[inventory.Existing],
             ) -> frozenset[tuple[str, model.WithheldState]]:
    """Return the states that providers have for withheld units, by uuid.

    ``openstack accel`` reserves the units as well when it adds the trait.
    """
    return frozenset((provider.uuid, state) for provider in existing
                     for state, trait in WITHHELD.items()
                     if trait in provider.traits)


def classes(inventory: inventory.NodeInventory,
            disputed: collections.abc.Mapping[str, int] = {},
            stuck: collections.abc.Mapping[str, Units] = {},
            in_use: frozenset[str] = frozenset(),
            held: collections.abc.Mapping[str, int] = {},
            ) -> tuple[Provider, ...]:
    """Return the desired providers of resource classes.

    :param disputed: as for :func:`desired`
    :param stuck: the result of :func:`stuck`
    :param in_use: providers of which all units are reserved
    :param held: units by provider that are withheld, and that servers have;
        allocated units need not be reserved
    """
    regions: dict[str, list[_Offered]] = collections.defaultdict(list)
    for item in inventory.offered:
        # A class of which all units are stuck has a provider without units.
        regions[item.region.resource_class] += (
            [] if item.uuid in stuck else [item])
    # Count stuck units in their class until they are released.
    kept: collections.Counter[str] = collections.Counter()
    for units in stuck.values():
        kept.update(units)
    return tuple(Provider(
        naming.class_provider_uuid(inventory.node.uuid, resource_class),
        naming.class_provider_name(inventory.node.name, resource_class),
        inventory.node.uuid,
        {resource_class: sum(item.region.size for item in items)
            + kept[naming.unit_class(resource_class)]},
        naming.OUR_TRAITS.union(*(item.region.traits for item in items)),
        sum(max(0, _reserved(item, disputed, in_use)
                - held.get(item.uuid, 0)) for item in items))
        for resource_class, items in regions.items())


def stuck(wanted: collections.abc.Iterable[Provider],
          existing: collections.abc.Iterable[inventory.Existing],
          allocated: collections.abc.Callable[[str], Units],
          ) -> dict[str, Units]:
    """Return the allocations of providers that must not be changed for them.

    :param allocated: reads what is allocated of a provider; called only for
        providers that would be removed or lose their class
    """
    by_uuid = {provider.uuid: provider for provider in wanted}
    found = {}
    for provider in existing:
        target = by_uuid.get(provider.uuid)
        if target is None or _loses_its_class(provider, target):
            units = allocated(provider.uuid)
            if units:
                found[provider.uuid] = units
    return found


def reason_not_offered(inventory: inventory.NodeInventory) -> Why:
    """Return a function that says why a Host does not offer a provider."""
    reasons = {naming.provider_uuid(inventory.node.uuid, function.address):
               NOT_NAMED for function in inventory.host.functions}
    reasons.update(dict.fromkeys(inventory.withheld, REFUSED))
    # A Region has the reason of its Device.
    return lambda provider: reasons.get(
        provider.uuid, reasons.get(provider.parent or '', MISSING))


def reason_class_not_offered(
        why: Why, devices: collections.abc.Iterable[inventory.Existing],
        held: collections.abc.Mapping[str, Units]) -> Why:
    """Return a function that says why a class is not offered.

    The reason is that of the devices that servers still hold of the class.

    :param why: the result of :func:`reason_not_offered`
    :param devices: the providers of Devices and Regions
    :param held: the result of :func:`stuck` for these
    """
    def reason(provider: inventory.Existing) -> str:
        unit = naming.unit_class(
            naming.class_of_provider(provider.name) or '')
        reasons = {why(device) for device in devices
                   if unit in held.get(device.uuid, ())}
        return next((reason for reason in (MISSING, REFUSED)
                     if reason in reasons), NOT_NAMED)
    return reason


def diff(wanted: collections.abc.Iterable[Provider],
         existing: collections.abc.Iterable[inventory.Existing],
         stuck: collections.abc.Container[str],
         why: Why,
         dirty: dirt.Dirt = dirt.NONE) -> tuple[Change, ...]:
    """Return the changes that lead to the desired providers.

    :param wanted: the desired providers, parents before children
    :param existing: our present providers, parents before children
    :param stuck: uuids of existing providers that must not be changed or
        removed, because servers hold them or an operator has not freed them
    :param why: returns the trait for a provider that is not wanted any more
        but has to stay
    :param dirty: as for :func:`desired`
    """
    now = {provider.uuid: provider for provider in existing}
    wanted = tuple(_adapted(provider, now[provider.uuid])
                   if provider.uuid in now else provider
                   for provider in wanted)
    changes: list[Change] = []
    for provider in wanted:
        if provider.uuid in stuck:
            # Placement refuses to remove a class that is in use, and the new
            # class would offer units that are allocated as the old one.
            changes.extend(_reserve(now[provider.uuid], NOT_NAMED, dirty))
        elif not _is_as_wanted(now.get(provider.uuid), provider):
            changes.append(Put(provider))
    changes.extend(_removals(
        now, {provider.uuid for provider in wanted}, stuck, why, dirty))
    return tuple(changes)


def _removals(now: dict[str, inventory.Existing], kept: set[str],
              stuck: collections.abc.Container[str],
              why: Why,
              dirty: dirt.Dirt) -> collections.abc.Iterator[Change]:
    """Yield the changes for existing providers that are not wanted.

    :param kept: uuids of the wanted providers; those that stay are added
    """
    # Remove children before parents, and keep the parent of a kept child.
    for provider in reversed(now.values()):
        if provider.uuid in kept:
            continue
        has_children = any(child.parent == provider.uuid
                           and child.uuid in kept for child in now.values())
        if has_children or provider.uuid in stuck:
            kept.add(provider.uuid)
            yield from _reserve(provider, why(provider), dirty)
        else:
            yield Remove(provider.uuid, provider.name)


def _loses_its_class(before: inventory.Existing, wanted: Provider) -> bool:
    # Ignore other classes: they come from provider.yaml.
    return bool(before.inventory) and not (
        set(wanted.inventory) & set(before.inventory))


def _adapted(wanted: Provider, before: inventory.Existing) -> Provider:
    """Return a provider that keeps its drain and its max_unit.

    A server can hold more than the new total. To move it, Nova writes its
    allocations again for the migration. Placement accepts that beyond
    the capacity, but not beyond max_unit.
    """
    most = {}
    for name, total in wanted.totals.items():
        max_unit = before.inventory.get(name, {}).get('max_unit', 0)
        if max_unit > total:
            most[name] = max_unit
    return dataclasses.replace(wanted, most=most, traits=wanted.traits.union(
        filter(drain.is_trait, before.traits)))


def _is_as_wanted(existing: inventory.Existing | None,
                  wanted: Provider) -> bool:
    return (existing is not None and existing.traits == wanted.traits
            and _plain(existing.inventory) == _plain(wanted.inventory))


def _reserve(provider: inventory.Existing, reason: str, dirty: dirt.Dirt,
             ) -> collections.abc.Iterator[Reserve]:
    # Leave out what provider.yaml adds. Nova adds it again, and fails if it is
    # there already.
    traits = frozenset(
        trait for trait in provider.traits - _OF_OFFERED
        - {naming.STRICT_TRAIT}
        if trait.startswith('CUSTOM_') and not dirt.is_trait(trait)
        or trait == naming.ONE_TIME_USE_TRAIT).union(
            naming.OUR_TRAITS, {reason}, dirt.traits(
                # What is not offered is not cleaned.
                dirty[provider.uuid], by_operator=True)
            if provider.uuid in dirty else ())
    before = _our_inventory(provider) or provider.inventory
    inventory = {resource_class: dict(values, reserved=values['total'])
                 for resource_class, values in before.items()}
    is_new = (reason not in provider.traits
              or _plain(inventory) != _plain(before))
    if (is_new or traits != provider.traits
            or set(inventory) != set(provider.inventory)):
        yield Reserve(provider.uuid, provider.name, inventory, traits, is_new)


def _our_inventory(provider: inventory.Existing) -> _Inventories:
    """Return a provider's inventory of units, or of its class."""
    return {resource_class: values for resource_class, values
            in provider.inventory.items()
            if naming.class_of_units(resource_class)
            or resource_class == naming.class_of_provider(provider.name)}


def _plain(inventories: _Inventories) -> dict[str, list[object]]:
    # Placement's answers have more fields than we set.
    fields = ('total', 'reserved', 'min_unit', 'max_unit', 'step_size',
              'allocation_ratio')
    return {resource_class: [values.get(field) for field in fields]
            for resource_class, values in inventories.items()}

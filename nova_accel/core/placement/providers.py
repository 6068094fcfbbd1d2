# SPDX-License-Identifier: Apache-2.0
"""The provider tree that a Host should have in Placement, and how to get it.

One provider per Device under the compute node's; where a Device has several
Regions, one per Region below it. These say which devices there are, and which
of their units are taken.

Beside them one provider per resource class, which counts the units of all the
host's Devices: it is what Placement looks for when somebody asks for eight of
them, and finds in one way and not in as many as eight devices have orders.

Nothing here talks to Placement.
"""

import collections
import collections.abc
import dataclasses

from nova_accel.core import naming
from nova_accel.core.placement import inventory

# Why a provider is kept that is not offered, or less than it could be.
#: Its device is not there.
MISSING = 'CUSTOM_NOVA_ACCEL_MISSING'
#: Its device is there and refused; the log and "nova-accel host" say why.
REFUSED = 'CUSTOM_NOVA_ACCEL_REFUSED'
#: No entry names its device, or not as it did.
NOT_NAMED = 'CUSTOM_NOVA_ACCEL_NOT_NAMED'
#: Somebody holds of it what nobody was promised.
DISPUTED = 'CUSTOM_NOVA_ACCEL_DISPUTED'
#: All of them.
REASONS = frozenset({MISSING, REFUSED, NOT_NAMED, DISPUTED})

#: Amounts by resource class.
Units = collections.abc.Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Provider:
    """One resource provider as it should be.

    :param totals: units by resource class; Placement has no inventory of 0
    :param reserved: units that nobody may have
    :param most: by resource class, what one server may have where that is
        more than the total
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
        """The inventory in Placement's form."""
        return {resource_class: {
            'total': total, 'reserved': min(self.reserved, total),
            'min_unit': 1, 'max_unit': self.most.get(resource_class, total),
            'step_size': 1, 'allocation_ratio': 1.0,
        } for resource_class, total in self.totals.items() if total}


@dataclasses.dataclass(frozen=True)
class Existing:
    """One provider as it is, its inventory as Placement has it."""

    uuid: str
    name: str
    parent: str | None
    inventory: collections.abc.Mapping[str, collections.abc.Mapping]
    traits: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Put:
    """Create the provider, or bring it to the desired state."""

    provider: Provider


@dataclasses.dataclass(frozen=True)
class Reserve:
    """Keep a provider that has allocations and let nobody have more of it.

    :param is_new: whether it was not so before
    """

    uuid: str
    name: str
    inventory: collections.abc.Mapping[str, collections.abc.Mapping]
    traits: frozenset[str]
    is_new: bool = True


@dataclasses.dataclass(frozen=True)
class Remove:
    uuid: str
    name: str


Change = Put | Reserve | Remove


def desired(inventory: inventory.NodeInventory,
            disputed: collections.abc.Mapping[str, int] = {},
            used: collections.abc.Container[str] = (),
            ) -> tuple[Provider, ...]:
    """The providers of Devices and Regions, as they should be, parents first.

    :param disputed: units by provider that nobody may have
    :param used: providers that are reserved until an operator frees them
    """
    tree, root = [], inventory.node.uuid
    for device in inventory.host.devices:
        if len(device.regions) > 1:
            tree.append(Provider(
                naming.provider_uuid(root, device.address),
                naming.device_provider_name(inventory.node.name, device),
                root, {}, naming.OUR_TRAITS))
    for item in inventory.offered:
        alone = len(item.device.regions) == 1
        tree.append(Provider(
            item.uuid, item.name,
            root if alone else naming.provider_uuid(
                root, item.device.address),
            {naming.unit_class(item.region.resource_class):
                 item.region.total},
            naming.OUR_TRAITS.union(item.region.traits,
                       [DISPUTED] * bool(disputed.get(item.uuid)),
                       [naming.ONE_TIME_USE_TRAIT] * (item.uuid in used)),
            _reserved(item, disputed, used)))
    return tuple(tree)


def _reserved(item, disputed, used) -> int:
    """Units of a Region that nobody may have."""
    return item.region.total if item.uuid in used else disputed.get(
        item.uuid, 0)


def classes(inventory: inventory.NodeInventory,
            disputed: collections.abc.Mapping[str, int] = {},
            stuck: collections.abc.Mapping[str, Units] = {},
            left: collections.abc.Container[str] = (),
            ) -> tuple[Provider, ...]:
    """The providers that count a class for the whole Host.

    :param disputed: units by provider that nobody may have
    :param stuck: as :func:`stuck` has it
    :param left: reserved providers of which nobody has anything any more;
        what servers have, Placement subtracts itself
    """
    regions = collections.defaultdict(list)
    for item in inventory.offered:
        if item.uuid not in stuck:
            regions[item.region.resource_class].append(item)
    # Their class counts them as long as servers have them.
    kept: collections.Counter[str] = collections.Counter()
    for units in stuck.values():
        kept.update(units)
    return tuple(Provider(
        naming.class_provider_uuid(inventory.node.uuid, resource_class),
        naming.class_provider_name(inventory.node.name, resource_class),
        inventory.node.uuid,
        {resource_class: sum(item.region.total for item in items)
            + kept[naming.unit_class(resource_class)]},
        naming.OUR_TRAITS.union(*(item.region.traits for item in items)),
        sum(_reserved(item, disputed, left) for item in items))
        for resource_class, items in regions.items())


def stuck(wanted: collections.abc.Iterable[Provider],
          existing: collections.abc.Iterable[Existing],
          allocated: collections.abc.Callable[[str], Units],
          ) -> dict[str, Units]:
    """What servers hold of providers that therefore stay as they are.

    :param allocated: what somebody holds of a provider; asked only about
        providers that are to go or to lose a class
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


def why_gone(inventory: inventory.NodeInventory,
             ) -> collections.abc.Callable[['Existing'], str]:
    """What to say of a provider that the Host should not have.

    :returns: from the provider to the trait that says why
    """
    reasons = {naming.provider_uuid(inventory.node.uuid, function.address):
                   NOT_NAMED for function in inventory.host.functions}
    reasons.update(dict.fromkeys(inventory.withheld, REFUSED))
    # A Region's provider is gone for its Device's reason.
    return lambda provider: reasons.get(
        provider.uuid, reasons.get(provider.parent, MISSING))


def why_class_gone(why: collections.abc.Callable[['Existing'], str],
                   devices: collections.abc.Iterable['Existing'],
                   held: collections.abc.Mapping[str, Units],
                   ) -> collections.abc.Callable[['Existing'], str]:
    """What to say of a class's provider of which the Host has nothing.

    The same as of what servers hold of it.

    :param why: as :func:`why_gone` has it
    :param devices: the providers of Devices and Regions
    :param held: as :func:`stuck` has it, of these
    """
    def reason(provider):
        unit = naming.unit_class(
            naming.class_of_provider(provider.name) or '')
        reasons = {why(device) for device in devices
                   if unit in held.get(device.uuid, ())}
        return next((reason for reason in (MISSING, REFUSED)
                     if reason in reasons), NOT_NAMED)
    return reason


def diff(wanted: collections.abc.Iterable[Provider],
         existing: collections.abc.Iterable[Existing],
         stuck: collections.abc.Container[str],
         why: collections.abc.Callable[[Existing], str],
         ) -> tuple[Change, ...]:
    """What has to be done; empty where nothing changed.

    :param existing: our providers as they are, parents before children
    :param stuck: those of them that are not wanted as they are, and that
        servers hold or nobody has freed yet
    :param why: the trait for a provider that has to stay, though it is not
        wanted any more
    """
    now = {provider.uuid: provider for provider in existing}
    wanted = tuple(_no_less(provider, now.get(provider.uuid))
                   for provider in wanted)
    changes: list[Change] = []
    for provider in wanted:
        if provider.uuid in stuck:
            # Placement lets nobody take away a class that is in use, and the
            # new class would offer what is still held under the old one.
            changes.extend(_reserve(now[provider.uuid], NOT_NAMED))
        elif not _is_as_wanted(now.get(provider.uuid), provider):
            changes.append(Put(provider))
    kept = {provider.uuid for provider in wanted}
    # Children before parents, and no parent from over a child that stays.
    for provider in reversed(now.values()):
        if provider.uuid in kept:
            continue
        has_children = any(child.parent == provider.uuid
                           and child.uuid in kept for child in now.values())
        if has_children or provider.uuid in stuck:
            kept.add(provider.uuid)
            changes.extend(_reserve(provider, why(provider)))
        else:
            changes.append(Remove(provider.uuid, provider.name))
    return tuple(changes)


def _loses_its_class(before: Existing, wanted: Provider) -> bool:
    # Classes beside ours come from provider.yaml, and are not ours to keep.
    return bool(before.inventory) and not (
        set(wanted.inventory) & set(before.inventory))


def _no_less(wanted: Provider, before: Existing | None) -> Provider:
    """The same, with as much for one server as there was.

    Placement lets a server that has more than is left move, but none that has
    more than max_unit: it looks at that first, for what is given to the
    migration as well.
    """
    most = {}
    for name, total in wanted.totals.items():
        record = before.inventory.get(name, {}) if before else {}
        if record.get('max_unit', 0) > total:
            most[name] = record['max_unit']
    return dataclasses.replace(wanted, most=most)


def _is_as_wanted(existing: Existing | None, wanted: Provider) -> bool:
    return (existing is not None and existing.traits == wanted.traits
            and _plain(existing.inventory) == _plain(wanted.inventory))


def _reserve(provider: Existing,
             reason: str) -> collections.abc.Iterator[Reserve]:
    # What provider.yaml adds, Nova adds again, and does not start a server
    # where it finds it there already.
    traits = frozenset(
        trait for trait in provider.traits - REASONS
        if trait.startswith('CUSTOM_')
        or trait == naming.ONE_TIME_USE_TRAIT) | naming.OUR_TRAITS | {reason}
    before = {resource_class: record for resource_class, record
              in provider.inventory.items()
              if naming.class_of_units(resource_class)
              or resource_class == naming.class_of_provider(provider.name)
              } or provider.inventory
    inventory = {resource_class: dict(record, reserved=record['total'])
                 for resource_class, record in before.items()}
    is_new = (reason not in provider.traits
              or _plain(inventory) != _plain(before))
    if (is_new or traits != provider.traits
            or set(inventory) != set(provider.inventory)):
        yield Reserve(provider.uuid, provider.name, inventory, traits, is_new)


def _plain(inventory) -> dict:
    # Placement answers with fields of its own beside those that we set.
    fields = ('total', 'reserved', 'min_unit', 'max_unit', 'step_size',
              'allocation_ratio')
    return {resource_class: [record.get(field) for field in fields]
            for resource_class, record in inventory.items()}

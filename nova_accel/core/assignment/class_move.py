# SPDX-License-Identifier: Apache-2.0
"""Moves of allocations to another resource class.

Placement does not remove a class that is allocated. So the inventories of
providers and the allocations of all their consumers change in one request
(microversion 1.30, ``POST /reshaper``). Providers keep their uuids.

Nothing here calls Placement.
"""

import collections
import collections.abc
import typing

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.assignment import allocations
from nova_accel.core.placement import inventory
from nova_accel.core.request import moved_classes

Json = dict[str, typing.Any]

#: Old class and new class, by provider of a Device or Region.
Changes = collections.abc.Mapping[str, tuple[str, str]]


def outdated(here: inventory.NodeInventory,
             classes_of: collections.abc.Callable[
                 [str], collections.abc.Collection[str]],
             moves: moved_classes.Moves,
             ) -> tuple[dict[str, tuple[str, str]],
                        dict[str, errors.AccelError]]:
    """Return the providers with an old class, and those that stay so.

    :param classes_of: returns the classes of a provider's inventory
    :returns: the changes; and by provider, why it keeps its class
    """
    units = {naming.unit_class(old): old for old in moves}
    found: dict[str, tuple[str, str]] = {}
    problems: dict[str, errors.AccelError] = {}
    for uuid, name in here.node.devices.items():
        item = here.by_uuid.get(uuid)
        for old in {units[unit] for unit in classes_of(uuid) if unit in units}:
            if why := _why_not(item, old, moves[old]):
                problems[uuid] = errors.AccelError(
                    f'resource provider {name}', f'keeps the class {old}: '
                    + why[0], why[1])
            else:
                found[uuid] = old, moves[old]
    return found, problems


def _why_not(item: inventory.Offered | None, old: str,
             new: str) -> tuple[str, str] | None:
    """Return reason and remedy if a provider cannot change its class."""
    if item is None:
        # A provider of a Region has the class in its uuid, if its card has
        # several Regions.
        return ('no entry offers its devices under this name any more',
                'migrate or resize the servers that have them, or delete them')
    if item.region.resource_class != new:
        return (f'its entry has {item.region.resource_class}, not {new}',
                'correct the entry')
    if moved_classes.trait(old) not in item.region.traits:
        return (f'its entry lacks the trait {moved_classes.trait(old)}',
                'add it to the traits of the entry')
    return None


class Together(typing.NamedTuple):
    """Providers and servers that have to change in one request."""

    providers: frozenset[str]
    consumers: frozenset[str]


def together(consumers_of: collections.abc.Mapping[
        str, collections.abc.Collection[str]]) -> list[Together]:
    """Return the smallest sets that share neither provider nor consumer.

    :param consumers_of: by provider; one without consumers needs no move
    """
    found: list[Together] = []
    for provider, consumers in consumers_of.items():
        joined = Together(frozenset([provider]), frozenset(consumers))
        for known in found[:] if consumers else ():
            if known.consumers & joined.consumers:
                found.remove(known)
                joined = Together(known.providers | joined.providers,
                                  known.consumers | joined.consumers)
        if consumers:
            found.append(joined)
    return found


def reshape(root: str, changes: Changes,
            inventories: collections.abc.Mapping[str, Json],
            consumers: collections.abc.Mapping[str, Json]) -> Json:
    """Return the request to Placement.

    Reserved units cannot be allocated, so as many as are allocated are not
    reserved any more. The provider of an old class stays as it is: other
    devices may have it.

    :param root: uuid of the compute node's provider
    :param changes: the providers to change
    :param inventories: those of these providers, and of the providers of the
        new classes, as Placement answers
    :param consumers: all consumers of these providers, as Placement answers
    :raises errors.AssignmentError: if an inventory is missing, or a consumer
        has no allocations any more: a cold migration has begun, for example
    """
    for uuid, known in consumers.items():
        if not known['allocations']:
            raise errors.AssignmentError(
                f'consumer {uuid}', 'has no allocations any more',
                'wait for the next run')
    moved = {uuid: _moved(root, changes, known['allocations'])
             for uuid, known in consumers.items()}
    used: collections.Counter[str] = collections.Counter()
    for more, _less in moved.values():
        used.update({provider: sum(amounts.values())
                     for provider, amounts in more.items()})
    written = {provider: _renamed(provider, inventories[provider], *change,
                                  used[provider])
               for provider, change in changes.items()}
    for uuid, name in new_class_providers(root, changes).items():
        written[uuid] = _grown(uuid, inventories[uuid], name, [
            written[provider]['inventories'][naming.unit_class(name)]
            for provider, (_old, new) in changes.items() if new == name])
    return {
        'inventories': written,
        'allocations': {uuid: {
            **{key: consumers[uuid][key] for key in (
                'project_id', 'user_id', 'consumer_generation')},
            'allocations': {
                provider: {'resources': amounts} for provider, amounts
                in allocations.changed(_amounts(consumers[uuid]['allocations']
                                                ), more, less).items()}}
            for uuid, (more, less) in moved.items()}}


def new_classes(changes: Changes) -> set[str]:
    """Return the new classes, and those of their units."""
    return {name for _old, new in changes.values()
            for name in (new, naming.unit_class(new))}


def new_class_providers(root: str, changes: Changes) -> dict[str, str]:
    """Return the new classes by the uuid of their provider."""
    return inventory.counting(root, (new for _old, new in changes.values()))


def _amounts(answered: Json) -> dict[str, dict[str, int]]:
    return {uuid: allocation['resources']
            for uuid, allocation in answered.items()}


def _moved(root: str, changes: Changes, answered: Json,
           ) -> tuple[allocations.Allocations, allocations.Allocations]:
    """Return what a consumer gets, and what it has no more."""
    more: dict[str, collections.Counter[str]] = collections.defaultdict(
        collections.Counter)
    less: dict[str, collections.Counter[str]] = collections.defaultdict(
        collections.Counter)
    for provider, amounts in _amounts(answered).items():
        if provider not in changes:
            continue
        units = amounts.get(naming.unit_class(changes[provider][0]), 0)
        for name, found in zip(changes[provider], (less, more), strict=True):
            found[provider][naming.unit_class(name)] += units
            found[naming.class_provider_uuid(root, name)][name] += units
    return more, less


def _renamed(provider: str, answered: Json, old: str, new: str,
             used: int) -> Json:
    """Return a provider's inventories with another class for its units."""
    records = dict(_known(provider, answered))
    record = records.pop(naming.unit_class(old), None)
    if record is None:
        raise errors.AssignmentError(
            f'resource provider {provider}', 'has no '
            f'{naming.unit_class(old)} any more', 'wait for the next run')
    records[naming.unit_class(new)] = {
        **record, 'reserved': max(0, record['reserved'] - used)}
    return {**answered, 'inventories': records}


def _grown(provider: str, answered: Json, name: str,
           added: list[Json]) -> Json:
    """Return the inventories of a class's provider with more units."""
    before = _known(provider, answered).get(name, {'total': 0, 'reserved': 0})
    total, reserved = (before[key] + sum(record[key] for record in added)
                       for key in ('total', 'reserved'))
    return {**answered, 'inventories': {
        **answered['inventories'], name: {
            **added[0], **before, 'total': total, 'reserved': reserved,
            'max_unit': total}}}


def _known(provider: str,
           answered: Json) -> collections.abc.Mapping[str, Json]:
    """Return inventories by class.

    :raises errors.AssignmentError: if Placement does not return them
    """
    if 'inventories' not in answered:
        raise errors.AssignmentError(
            f'resource provider {provider}', 'Placement does not return its '
            'inventories', 'wait for the next run')
    found: dict[str, Json] = answered['inventories']
    return found

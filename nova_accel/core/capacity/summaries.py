# SPDX-License-Identifier: Apache-2.0
"""Views of hosts, from the provider summaries of allocation candidates.

nova-scheduler gets the summaries of thousands of hosts at once, most of which
look like another one. What they look like is a :data:`Shape`, which costs some
microseconds. A view is made once for all hosts of a shape.
"""

import collections
import collections.abc
import dataclasses
import functools

from nova_accel.core import naming
from nova_accel.core.capacity import view
from nova_accel.core.placement import device_traits
from nova_accel.core.placement import listing
from nova_accel.core.placement import rebuilt
from nova_accel.core.solver import arrange

# More than most clouds have.
_MAX_DEVICES, _MAX_SHAPES = 1 << 14, 1 << 13

_NO_TRAITS: frozenset[str] = frozenset()

#: Resource class, the requested traits, free and total units of a Region.
_Region = tuple[str, tuple[str, ...], int, int]
#: The traits of a card that tell its place and its links, and its Regions.
_Card = tuple[frozenset[str], tuple[_Region, ...]]

#: How many cards of each sort a host has.
Shape = frozenset[tuple[_Card, int]]


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a request needs to know of devices.

    :param classes: resource classes
    :param traits: all traits that it names
    """

    classes: frozenset[str]
    traits: frozenset[str]


def shape(providers: collections.abc.Mapping[str, listing.Json],
          root: str, asked: Asked) -> Shape:
    """Return what the devices of a host look like for a request.

    :param providers: the summaries of our providers of the host, by uuid
    :param root: uuid of the compute node's provider
    """
    cards: dict[str, frozenset[str]] = {}
    regions: dict[str, list[_Region]] = collections.defaultdict(list)
    for uuid, provider in providers.items():
        parent, traits = (provider['parent_provider_uuid'],
                          frozenset(provider['traits']))
        card = uuid if parent == root else parent
        if card == uuid:
            cards[uuid] = traits
        for name, amounts in provider['resources'].items():
            resource_class = naming.class_of_units(name)
            if resource_class in asked.classes:
                regions[card].append((
                    resource_class, tuple(sorted(traits & asked.traits)),
                    amounts['capacity'] - amounts['used'],
                    amounts['capacity']))
    # Hosts that look alike differ in the uuids, and so in the order.
    return frozenset(collections.Counter((
        *((_places(cards.get(card, _NO_TRAITS)), tuple(sorted(found)))
          for card, found in regions.items()),
        # Other devices matter if they are linked.
        *((links, ()) for card, traits in cards.items()
          if card not in regions and (links := _links(traits)))
    )).items())


def free(host: Shape) -> float:
    """Return how many devices are free, counting parts of devices."""
    return sum(number * free / total for (_traits, regions), number in host
               for _class, _asked, free, total in regions if free > 0)


@functools.lru_cache(maxsize=_MAX_SHAPES)
def view_of(host: Shape) -> view.View:
    """Return the view of the hosts of a shape."""
    cards = {str(number): card for number, card in enumerate(
        card for card, number in sorted(host, key=_sort_key)
        for _each in range(number))}
    properties = {name: _properties(traits)
                  for name, (traits, _regions) in cards.items()}
    return view.View(tuple(
        arrange.AvailableUnits(
            f'{name} {number}', resource_class, frozenset(traits), free,
            rebuilt.place(properties[name], name), total)
        for name, (_traits, regions) in cards.items()
        for number, (resource_class, traits, free, total) in enumerate(
            regions)), rebuilt.links(properties))


def _sort_key(counted: tuple[_Card, int],
              ) -> tuple[list[str], tuple[_Region, ...]]:
    (traits, regions), _number = counted
    return sorted(traits), regions


@functools.lru_cache(maxsize=_MAX_DEVICES)
def _links(traits: frozenset[str]) -> frozenset[str]:
    return frozenset(filter(device_traits.is_of_links, traits))


@functools.lru_cache(maxsize=_MAX_DEVICES)
def _places(traits: frozenset[str]) -> frozenset[str]:
    """Return the traits of places and links."""
    return _links(traits).union(filter(device_traits.is_of_place, traits))


@functools.lru_cache(maxsize=_MAX_DEVICES)
def _properties(traits: frozenset[str]) -> device_traits.Properties:
    return device_traits.loads(traits)

# SPDX-License-Identifier: Apache-2.0
"""Views of hosts, from the provider summaries of allocation candidates.

nova-scheduler gets the summaries of thousands of hosts at once, most of which
look like another one. So a view is made once for all of them.
"""

import collections
import collections.abc
import dataclasses
import functools

from nova_accel.core import naming
from nova_accel.core.capacity import view
from nova_accel.core.placement import device_traits
from nova_accel.core.placement import rebuilt
from nova_accel.core.solver import arrange

# More than most clouds have.
_MAX_DEVICES, _MAX_HOSTS = 1 << 14, 1 << 13

_NO_TRAITS: frozenset[str] = frozenset()

#: Resource class, the requested traits, free and total units of a Region.
_Region = tuple[str, tuple[str, ...], int, int]
#: The traits of a card, and its Regions.
_Card = tuple[frozenset[str], tuple[_Region, ...]]


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a request regards of devices.

    :param classes: resource classes
    :param traits: all traits that it names
    """

    classes: frozenset[str]
    traits: frozenset[str]


def view_of(providers: collections.abc.Mapping[str, collections.abc.Mapping],
            root: str, asked: Asked) -> view.View:
    """Return the view of the devices of a host that a request regards.

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
    return _view_of(frozenset(collections.Counter((
        *((cards.get(card, _NO_TRAITS), tuple(sorted(found)))
          for card, found in regions.items()),
        # Other devices matter if they are linked.
        *((links, ()) for card, traits in cards.items()
          if card not in regions and (links := _link_traits(traits)))
    )).items()))


@functools.lru_cache(maxsize=_MAX_HOSTS)
def _view_of(counted: frozenset[tuple[_Card, int]]) -> view.View:
    """:param counted: cards, and how many of each there are"""
    names = map(str, range(sum(number for _card, number in counted)))
    cards = {next(names): card for card, number in counted
             for _each in range(number)}
    properties = {name: _properties(traits)
                  for name, (traits, _regions) in cards.items()}
    return _interned(view.canonical([
        arrange.AvailableUnits(
            '', resource_class, frozenset(traits), free,
            rebuilt.place(properties[name], name), total)
        for name, (_traits, regions) in cards.items()
        for resource_class, traits, free, total in regions],
        rebuilt.links(properties)))


@functools.lru_cache(maxsize=_MAX_DEVICES)
def _link_traits(traits: frozenset[str]) -> frozenset[str]:
    return frozenset(filter(device_traits.is_of_links, traits))


@functools.lru_cache(maxsize=_MAX_DEVICES)
def _properties(traits: frozenset[str]) -> device_traits.Properties:
    return device_traits.loads(traits)


@functools.lru_cache(maxsize=_MAX_HOSTS)
def _interned(found: view.View) -> view.View:
    """Return one object for all equal views, to compare by identity."""
    return found

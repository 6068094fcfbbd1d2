# SPDX-License-Identifier: Apache-2.0
"""The devices of a host as the solver takes them, from Placement's data.

Devices and their places have numbers instead of names, in an order that
depends on what they are. So most hosts that look alike are equal views, and
what is computed for one is valid for all of them.
"""

import collections
import collections.abc
import dataclasses
import functools
import typing

from nova_accel.core import model
from nova_accel.core.placement import listing
from nova_accel.core.placement import rebuilt
from nova_accel.core.solver import arrange

_LEVELS = len(model.LEVELS)

#: All that tells a part of a host, or units, from others: sorts them.
_Shape = tuple[typing.Any, ...]
#: The shape of a device, its name and its parts of the host.
_Device = tuple[_Shape, str, tuple[int | str | None, ...]]
#: The numbers of the parts of a level.
_Numbers = dict[int | str, int]

# More than the hosts of most clouds.
_MAX_VIEWS = 1 << 13


@dataclasses.dataclass(frozen=True)
class View:
    """The units of a host, free or not, and its link domains.

    :param units: with the indexes of this tuple as names of their providers
    """

    units: tuple[arrange.AvailableUnits, ...]
    links: model.Links = model.Links()

    def without(self, taken: collections.abc.Mapping[str, int]) -> 'View':
        """Return the view after units by provider are taken."""
        return canonical([dataclasses.replace(
            units, free=units.free - taken.get(units.provider, 0))
            for units in self.units], self.links)

    def free(self, resource_class: str) -> int:
        """Return the number of free units of a class."""
        return sum(units.free for units in self.units
                   if units.resource_class == resource_class)


def of(host: listing.Host) -> View:
    """Return the view of a compute node."""
    return canonical([
        arrange.AvailableUnits(
            units.provider, units.resource_class, units.traits, units.free,
            rebuilt.place(device.properties, device.address),
            units.free + units.used)
        for device, units in host.units], rebuilt.links({
            device.address: device.properties for device in host.devices}))


@functools.lru_cache(maxsize=_MAX_VIEWS)
def of_classes(host: View, classes: frozenset[str]) -> View:
    """Return the view of the units of some classes only.

    Hosts that differ in other devices look alike then.
    """
    units = [each for each in host.units if each.resource_class in classes]
    return host if len(units) == len(host.units) else canonical(
        units, host.links)


def canonical(units: collections.abc.Iterable[arrange.AvailableUnits],
              links: model.Links) -> View:
    """Return the view of units, which may have any names."""
    devices: dict[str, list[arrange.AvailableUnits]] = {}
    for each in sorted(units, key=_kind):
        devices.setdefault(each.place.device, []).append(each)
    _shape, ordered = _ordered(
        [(_device_shape(name, found, links), name, found[0].place.parts)
         for name, found in devices.items()], 0)
    numbers = {name: str(number) for number, name in enumerate(ordered)}
    parts: list[_Numbers] = [{} for _level in model.LEVELS]
    renamed: list[arrange.AvailableUnits] = []
    for name in ordered:
        for each in devices[name]:
            renamed.append(dataclasses.replace(
                each, provider=str(len(renamed)),
                place=_place(each.place, parts, numbers)))
    return View(tuple(renamed), model.Links(
        _sets(links.partitions, numbers), _sets(links.islands, numbers)))


def _kind(units: arrange.AvailableUnits) -> _Shape:
    return (units.resource_class, sorted(units.traits), units.free,
            units.total)


def _device_shape(name: str,
                  units: collections.abc.Iterable[arrange.AvailableUnits],
                  links: model.Links) -> _Shape:
    """Return all that tells a device from others, without its name."""
    return [_kind(each) for each in units], *(
        sorted(len(members) for members in sets if name in members)
        for sets in (links.partitions, links.islands))


def _ordered(devices: list[_Device], depth: int) -> tuple[_Shape, list[str]]:
    """Return the shape of a part of a host, and its devices in order.

    :param depth: the level of the parts that are inside
    """
    if depth == _LEVELS:
        devices = sorted(devices)
        return (tuple(shape for shape, _name, _parts in devices),
                [name for _shape, name, _parts in devices])
    inside: dict[object, list[_Device]] = {}
    for device in devices:
        inside.setdefault(device[2][depth], []).append(device)
    # The order of parts that are alike does not matter.
    found = sorted(((part is None, *_ordered(members, depth + 1))
                    for part, members in inside.items()),
                   key=lambda part: part[:2])
    return (tuple(part[:2] for part in found),
            [name for part in found for name in part[2]])


def _place(place: model.Place, parts: list[_Numbers],
           numbers: collections.abc.Mapping[str, str]) -> model.Place:
    """Return a place with the number of each part in the order of use."""
    node, root, switch = (
        None if part is None else known.setdefault(part, len(known))
        for known, part in zip(parts, place.parts, strict=True))
    return model.Place(node, _text(root), _text(switch),
                       numbers[place.device])


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _sets(sets: collections.abc.Iterable[frozenset[str]],
          numbers: collections.abc.Mapping[str, str],
          ) -> tuple[frozenset[str], ...]:
    """Return link domains with the numbers of devices, in order.

    Devices without units join others, so they stay, with names of their own.
    """
    others = collections.defaultdict(list)
    for members in sets:
        known = sorted(numbers[name] for name in members if name in numbers)
        for name in members - numbers.keys():
            others[name].append(known)
    names = {**numbers, **{
        name: f'other {index}' for index, name in enumerate(sorted(
            others, key=lambda name: (sorted(others[name]), name)))}}
    return tuple(sorted(
        (frozenset(names[name] for name in members) for members in sets
         if not numbers.keys().isdisjoint(members)), key=sorted))

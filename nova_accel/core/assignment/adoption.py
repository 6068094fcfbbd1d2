# SPDX-License-Identifier: Apache-2.0
"""Devices that Nova or Cyborg assigned to a server, as if a profile had."""

import collections
import collections.abc
import dataclasses

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import allocations
from nova_accel.core.assignment import assigned_units
from nova_accel.core.placement import inventory
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs


@dataclasses.dataclass(frozen=True)
class Adoption:
    """How a server has its devices, once nova_accel has taken it over.

    :param hostdevs: with aliases of ours
    :param allocated: what is added to its allocations
    :param extra_specs: of its flavor
    """

    hostdevs: hostdev.Hostdevs
    allocated: allocations.Allocations
    extra_specs: collections.abc.Mapping[str, str]


def is_candidate(extra_specs: collections.abc.Mapping[str, str]) -> bool:
    """Whether Nova or Cyborg assigned devices for a flavor."""
    return flavor_specs.ALIAS_KEY in extra_specs or (
        flavor_specs.PROFILE_KEY in extra_specs
        and flavor_specs.EXPANDED_KEY not in extra_specs)


def plan(addresses: collections.abc.Collection[model.Address],
         extra_specs: collections.abc.Mapping[str, str],
         here: inventory.NodeInventory) -> Adoption:
    """Plan how to take over the devices of a server.

    Each device becomes a group of a profile, without affinity rules.

    :param addresses: all devices that it has by its flavor
    :param extra_specs: of its flavor, which may have such a profile already
    :raises errors.AccelError: if a device is not offered, only a part of a
        unit is among the devices, or the flavor asks for other devices
    """
    units = sorted(_units(addresses, here), key=lambda unit: (
        unit[0].region.resource_class, unit[1]))
    grants = [assigned_units.Grant(device_profile.group_name(index), *found)
              for index, found in enumerate(units)]
    counts = collections.Counter(item.region.resource_class
                                 for item, _unit in units)
    return Adoption(
        assigned_units.to_hostdevs(grants),
        {**assigned_units.unallocated(grants, {}),
         **{naming.class_provider_uuid(here.node.uuid, resource_class):
            {resource_class: count}
            for resource_class, count in counts.items()}},
        _extra_specs(units, counts, extra_specs))


def _extra_specs(units: collections.abc.Iterable[
                     tuple[inventory.Offered, model.Unit]],
                 counts: collections.abc.Mapping[str, int],
                 extra_specs: collections.abc.Mapping[str, str],
                 ) -> dict[str, str]:
    """Return the extra specs of a flavor that asks for these units."""
    if not is_candidate(extra_specs):
        if flavor_specs.amounts(extra_specs) != counts:
            raise errors.AssignmentError(
                'flavor', 'asks for other devices than the server has',
                'resize the server')
        return dict(extra_specs)
    name = extra_specs.get(flavor_specs.PROFILE_KEY,
                           extra_specs.get(flavor_specs.ALIAS_KEY, ''))
    profile = device_profile.Profile(name, tuple(device_profile.Group(
        {item.region.resource_class: 1}, {}, device_profile.OFF)
        for item, _unit in units))
    return flavor_specs.expand(profile, {
        key: value for key, value in extra_specs.items()
        if key != flavor_specs.ALIAS_KEY})


def _units(addresses: collections.abc.Iterable[model.Address],
           here: inventory.NodeInventory,
           ) -> set[tuple[inventory.Offered, model.Unit]]:
    """Return the units with these addresses, and their Regions."""
    wanted = set(addresses)
    found = {(item, unit) for item in here.offered
             if not item.region.mdevs and item.uuid in here.node.ours
             for unit in item.region.units if wanted.intersection(unit)}
    offered = {address for _item, unit in found for address in unit}
    if odd := sorted(wanted.symmetric_difference(offered)):
        raise errors.AssignmentError(
            f'device {odd[0]}', 'is not offered by nova_accel'
            if odd[0] in wanted else 'is offered only together with other '
            'devices of this server', 'name all devices of the server in '
            '[nova_accel] device_spec')
    return found


def foreign_providers(adopted: collections.abc.Iterable[model.Address],
                      names: collections.abc.Mapping[str, str],
                      node: inventory.Node) -> set[str]:
    """Return the providers that Nova or Cyborg have for these devices.

    :param names: all providers of the compute node, by uuid
    """
    theirs = tuple(f'_{address}' for address in adopted)
    return {uuid for uuid, name in names.items()
            if name.endswith(theirs) and uuid not in node.ours}

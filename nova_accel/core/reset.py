# SPDX-License-Identifier: Apache-2.0
"""How a unit can be reset without a reset of anything else.

Sources: Documentation/ABI/testing/sysfs-bus-pci (``reset``, ``reset_method``,
``reset_subordinate``).
"""

import collections.abc
import dataclasses

from nova_accel.core import model

Functions = collections.abc.Mapping[model.PciAddress, model.Function]

#: What an entry says of what cannot be reset: not given away, or all the same.
REQUIRED, IF_POSSIBLE = 'required', 'if_possible'


@dataclasses.dataclass(frozen=True)
class Way:
    """One reset, of a function or of all that is behind a bridge."""

    address: model.PciAddress
    behind: bool = False


def ways(unit: model.Unit, functions: Functions) -> tuple[Way, ...] | None:
    """The resets that together reset a unit, and nothing else.

    :param functions: all that there are
    :returns: None if there is no way
    """
    if all(functions[address].reset_methods != () for address in unit):
        return tuple(map(Way, unit))
    # A card of several functions, and none of them can be reset alone: the
    # kernel resets no bus for the sake of one function of several.
    ports = functions[unit[0]].location.ports
    bridge = functions.get(model.PciAddress.parse(ports[-1])
                           ) if ports else None
    if bridge and bridge.resets_below and (
            _behind(bridge, functions) == set(unit)):
        return (Way(bridge.address, behind=True),)
    return None


def remnants(unit: model.Unit, functions: Functions) -> tuple[Way, ...]:
    """What can be reset of a unit that cannot be as a whole."""
    return tuple(Way(address) for address in unit
                 if functions[address].reset_methods != ())


def regions(host: model.Host) -> dict[model.Unit, model.Region]:
    """The units that are reset before somebody else has them."""
    return {unit: region for device in host.devices
            for region in device.regions if region.resets
            for unit in region.units}


def units(host: model.Host) -> tuple[model.Unit, ...]:
    """The same, without what they are of."""
    return tuple(regions(host))


def has_host_driver(function: model.Function) -> bool:
    """Whether a driver of the host's would have it reset under its hands."""
    return bool(function.driver) and not function.vfio


def _behind(bridge, functions) -> set[model.PciAddress]:
    name = str(bridge.address)
    return {function.address for function in functions.values()
            if name in function.location.ports}

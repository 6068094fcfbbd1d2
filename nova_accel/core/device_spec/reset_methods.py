# SPDX-License-Identifier: Apache-2.0
"""Find the resets of a unit that do not reset anything else.

Sources: Documentation/ABI/testing/sysfs-bus-pci (``reset``, ``reset_method``,
``reset_subordinate``), drivers/pci/pci.c (``pci_reset_fn_methods``,
``pci_parent_bus_reset``).
"""

import collections.abc
import dataclasses

from nova_accel.core import model

Functions = collections.abc.Mapping[model.PciAddress, model.Function]

#: Values of an entry's ``reset``: whether a unit that cannot be reset is
#: refused or offered.
REQUIRED, IF_POSSIBLE = 'required', 'if_possible'
#: Or the only method to use.
FLR, BUS = 'flr', 'bus'
CHOICES = (REQUIRED, IF_POSSIBLE, FLR, BUS)

#: The kernel's methods to reset a function.
METHODS = frozenset({'device_specific', 'acpi', 'flr', 'af_flr', 'pm', 'bus',
                     'cxl_bus'})
_FLRS = frozenset({'flr', 'af_flr'})
_BUSES = frozenset({'bus', 'cxl_bus'})
#: From D3hot to D0: the vendor decides how much of a function this resets
#: (PCI Power Management Specification, No_Soft_Reset).
_PM = 'pm'


@dataclasses.dataclass(frozen=True)
class Way:
    """One reset, of a function or of all functions behind a bridge.

    :param address: the function or the bridge
    :param behind: whether the functions behind the bridge are reset
    :param methods: the methods that the kernel tries, in this order; () for
        its default
    """

    address: model.PciAddress
    behind: bool = False
    methods: tuple[str, ...] = ()


def ways(unit: model.Unit, functions: Functions, wanted: str = REQUIRED,
         ) -> tuple[Way, ...] | None:
    """Return the resets that together reset a unit, and nothing else.

    :param functions: all functions of the machine
    :param wanted: one of :data:`CHOICES`
    :returns: None if the unit cannot be reset
    """
    if wanted == FLR:
        return _all(_by_flr(functions[address]) for address in unit)
    bus = _bus(unit, functions)
    if wanted == BUS:
        return bus
    # A bus reset clears more than a function's own reset: in some GPUs also
    # the state of their firmware.
    also_bus = bus if bus and not bus[0].behind else ()
    each = _all(_alone(functions[address], bool(also_bus)) for address in unit)
    return each + also_bus if each else bus


def _all(found) -> tuple[Way, ...] | None:
    each = tuple(found)
    return each if all(each) else None


def _by_flr(function) -> Way | None:
    methods = tuple(method for method in function.reset_methods or ()
                    if method in _FLRS)
    return Way(function.address, methods=methods) if methods else None


def _alone(function, has_bus: bool) -> Way | None:
    """Return the reset of a function itself, None if it has no full reset.

    :param has_bus: whether the kernel may try a bus reset if that fails
    """
    known = function.reset_methods
    if known is None:
        return Way(function.address)
    if not METHODS.difference(_BUSES, {_PM}).intersection(known):
        return None
    return Way(function.address, methods=tuple(
        method for method in known if method != _PM
        and (has_bus or method not in _BUSES)) if _PM in known else ())


def _bus(unit, functions) -> tuple[Way, ...] | None:
    """Return the reset of the unit's bus, None if others are on it."""
    ports = functions[unit[0]].location.ports
    if not ports or _behind(ports[-1], functions) != set(unit):
        return None
    methods = tuple(method for method in functions[unit[0]].reset_methods or ()
                    if method in _BUSES)
    if len(unit) == 1 and methods:
        return (Way(unit[0], methods=methods),)
    # The kernel does not reset a bus with several functions for one of them.
    bridge = functions.get(model.PciAddress.parse(ports[-1]))
    return (Way(bridge.address, behind=True),) if (
        bridge and bridge.resets_below) else None


def why_not_resettable(unit: model.Unit, functions: Functions, wanted: str,
             ) -> tuple[str, str]:
    """Return why a unit cannot be reset, and the remedy.

    :param wanted: as for :func:`ways`
    """
    if wanted in (FLR, BUS):
        return (f'it cannot be reset by "{wanted}" alone, as its entry says',
                'see its reset_method in sysfs (Linux 5.15), and write '
                'another "reset" in its entry')
    if any(functions[address].reset_methods == (_PM,) for address in unit):
        return ('its only reset is to switch it to sleep and on again ("pm"), '
                'which may not clear it', 'write "reset": "if_possible" in '
                'its entry if that is acceptable')
    return ('it cannot be reset by itself, and would keep what one server '
            'leaves in it for the next',
            'name all functions of its slot in one entry, or write "reset": '
            '"if_possible" in its entry if that is acceptable')


def partial_resets(unit: model.Unit, functions: Functions) -> tuple[Way, ...]:
    """Return the possible resets of a unit that cannot be reset wholly."""
    return tuple(Way(address) for address in unit
                 if functions[address].reset_methods != ())


def regions(host: model.Host) -> dict[model.Unit, model.Region]:
    """Return the units that are reset between servers, with their Region."""
    return {unit: region for device in host.devices
            for region in device.regions if region.reset
            for unit in region.units}


def units(host: model.Host) -> tuple[model.Unit, ...]:
    """Return the units that are reset between servers."""
    return tuple(regions(host))


def has_host_driver(function: model.Function) -> bool:
    """Whether a driver of the host is bound to a function."""
    return bool(function.driver) and not function.vfio


def _behind(bridge: str, functions) -> set[model.PciAddress]:
    """Return the functions behind a bridge."""
    return {function.address for function in functions.values()
            if bridge in function.location.ports}

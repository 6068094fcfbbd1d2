# SPDX-License-Identifier: Apache-2.0
"""How a unit can be reset without a reset of anything else.

Sources: Documentation/ABI/testing/sysfs-bus-pci (``reset``, ``reset_method``,
``reset_subordinate``), drivers/pci/pci.c (``pci_reset_fn_methods``,
``pci_parent_bus_reset``).
"""

import collections.abc
import dataclasses

from nova_accel.core import model

Functions = collections.abc.Mapping[model.PciAddress, model.Function]

#: What an entry says of what cannot be reset: not given away, or all the same.
REQUIRED, IF_POSSIBLE = 'required', 'if_possible'
#: Or in which way it has to be reset.
FLR, BUS = 'flr', 'bus'
CHOICES = (REQUIRED, IF_POSSIBLE, FLR, BUS)

#: The kernel's methods to reset a function.
METHODS = frozenset({'device_specific', 'acpi', 'flr', 'af_flr', 'pm', 'bus',
                     'cxl_bus'})
_FLRS = frozenset({'flr', 'af_flr'})
_BUSES = frozenset({'bus', 'cxl_bus'})
#: From D3hot to D0: how much of a function that resets is up to its vendor
#: (PCI Power Management Specification, No_Soft_Reset).
_PM = 'pm'


@dataclasses.dataclass(frozen=True)
class Way:
    """One reset, of a function or of all that is behind a bridge.

    :param methods: which the kernel is to try, in this order; () for those
        that it would try anyway
    """

    address: model.PciAddress
    behind: bool = False
    methods: tuple[str, ...] = ()


def ways(unit: model.Unit, functions: Functions, wanted: str = REQUIRED,
         ) -> tuple[Way, ...] | None:
    """The resets that together reset a unit, and nothing else.

    :param functions: all that there are
    :param wanted: one of :data:`CHOICES`
    :returns: None if there is no way
    """
    if wanted == FLR:
        return _all(_by_flr(functions[address]) for address in unit)
    bus = _bus(unit, functions)
    if wanted == BUS:
        return bus
    # What a function keeps when it alone is reset, it can lose with its bus:
    # some GPUs the state of their firmware.
    as_well = bus if bus and not bus[0].behind else ()
    each = _all(_alone(functions[address], bool(as_well)) for address in unit)
    return each + as_well if each else bus


def _all(found) -> tuple[Way, ...] | None:
    each = tuple(found)
    return each if all(each) else None


def _by_flr(function) -> Way | None:
    methods = tuple(method for method in function.reset_methods or ()
                    if method in _FLRS)
    return Way(function.address, methods=methods) if methods else None


def _alone(function, has_bus: bool) -> Way | None:
    """A reset of a function itself, if it has one that clears it.

    :param has_bus: whether the kernel may go on to the bus if that fails
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
    """A reset of the bus that a unit has for itself."""
    ports = functions[unit[0]].location.ports
    if not ports or _behind(ports[-1], functions) != set(unit):
        return None
    methods = tuple(method for method in functions[unit[0]].reset_methods or ()
                    if method in _BUSES)
    if len(unit) == 1 and methods:
        return (Way(unit[0], methods=methods),)
    # The kernel resets no bus for the sake of one function of several.
    bridge = functions.get(model.PciAddress.parse(ports[-1]))
    return (Way(bridge.address, behind=True),) if (
        bridge and bridge.resets_below) else None


def why_none(unit: model.Unit, functions: Functions, wanted: str,
             ) -> tuple[str, str]:
    """Why there is no way to reset a unit, and the remedy.

    :param wanted: as for :func:`ways`
    """
    if wanted in (FLR, BUS):
        return (f'it cannot be reset by "{wanted}" alone, as its entry says',
                'see its reset_method in sysfs (Linux 5.15), and write '
                'another "reset" in its entry')
    if any(functions[address].reset_methods == (_PM,) for address in unit):
        return ('all that can be done to it is to switch it to sleep and on '
                'again ("pm"), which may leave it as it is', 'write "reset": '
                '"if_possible" in its entry if that is no harm')
    return ('it cannot be reset by itself, and would keep what one server '
            'leaves in it for the next',
            'name all functions of its slot in one entry, or write "reset": '
            '"if_possible" in its entry if that is no harm')


def remnants(unit: model.Unit, functions: Functions) -> tuple[Way, ...]:
    """What can be reset of a unit that cannot be as a whole."""
    return tuple(Way(address) for address in unit
                 if functions[address].reset_methods != ())


def regions(host: model.Host) -> dict[model.Unit, model.Region]:
    """The units that are reset before somebody else has them."""
    return {unit: region for device in host.devices
            for region in device.regions if region.reset
            for unit in region.units}


def units(host: model.Host) -> tuple[model.Unit, ...]:
    """The same, without what they are of."""
    return tuple(regions(host))


def has_host_driver(function: model.Function) -> bool:
    """Whether a driver of the host's would have it reset under its hands."""
    return bool(function.driver) and not function.vfio


def _behind(bridge: str, functions) -> set[model.PciAddress]:
    return {function.address for function in functions.values()
            if bridge in function.location.ports}

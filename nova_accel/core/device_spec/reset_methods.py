# SPDX-License-Identifier: Apache-2.0
"""Find the resets of a unit that do not reset anything else.

Sources: Documentation/ABI/testing/sysfs-bus-pci (``reset``, ``reset_method``,
``reset_subordinate``), drivers/pci/pci.c (``pci_reset_fn_methods``,
``pci_parent_bus_reset``), drivers/vfio/pci/vfio_pci_core.c
(``vfio_pci_ioctl_pci_hot_reset``).
"""

import collections
import collections.abc
import dataclasses
import itertools
import typing

from nova_accel.core import model

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

#: How a unit is reset if sysfs does not show it.
UNKNOWN = "the kernel's choice"

_NO_RESET = ('it cannot be reset by itself, and would keep what one server '
             'leaves in it for the next')
_IF_ACCEPTABLE = ('write "reset": "if_possible" in its entry if that is '
                  'acceptable, because its servers belong to one owner')
_WITHOUT_VFIO = {
    model.BusReset.NO_VFIO: (
        'vfio-pci, which resets all functions of a slot together, is not '
        'loaded', 'load vfio-pci now, and at each boot of this host '
        '(modules-load.d)'),
    model.BusReset.NO_FILES: (
        'vfio, which resets all functions of a slot together, can only be '
        'used in a kernel with CONFIG_VFIO_GROUP or CONFIG_VFIO_DEVICE_CDEV',
        'boot such a kernel, or Linux 6.13, which has reset_subordinate'),
}


@dataclasses.dataclass(frozen=True)
class Way:
    """One reset, of a function or of all functions behind a bridge.

    :param address: the function or the bridge
    :param resets: the functions that it resets
    :param behind: how the functions behind the bridge are reset, None for the
        reset of one function
    :param methods: the methods that the kernel tries, in this order; () for
        its default
    """

    address: model.Address
    resets: model.Unit
    behind: model.BusReset | None = None
    methods: tuple[str, ...] = ()


Ways = tuple[Way, ...]
_Found = typing.TypeVar('_Found')


def ways(unit: model.Unit, functions: model.Functions,
         wanted: str = REQUIRED) -> Ways | None:
    """Return the resets that together reset a unit, and nothing else.

    :param functions: all functions of the machine
    :param wanted: one of :data:`CHOICES`
    :returns: None if the unit cannot be reset
    """
    if wanted == FLR:
        return _all(_by_flr(functions[address]) for address in unit)
    found = _all(_ways_on_bus(part, functions, wanted)
                 for part in _by_bus(unit, functions))
    return tuple(itertools.chain(*found)) if found else None


def _by_bus(unit: model.Unit,
            functions: model.Functions) -> list[model.Unit]:
    """Return the parts of a unit that are behind the same bridge."""
    parts = collections.defaultdict(list)
    for address in unit:
        parts[functions[address].location.ports].append(address)
    return [*map(tuple, parts.values())]


def _ways_on_bus(unit: model.Unit, functions: model.Functions, wanted: str,
                 ) -> Ways | None:
    bus = _bus(unit, functions)
    if wanted == BUS:
        return bus
    # A bus reset clears more than a function's own reset: in some GPUs also
    # the state of their firmware.
    also_bus = bus if bus and not bus[0].behind else ()
    each = _all(_alone(functions[address], bool(also_bus)) for address in unit)
    return each + also_bus if each else bus


def _all(found: collections.abc.Iterable[_Found | None],
         ) -> tuple[_Found, ...] | None:
    """Return what was found, None if a part of it was not."""
    each = tuple(found)
    there = tuple(one for one in each if one is not None)
    return there if len(there) == len(each) else None


def _one(function: model.Function, methods: tuple[str, ...] = ()) -> Way:
    return Way(function.address, (function.address,), methods=methods)


def _by_flr(function: model.Function) -> Way | None:
    methods = tuple(method for method in function.reset_methods or ()
                    if method in _FLRS)
    return _one(function, methods) if methods else None


def _alone(function: model.Function, has_bus: bool) -> Way | None:
    """Return the reset of a function itself, None if it has no full reset.

    :param has_bus: whether the kernel may try a bus reset if that fails
    """
    known = function.reset_methods
    if known is None:
        return _one(function)
    if not METHODS.difference(_BUSES, {_PM}).intersection(known):
        return None
    return _one(function, tuple(
        method for method in known if method != _PM
        and (has_bus or method not in _BUSES)) if _PM in known else ())


def _bus(unit: model.Unit, functions: model.Functions) -> Ways | None:
    """Return the reset of the unit's bus, None if others are on it."""
    if _others_behind(unit, functions) != set():
        return None
    methods = tuple(method for method in functions[unit[0]].reset_methods or ()
                    if method in _BUSES)
    if len(unit) == 1 and methods:
        return (_one(functions[unit[0]], methods),)
    # The kernel does not reset a bus with several functions for one of them.
    bridge = _bridge(unit, functions)
    if not bridge:
        return None
    how = bridge.resets_below
    # vfio can reset no bus with one function if the kernel cannot.
    return (Way(bridge.address, unit, how),) if (
        how is model.BusReset.SUBORDINATE
        or how is model.BusReset.HOT_RESET and len(unit) > 1) else None


def _bridge(unit: model.Unit,
            functions: model.Functions) -> model.Function | None:
    """Return the bridge directly above a unit, None on a root bus."""
    ports = functions[unit[0]].location.ports
    return functions.get(model.PciAddress.parse(ports[-1])) if ports else None


def _others_behind(unit: model.Unit, functions: model.Functions,
                   ) -> set[model.Address] | None:
    """Return the other functions behind the bridge above functions of a bus.

    :returns: None if they are on a root bus
    """
    ports = functions[unit[0]].location.ports
    return {function.address for function in functions.values()
            if ports[-1] in function.location.ports
            }.difference(unit) if ports else None


def names(ways: collections.abc.Iterable[Way],
          functions: model.Functions) -> list[str]:
    """Return the reset that the kernel tries first for each way."""
    return [way.behind.value if way.behind else next(iter(
        way.methods or functions[way.address].reset_methods or ()), UNKNOWN)
        for way in ways]


def describe(ways: collections.abc.Iterable[Way],
             functions: model.Functions) -> str:
    """Return in words what resets a unit: ``flr, then bus``."""
    return ', then '.join(dict.fromkeys(names(ways, functions)))


def describe_all(host: model.Host) -> dict[model.Unit, str]:
    """Return in words what resets each unit that nova_accel resets."""
    functions = {function.address: function for function in host.functions}
    return {unit: describe(ways(unit, functions, region.reset) or (),
                           functions) or 'nothing'
            for unit, region in regions(host).items()}


def why_not_resettable(unit: model.Unit, functions: model.Functions,
                       wanted: str) -> tuple[str, str]:
    """Return why a unit cannot be reset, and the remedy.

    :param wanted: as for :func:`ways`
    """
    if wanted in (FLR, BUS):
        return (f'it cannot be reset by "{wanted}" alone, as its entry says',
                'see its reset_method in sysfs (Linux 5.15), and write '
                'another "reset" in its entry')
    part = next(part for part in _by_bus(unit, functions)
                if not _ways_on_bus(part, functions, wanted))
    why, remedy = _why_not_by_bus(part, functions)
    if why:
        return f'{_NO_RESET}: {why}', remedy
    if any(functions[address].reset_methods == (_PM,) for address in part):
        return ('its only reset is to switch it to sleep and on again ("pm"), '
                'which may not clear it', _IF_ACCEPTABLE)
    return _NO_RESET, _IF_ACCEPTABLE


def _why_not_by_bus(unit: model.Unit,
                    functions: model.Functions) -> tuple[str, str]:
    """Return why functions are not reset with their bus, and the remedy.

    :returns: '' twice if the kernel has no such reset
    """
    others = _others_behind(unit, functions)
    if others:
        other = functions[min(others)]
        return (f'a reset of its bus would also reset {other.address} '
                f'({other.ids}), which is not assigned with it',
                _IF_ACCEPTABLE)
    bridge = _bridge(unit, functions) if len(unit) > 1 else None
    how = bridge.resets_below if bridge else None
    return _WITHOUT_VFIO.get(how, ('', '')) if how else ('', '')


def partial_resets(unit: model.Unit, functions: model.Functions) -> Ways:
    """Return the possible resets of a unit that cannot be reset wholly."""
    return tuple(_one(functions[address]) for address in unit
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

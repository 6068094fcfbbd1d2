# SPDX-License-Identifier: Apache-2.0
"""Reset devices between two servers, and check that the reset worked.

vfio resets a function when a guest opens it and when the guest closes it, but
ignores a failure (drivers/vfio/pci: vfio_pci_core_enable,
vfio_pci_core_disable). libvirt leaves resets to vfio. So nova_accel resets
each function itself and checks the outcome.

A function with a vfio driver or without a driver is reset as soon as no server
holds it. A function with another driver of the host's is reset only when a
server is about to start with it, after it was unbound from that driver, as
libvirt would do a moment later: a reset or an unbind at another time could
disturb the driver.
"""

import collections.abc
import contextlib
import dataclasses
import threading
import time

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import reset_methods
from nova_accel.host import operate
from nova_accel.host import pci
from nova_accel.host import tree as trees

_REMEDY = ('the reset is tried again; if it keeps failing, read the kernel '
           'log, remove the device and rescan its bus, or power the host off '
           'and on')
_REMEDY_DRIVER = ('unbind {driver}, which was bound again, or restart '
                  'nova-compute; then the reset is tried again')


@dataclasses.dataclass(frozen=True)
class _Failure:
    address: model.Address
    reason: str
    at: float


class Resets:
    """Remember which units are reset since their last use, and which failed.

    This is kept in memory only: after a restart no unit counts as reset.

    :param clock: returns seconds
    """

    def __init__(self, clock: collections.abc.Callable[[], float] = (
            lambda: time.monotonic())) -> None:
        self._clock = clock
        #: With what their entries said of resets.
        self._clean: dict[model.Unit, str] = {}
        self._failed: dict[model.Unit, _Failure] = {}
        self._lock = threading.Lock()

    def withheld(self, functions: collections.abc.Iterable[model.Function],
                 ) -> dict[model.Address, model.Withheld]:
        """Return the functions whose reset failed, with reason and remedy."""
        refused = self.refused()
        return {function.address: model.Withheld(
            refused[function.address], _remedy(function),
            model.WithheldState.RESET_FAILED)
            for function in functions if function.address in refused}

    def refused(self) -> dict[model.Address, str]:
        """Return the reason for each function whose reset failed."""
        with self._lock:
            return {failure.address: failure.reason
                    for failure in self._failed.values()}

    def used(self, addresses: collections.abc.Iterable[model.Address],
             ) -> None:
        """Mark addresses as used: a guest holds them or is about to start."""
        used = set(addresses)
        with self._lock:
            self._clean = {unit: how for unit, how in self._clean.items()
                           if used.isdisjoint(unit)}

    def forget(self, host: model.Host) -> None:
        """Forget units that do not exist any more or are not offered.

        Units whose entry says something else of resets now are reset again.

        :param host: including units that are refused only for their reset
        """
        units = reset_methods.regions(host)
        with self._lock:
            self._clean = {unit: how for unit, how in self._clean.items()
                           if unit in units and how == units[unit].reset}
            self._failed = {unit: failure for unit, failure
                            in self._failed.items() if unit in units}

    def due(self, host: model.Host,
            held: collections.abc.Container[model.Address],
            patience: float) -> list[model.Unit]:
        """Return the units to reset now.

        :param host: as for :meth:`forget`
        :param held: the addresses that domains hold
        :param patience: seconds between a failed reset and the next try
        """
        now = self._clock()
        functions = {function.address: function
                     for function in host.functions}
        with self._lock:
            return [unit for unit in reset_methods.units(host)
                    if unit not in self._clean
                    and not any(address in held for address in unit)
                    and not (unit in self._failed
                             and now - self._failed[unit].at < patience)
                    and not any(
                        reset_methods.has_host_driver(functions[address])
                        for address in unit)]

    def reset(self, tree: trees.Tree, host: model.Host,
              unit: model.Unit) -> bool:
        """Reset a unit that no server holds, unless it is reset already.

        :param host: with the current state of the unit's functions
        :returns: whether a server may get it
        """
        how = reset_methods.regions(host)[unit].reset
        with self._lock:
            if self._clean.get(unit) == how:
                return True
        failure = _try(tree, host, unit)
        with self._lock:
            if failure:
                self._failed[unit] = _Failure(*failure, self._clock())
            else:
                self._failed.pop(unit, None)
                self._clean[unit] = how
        return not failure


def _remedy(function: model.Function) -> str:
    """Return what the operator can do about a failed reset."""
    if reset_methods.has_host_driver(function):
        return _REMEDY_DRIVER.format(driver=function.driver)
    return _REMEDY


def _try(tree: trees.Tree, host: model.Host, unit: model.Unit,
         ) -> tuple[model.Address, str] | None:
    """Reset a unit; return the function that failed and why, or None."""
    functions = {function.address: function for function in host.functions}
    region = reset_methods.regions(host)[unit]
    if not isinstance(tree, trees.Directory):
        # A recording cannot be reset.
        return None
    ways = reset_methods.ways(unit, functions, region.reset)
    if ways is None:
        # Without a way to reset, it is offered only if its entry permits it.
        ways = reset_methods.partial_resets(unit, functions)
    for way in ways:
        if _is_unknown(tree, way, functions[way.address]):
            continue
        try:
            if way.behind:
                _check_alone(tree, way)
            # vfio needs their whole IOMMU groups without drivers of the host.
            for address in (unit if way.behind is model.BusReset.HOT_RESET
                            else way.resets):
                _unbind(tree, functions[address])
            _reset(tree, way, functions[way.address])
            _check_functions(tree, way.resets)
        except Exception as error:
            # After any error the unit must not go to a server.
            return way.resets[0], f'its reset failed: {_why(error)}'
    return _rebind(tree, functions, unit) if region.needs_driver else None


def _rebind(tree: trees.Tree, functions: model.Functions, unit: model.Unit,
            ) -> tuple[model.Address, str] | None:
    """Bind the host's drivers again, which make the unit ready for guests.

    :returns: the function that no driver took and why, or None
    """
    for address in unit:
        if pci.has_driver(tree, address):
            continue
        why = ''
        try:
            operate.on(tree).probe_driver(str(address))
        except Exception as error:
            why = f': {_why(error)}'
        # The kernel reports an error only if a driver was found and failed:
        # check that a driver is bound.
        if (reset_methods.has_host_driver(functions[address])
                and not pci.has_driver(tree, address)):
            return address, f'it was reset, but no driver took it again{why}'
    return None


def _why(error: Exception) -> str:
    return str(getattr(error, 'strerror', None) or error)


def _is_unknown(tree: trees.Tree, way: reset_methods.Way,
                function: model.Function) -> bool:
    """Whether a tree does not tell of resets."""
    return (not way.behind and function.reset_methods is None
            and not pci.can_reset(tree, function.address))


def _check_alone(tree: trees.Tree, way: reset_methods.Way) -> None:
    """Check that nothing else is behind the bridge of a way.

    Read sysfs again: a function may have appeared since the Host was read.
    """
    others = pci.functions_behind(tree, way.address).difference(way.resets)
    if others:
        raise errors.DeviceError(
            f'bridge {way.address}', f'{min(others)} is behind it as well')


def _check_functions(tree: trees.Directory,
                     functions: collections.abc.Iterable[model.Address],
                     ) -> None:
    """Check that functions are usable after a reset."""
    for address in functions:
        if not pci.is_alive(tree, address):
            # Some methods do not wait for the function and report success.
            raise errors.DeviceError(f'device {address}', 'it does not answer')
        if pci.has_lost_addresses(tree, address):
            raise errors.DeviceError(
                f'device {address}', 'its BARs lost their addresses in this '
                'reset or an earlier one')


def _unbind(tree: trees.Tree, function: model.Function) -> None:
    """Unbind a function from a driver of the host's."""
    if reset_methods.has_host_driver(function):
        # A second reset of the function finds it unbound already.
        if pci.has_driver(tree, function.address):
            operate.on(tree).unbind_driver(str(function.address))
    elif function.vfio and pci.is_enabled(tree, function.address):
        # A reset would disturb that program, and no guest could open it.
        raise errors.DeviceError(f'device {function.address}', 'a program '
                                 'has it open that is not a libvirt domain')


def _reset(tree: trees.Tree, way: reset_methods.Way,
           function: model.Function) -> None:
    if way.behind is model.BusReset.SUBORDINATE:
        operate.on(tree).reset_behind(str(way.address))
        return
    if way.behind is model.BusReset.HOT_RESET:
        operate.on(tree).reset_by_vfio([*map(str, way.resets)])
        return
    with _pinned(tree, way, function):
        operate.on(tree).reset_function(str(way.address))


@contextlib.contextmanager
def _pinned(tree: trees.Tree, way: reset_methods.Way,
            function: model.Function) -> collections.abc.Iterator[None]:
    """Restrict the kernel to the methods of a way while it resets."""
    if not way.methods or way.methods == function.reset_methods:
        yield
        return
    machine, address = operate.on(tree), str(way.address)
    machine.set_reset_methods(address, way.methods)
    try:
        yield
    finally:
        # Restore the methods that the operator or the kernel had chosen. The
        # kernel may refuse its own list: it was made before all functions of
        # the slot were known.
        try:
            machine.set_reset_methods(address, function.reset_methods or ())
        except (OSError, ValueError):
            machine.set_reset_methods(address, ())

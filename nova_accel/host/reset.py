# SPDX-License-Identifier: Apache-2.0
"""Nobody gets what somebody else has left in a device.

vfio resets a function when a guest opens and when it closes it, and goes on
if that fails (drivers/vfio/pci: vfio_pci_core_enable, vfio_pci_core_disable);
libvirt leaves it to vfio. So we do it, and look at what comes of it.

A function that no driver or one of vfio's has is reset as soon as nobody has
it. Under the hands of a driver of the host's a reset does harm, and to take
the function from that driver in passing could do as much: so such a function
is reset when a guest is about to have it, and its driver, which libvirt would
take it from a moment later, has let go.
"""

import collections.abc
import contextlib
import dataclasses
import threading
import time

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import reset_methods
from nova_accel.host import operations
from nova_accel.host import pci
from nova_accel.host import tree as trees

_REMEDY = ('it is tried again; if it stays so, look at the log of the kernel, '
           'remove the device and scan its bus again, or switch the host off '
           'and on')
_REMEDY_DRIVER = ('unbind {driver}, which somebody has bound again, or '
                  'restart nova-compute, and it is tried again')


@dataclasses.dataclass(frozen=True)
class _Failure:
    address: model.PciAddress
    reason: str
    at: float


class Resets:
    """What was reset since somebody had it, and what could not be.

    It is known only here: after a restart nothing counts as reset.

    :param clock: seconds
    """

    def __init__(self, clock: collections.abc.Callable[[], float] = (
            lambda: time.monotonic())) -> None:
        self._clock = clock
        self._clean: set[model.Unit] = set()
        self._failed: dict[model.Unit, _Failure] = {}
        self._lock = threading.Lock()

    def withheld(self, functions: collections.abc.Iterable[model.Function],
                 ) -> dict[model.PciAddress, model.Withheld]:
        """Those of the functions whose reset failed."""
        refused = self.refused()
        return {function.address: model.Withheld(
            refused[function.address], _remedy(function))
            for function in functions if function.address in refused}

    def refused(self) -> dict[model.PciAddress, str]:
        """Why nobody may have a function, of those whose reset failed."""
        with self._lock:
            return {failure.address: failure.reason
                    for failure in self._failed.values()}

    def used(self, addresses: collections.abc.Iterable[model.Address],
             ) -> None:
        """Somebody has these, or is about to."""
        used = set(addresses)
        with self._lock:
            self._clean = {unit for unit in self._clean
                           if used.isdisjoint(unit)}

    def forget(self, host: model.Host) -> None:
        """Leave what is not there any more, or not ours to give.

        :param host: with what is refused only for its reset
        """
        units = set(reset_methods.units(host))
        with self._lock:
            self._clean &= units
            self._failed = {unit: failure for unit, failure
                            in self._failed.items() if unit in units}

    def due(self, host: model.Host,
            held: collections.abc.Container[model.Address],
            patience: float) -> list[model.Unit]:
        """What is to be reset in passing.

        :param host: as for :meth:`forget`
        :param held: what somebody has
        :param patience: seconds from the end of a reset that failed until it
            is tried again
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
                    and not any(reset_methods.has_host_driver(
                        functions[address])
                                for address in unit)]

    def reset(self, tree: trees.Tree, host: model.Host,
              unit: model.Unit) -> bool:
        """Reset a unit that nobody has, unless it is clean.

        :param host: with the unit's functions as they are
        :returns: whether somebody may have it
        """
        with self._lock:
            if unit in self._clean:
                return True
        refused = _try(tree, host, unit)
        with self._lock:
            if refused:
                self._failed[unit] = _Failure(*refused, self._clock())
            else:
                self._failed.pop(unit, None)
                self._clean.add(unit)
        return not refused


def _remedy(function: model.Function) -> str:
    """What a person can do about a function whose reset failed."""
    if reset_methods.has_host_driver(function):
        return _REMEDY_DRIVER.format(driver=function.driver)
    return _REMEDY


def _try(tree, host, unit) -> tuple[model.PciAddress, str] | None:
    """Which function cannot be reset, and why."""
    functions = {function.address: function for function in host.functions}
    region = reset_methods.regions(host)[unit]
    ways = reset_methods.ways(unit, functions, region.reset)
    if ways is None:
        # It is offered only where its entry says so.
        ways = reset_methods.remnants(unit, functions)
    for way in ways:
        if _is_silent(tree, way, functions[way.address]):
            continue
        reached = unit if way.behind else (way.address,)
        try:
            if way.behind:
                _check_alone(tree, way.address, unit)
            for address in reached:
                _let_go(tree, functions[address])
            _reset(tree, way, functions[way.address])
            _check_addresses(tree, reached)
        except Exception as error:
            # Whatever it is, nobody may have it.
            return reached[0], f'its reset failed: {_why(error)}'
    return _give_back(tree, functions, unit) if region.needs_driver else None


def _give_back(tree, functions, unit) -> tuple[model.PciAddress, str] | None:
    """Have the host's drivers take what they are to make ready."""
    if not isinstance(tree, trees.Directory):
        return None
    for address in unit:
        if pci.has_driver(tree, address):
            continue
        why = ''
        try:
            operations.on(tree).probe_driver(str(address))
        except Exception as error:
            why = f': {_why(error)}'
        # The kernel tells of no driver only where one was found and failed.
        if (reset_methods.has_host_driver(functions[address])
                and not pci.has_driver(tree, address)):
            return address, f'it was reset, and no driver took it again{why}'
    return None


def _why(error) -> str:
    return str(getattr(error, 'strerror', None) or error)


def _is_silent(tree, way, function) -> bool:
    """A recording, or what was laid out from one that has no resets."""
    return not isinstance(tree, trees.Directory) or (
        not way.behind and function.reset_methods is None
        and not pci.can_reset(tree, function.address))


def _check_alone(tree, bridge, unit) -> None:
    """Make sure that nothing else is behind a bridge, now and unread."""
    others = pci.behind(tree, bridge).difference(unit)
    if others:
        raise errors.DeviceError(
            f'bridge {bridge}', f'{min(others)} is behind it as well')


def _check_addresses(tree, functions) -> None:
    """Make sure that a reset was not one too late: nobody could use it."""
    for address in functions:
        if not pci.answers(tree, address):
            # Some ways to reset wait for nothing, and end well in any case.
            raise errors.DeviceError(f'device {address}', 'it does not answer')
        if pci.has_lost_addresses(tree, address):
            raise errors.DeviceError(
                f'device {address}', 'its BARs have lost their addresses, in '
                'this or an earlier one')


def _let_go(tree, function) -> None:
    """Take a function from a driver of the host's."""
    if reset_methods.has_host_driver(function):
        # It has let go where this is the second of two resets.
        if pci.has_driver(tree, function.address):
            operations.on(tree).unbind_driver(str(function.address))
    elif function.vfio and pci.is_enabled(tree, function.address):
        # A guest would not get it, and its user would be surprised.
        raise errors.DeviceError(f'device {function.address}', 'a program '
                                 'has it open that is no domain of libvirt')


def _reset(tree, way, function) -> None:
    if way.behind:
        operations.on(tree).reset_behind(str(way.address))
        return
    with _pinned(tree, way, function):
        operations.on(tree).reset_function(str(way.address))


@contextlib.contextmanager
def _pinned(tree, way, function):
    """Have the kernel try no other method, so that it is known what it did."""
    if not way.methods or way.methods == function.reset_methods:
        yield
        return
    operate, address = operations.on(tree), str(way.address)
    operate.set_reset_methods(address, way.methods)
    try:
        yield
    finally:
        # It is somebody's choice, else the kernel's. The kernel also names
        # what it found before it knew all functions of the slot, and does not
        # take that again.
        try:
            operate.set_reset_methods(address, function.reset_methods)
        except (OSError, ValueError):
            operate.set_reset_methods(address, ())

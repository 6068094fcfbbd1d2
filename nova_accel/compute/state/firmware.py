# SPDX-License-Identifier: Apache-2.0
"""Withholds the devices whose firmware has changed."""

import collections.abc
import threading

from nova_accel.core import model
from nova_accel.core.device_spec import cleaner
from nova_accel.core.placement import firmware
from nova_accel.core.placement import inventory

_CHANGED_REMEDY = (
    'servers that hold it keep it; if the new firmware is right, run '
    '"openstack accel device set --accept-firmware"')
_UNKNOWN_REMEDY = ('mend the command in [nova_accel] firmware_probe, or what '
                   'it complains about; it is run again after check_interval')


class Firmware:
    """The firmware of this host's devices, and what Placement knows of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The compared physical functions, with the Devices that they are of.
        self._devices: dict[model.Address, model.PciAddress] = {}
        #: Names of the commands that tell the firmware of functions: one or
        #: more of each Device.
        self.probes: dict[model.Address, str] = {}
        #: By function and command what it has printed, or '' and why there is
        #: nothing.
        self._probed: dict[tuple[model.Address, str], tuple[str, str]] = {}
        self._saved: firmware.Known = frozenset()
        self._known: firmware.Known = frozenset()

    def update(self, here: inventory.NodeInventory) -> bool:
        """Take over what the compute node offers, and what Placement knows.

        :returns: whether other functions are withheld now
        """
        with self._lock:
            before = self._withheld()
            self._devices, self.probes = _compared(here)
            if here.node.known_firmware != self._saved:
                # An operator has accepted a change, for example.
                self._saved = self._known = here.node.known_firmware
        return self.withheld(here.host.functions) != before

    def withheld(self, functions: collections.abc.Iterable[model.Function],
                 ) -> dict[model.Address, model.Withheld]:
        """Return the cards whose firmware has changed or cannot be probed.

        A version that sysfs does not show at present is not compared.
        """
        with self._lock:
            self._known = firmware.after(self._known, (
                firmware.Version(function.address, source,
                                 firmware.encode(text),
                                 self._devices[function.address])
                for function in functions
                if isinstance(function.address, model.PciAddress)
                and function.address in self._devices
                for source, text in self._shown(function)))
            return self._withheld()

    def probed(self, device: model.Address, probe: str, text: str,
               failure: str = '') -> None:
        """Take over what a command has printed about a function.

        :param probe: the name of the command
        :param failure: why there is nothing
        """
        with self._lock:
            self._probed[device, probe] = text, failure

    def new_traits(self) -> list[str]:
        """Return the traits of what Placement does not know yet."""
        return [version.trait for version in self._known - self._saved]

    def _shown(self, function) -> collections.abc.Iterator[tuple[str, str]]:
        """Yield the versions of a function, by source."""
        yield from function.firmware
        probe = self.probes.get(function.address, '')
        text, _failure = self._probed.get((function.address, probe), ('', ''))
        if text:
            yield firmware.of_probe(probe), text

    def _withheld(self) -> dict[model.Address, model.Withheld]:
        """As :meth:`withheld`. The caller holds the lock."""
        found = {device: model.Withheld(
            failure, _UNKNOWN_REMEDY, model.WithheldState.FIRMWARE_UNKNOWN)
            for (device, probe), (_text, failure) in self._probed.items()
            if failure and self.probes.get(device) == probe}
        found.update({address: model.Withheld(
            f'its firmware has changed: {change}', _CHANGED_REMEDY,
            model.WithheldState.FIRMWARE_CHANGED)
            for address, change in firmware.changes(self._known).items()
            if address in self._devices})
        return found


def _compared(here: inventory.NodeInventory,
              ) -> tuple[dict[model.Address, model.PciAddress],
                         dict[model.Address, str]]:
    """Return the functions to compare, with their Devices; and the probes.

    Virtual functions and mdevs have the firmware of their card.
    """
    there = {function.address: function for function in here.host.functions}
    cards = {address: function.physfn or address
             for address, function in there.items()}
    devices: dict[model.Address, model.PciAddress] = {}
    probes: dict[model.Address, str] = {}
    for item in here.offered:
        device, probe = item.device.address, item.region.firmware_probe
        if probe is not None and isinstance(device, model.PciAddress):
            devices.update((cards.get(address, device), device)
                           for unit in (*item.region.units, (device,))
                           for address in unit)
        if probe:
            probes[device] = probe
            probes.update((cards[function.address], probe)
                          for unit in item.region.units
                          for function in cleaner.devices(
                              there[address] for address in unit
                              if address in there))
    return devices, probes

# SPDX-License-Identifier: Apache-2.0
"""The PCI buses of a guest, as its kernel numbers them.

In libvirt's XML, the bus of an address is the index of a controller. Firmware
numbers the buses: depth first from each root bus, by slot and function; the
number of an additional root bus is fixed (``busNr``).

Sources: libvirt's formatdomain, "Controllers", and its page on PCI addresses;
SeaBIOS, src/fw/pciinit.c (``pci_bios_init_bus``); EDK II, MdeModulePkg,
PciBusDxe (``PciScanBus``). SeaBIOS and OVMF give the same numbers.
"""

import collections
import collections.abc
import dataclasses
import functools

from nova_accel.core import model

#: Models of controllers that are root buses. QEMU puts a bridge below a
#: ``pci-expander-bus``, which libvirt does not show.
MAIN_ROOTS = frozenset({'pcie-root', 'pci-root'})
EXTRA_ROOTS = frozenset({'pcie-expander-bus'})
_ROOTS = MAIN_ROOTS | EXTRA_ROOTS | {'pci-expander-bus'}

# One of the fields below is named model.
_Address = model.PciAddress

# PCI's limit of the buses below all roots.
_MAX_BUSES = 256


@dataclasses.dataclass(frozen=True)
class Controller:
    """A ``<controller type='pci'>`` of a domain.

    :param index: the buses of addresses are such indexes
    :param model: libvirt's name
    :param address: its own address, None for the first root bus
    :param number: the bus number of an additional root bus (``busNr``)
    :param cell: the NUMA cell of an additional root bus
    """

    index: int
    model: str
    address: _Address | None = None
    number: int | None = None
    cell: int | None = None


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a guest sees a device.

    :param address: its PCI address there
    :param path: the number of its root bus, and slot and function of each
        bridge on the way and of the device: ``c8/00.0/00.0``. It does not
        depend on how firmware numbers buses
    :param cell: the NUMA node of its root bus in the guest, None for none
    """

    address: model.PciAddress
    path: str
    cell: int | None = None


class GuestBuses:
    """The PCI buses of a guest.

    :param controllers: all that the domain has
    """

    def __init__(self, controllers: collections.abc.Iterable[Controller],
                 ) -> None:
        self._by_index = {each.index: each for each in controllers}

    def position(self, address: model.PciAddress) -> Position | None:
        """Return where the guest sees a device.

        :param address: in libvirt's XML
        :returns: None if the domain's buses are not as this module knows
            them; on POWER and s390, for example
        """
        number = self._numbers.get(address.bus)
        if number is None:
            return None
        steps = [_step(address)]
        bus = self._by_index.get(address.bus)
        while bus and bus.address and bus.model not in _ROOTS:
            steps.append(_step(bus.address))
            bus = self._by_index.get(bus.address.bus)
        root = self._numbers[bus.index] if bus else 0
        return Position(
            dataclasses.replace(address, domain=0, bus=number),
            '/'.join([f'{root:02x}', *reversed(steps)]),
            bus.cell if bus else None)

    @functools.cached_property
    def _numbers(self) -> dict[int, int]:
        """The number of each bus by the index of its controller."""
        mains = [each for each in self._by_index.values()
                 if each.model in MAIN_ROOTS]
        if len(mains) > 1 or any(each.index for each in mains) or (
                len(self._by_index) > _MAX_BUSES):
            return {}
        # libvirt shows the first root bus of a PC only sometimes.
        numbers = self._below(0, 0)
        for each in self._by_index.values():
            if each.model in EXTRA_ROOTS and each.number is not None:
                numbers |= self._below(each.index, each.number)
        return numbers

    def _below(self, index: int, number: int) -> dict[int, int]:
        """Number a root bus and the buses below it, depth first."""
        numbers = {index: number}
        for child in self._children.get(index, ()):
            numbers |= self._below(child.index, number + len(numbers))
        return numbers

    @functools.cached_property
    def _children(self) -> dict[int, list[Controller]]:
        """The bridges on each bus, by slot and function."""
        below = sorted(((each.address, each)
                        for each in self._by_index.values()
                        if each.address and each.model not in _ROOTS),
                       key=lambda pair: pair[0])
        found: dict[int, list[Controller]] = {}
        for address, each in below:
            found.setdefault(address.bus, []).append(each)
        return found


def _step(address: model.PciAddress) -> str:
    return f'{address.slot:02x}.{address.function:x}'

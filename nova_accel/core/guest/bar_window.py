# SPDX-License-Identifier: Apache-2.0
"""The address space that a guest's firmware needs for its devices' BARs.

The facts for x86 guests of QEMU, and their sources:

* libvirt puts each device of a q35 guest behind a PCIe root port. There, only
  prefetchable 64-bit BARs can be above 4 GiB (PCI-to-PCI Bridge Architecture
  Specification: the only 64-bit window of a bridge is the prefetchable one).
* OVMF since edk2-stable202211 puts them into the upper eighth of the CPU's
  address space, of which it uses at most 46 bits. It ignores a width that
  QEMU also reports if it knows none, such as 40 on Intel; its window is then
  32 GiB, as in older versions. Of a larger window it reserves 1/256 for each
  root port (OvmfPkg: PlatformInitLib, PciHotPlugInitDxe; MdeModulePkg:
  PciBusDxe).
* SeaBIOS puts them above the memory, without a window of fixed size, but the
  CPU must be able to address the end (src/fw/pciinit.c).
* QEMU gives a guest 40 bits by default, whatever the CPU
  (target/i386/cpu.c).

tests/firmware checks them.
"""

import collections.abc
import dataclasses

from nova_accel.core import model

MIB, GIB = 1 << 20, 1 << 30

#: OVMF's window if it does not know the width of addresses, in bytes.
SMALL_WINDOW = 32 * GIB
#: Physical address bits of a guest by default.
DEFAULT_BITS = 40
#: The narrowest width that OVMF trusts on any CPU, and the widest it uses.
MIN_BITS, MAX_BITS = 41, 46
#: Root ports that a guest may have for other devices and for hot plugging: the
#: number of slots on its first bus.
OTHER_PORTS = 32
#: Stands for "no width is enough": no address is as wide.
NO_BITS = 65

# There are 256 bus numbers, and OVMF divides a window into 256 parts.
_MOST_PORTS = 256

#: The BARs of one function.
Bars = collections.abc.Iterable[model.Bar]


@dataclasses.dataclass(frozen=True)
class Need:
    """The address space that a guest needs beyond its default.

    :param window: size of the window for the BARs, in bytes
    :param least: physical address bits with which the BARs fit, or
        :data:`NO_BITS`
    :param roomy: bits with which OTHER_PORTS more root ports fit, too, or as
        many as a guest can have
    """

    window: int
    least: int
    roomy: int


def need(functions: collections.abc.Iterable[Bars], memory: int = 0,
         uefi: bool = True) -> Need | None:
    """Return what a guest needs for these functions; None for the default.

    :param functions: each behind a root port of its own
    :param memory: of the guest, in bytes
    :param uefi: True for OVMF, False for SeaBIOS
    """
    ports = [port for port in map(_port, functions) if port.length]
    window = _window(ports)
    largest = max((port.alignment for port in ports), default=1)
    end = _align(4 * GIB + memory, largest) + _align(window, largest)
    if window <= SMALL_WINDOW if uefi else end <= 1 << DEFAULT_BITS:
        return None
    return Need(window, _bits(ports, memory, 0),
                _bits(ports, memory, OTHER_PORTS))


def choose(wanted: Need, host_bits: int) -> int | None:
    """Return the physical address bits for a guest; None if that is too many.

    A guest gets no more than it needs, so that it can move to as many hosts
    as possible.

    :param host_bits: of the host's CPU
    """
    limit = min(host_bits, MAX_BITS)
    return min(wanted.roomy, limit) if wanted.least <= limit else None


@dataclasses.dataclass(frozen=True)
class _Port:
    """The prefetchable window of a root port, in bytes."""

    length: int
    alignment: int

    def padded(self, room: int) -> '_Port':
        return _Port(max(self.length, room), max(self.alignment, room))


def _port(bars: Bars) -> _Port:
    # Sizes are powers of two, so there are no gaps if the largest come first.
    sizes = [bar.size for bar in bars if bar.wide and bar.prefetchable]
    return _Port(_align(sum(sizes), MIB), max(sizes, default=MIB))


def _window(ports: collections.abc.Iterable[_Port]) -> int:
    """Return the bytes of consecutive ports, the largest alignment first."""
    end = 0
    for port in sorted(ports, reverse=True,
                       key=lambda port: (port.alignment, port.length)):
        end = _align(end, port.alignment) + port.length
    return end


def _bits(ports: list[_Port], memory: int, others: int) -> int:
    """Return the least address bits for these ports and some others."""
    others = min(others, _MOST_PORTS - len(ports))
    for bits in range(MIN_BITS, NO_BITS):
        window = 1 << bits - 3
        room = window >> 8
        wanted = _window(port.padded(room) for port in (
            *ports, *[_Port(room, room)] * others))
        below = _align(4 * GIB + memory, SMALL_WINDOW)
        if wanted <= window and below + window < 1 << bits:
            return bits
    # There are more ports than a window has parts.
    return NO_BITS


def _align(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment


def text(size: int) -> str:
    """Return a number of bytes as text, rounded up: ``1921 GiB``."""
    unit, name = (GIB, 'GiB') if size >= GIB else (MIB, 'MiB')
    return f'{_align(size, unit) // unit} {name}'

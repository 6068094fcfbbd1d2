# SPDX-License-Identifier: Apache-2.0
"""What the firmware of a guest needs, to give its devices' BARs addresses.

The facts, for x86 guests of QEMU, and where they are from:

* Behind a PCIe root port, where libvirt puts each device of a q35 guest, only
  prefetchable 64-bit BARs can be above 4 GiB (PCI-to-PCI Bridge Architecture
  Specification: the only 64-bit window of a bridge is the prefetchable one).
* OVMF since edk2-stable202211 has for them the upper eighth of what the CPU
  can address, but takes no width for true that QEMU would also say if it knew
  none, such as 40 on Intel; nor anything above 46. Without a width its window
  is 32 GiB, as it was before. It also keeps for each root port 1/256 of a
  window that is larger (OvmfPkg: PlatformInitLib, PciHotPlugInitDxe;
  MdeModulePkg: PciBusDxe).
* SeaBIOS has them above the memory, and no window that could be too small;
  but the CPU has to reach the end (src/fw/pciinit.c).
* QEMU gives a guest 40 bits if nothing else is asked for, whatever the CPU
  (target/i386/cpu.c).

tests/firmware tries them.
"""

import collections.abc
import dataclasses

from nova_accel.core import model

MIB, GIB = 1 << 20, 1 << 30

#: OVMF's window where it does not know how wide addresses are, in bytes.
SMALL_WINDOW = 32 * GIB
#: Physical address bits of a guest that nothing is said of.
DEFAULT_BITS = 40
#: The narrowest width that OVMF trusts on each CPU, and the widest it uses.
MIN_BITS, MAX_BITS = 41, 46
#: Root ports that a guest may have for other devices and for hot plugging:
#: as many as there are slots on its first bus.
OTHER_PORTS = 32
#: What stands for a width that there is not: no address is as wide.
NO_BITS = 65

# A bus has so many numbers for what is behind it, and a window as many parts
# that OVMF keeps for a root port.
_MOST_PORTS = 256

#: The BARs of one function.
Bars = collections.abc.Iterable[model.Bar]


@dataclasses.dataclass(frozen=True)
class Need:
    """What a guest needs that it has not by itself.

    :param window: for the BARs, in bytes
    :param least: physical address bits with which the BARs fit, or
        :data:`NO_BITS`
    :param roomy: with which also OTHER_PORTS more root ports have their
        share, or as many as there can be
    """

    window: int
    least: int
    roomy: int


def need(functions: collections.abc.Iterable[Bars], memory: int = 0,
         uefi: bool = True) -> Need | None:
    """What a guest with these functions needs, or None.

    :param functions: each on a root port of its own
    :param memory: of the guest, in bytes
    :param uefi: whether its firmware is OVMF, and not SeaBIOS
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
    """The physical address bits to give a guest; None if too few are there.

    No more than it needs, so that it can move to as many hosts as can be.

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
    # Sizes are powers of two: from the largest down there is no gap.
    sizes = [bar.size for bar in bars if bar.wide and bar.prefetchable]
    return _Port(_align(sum(sizes), MIB), max(sizes, default=MIB))


def _window(ports: collections.abc.Iterable[_Port]) -> int:
    """Bytes of ports that follow each other, the largest alignment first."""
    end = 0
    for port in sorted(ports, reverse=True,
                       key=lambda port: (port.alignment, port.length)):
        end = _align(end, port.alignment) + port.length
    return end


def _bits(ports: list[_Port], memory: int, others: int) -> int:
    others = min(others, _MOST_PORTS - len(ports))
    for bits in range(MIN_BITS, NO_BITS):
        window = 1 << bits - 3
        room = window >> 8
        wanted = _window(port.padded(room) for port in (
            *ports, *[_Port(room, room)] * others))
        below = _align(4 * GIB + memory, SMALL_WINDOW)
        if wanted <= window and below + window < 1 << bits:
            return bits
    # More ports than a window has parts fit into none, however wide.
    return NO_BITS


def _align(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment


def text(size: int) -> str:
    """Bytes for people, rounded up: ``1921 GiB``, ``64 MiB``."""
    unit, name = (GIB, 'GiB') if size >= GIB else (MIB, 'MiB')
    return f'{_align(size, unit) // unit} {name}'

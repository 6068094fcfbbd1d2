# SPDX-License-Identifier: Apache-2.0
"""Read PCI functions from sysfs.

Sources: the kernel's Documentation/ABI/testing/sysfs-bus-pci (attributes,
``physfn``, ``sriov_*``, ``boot_display``), sysfs-kernel-iommu_groups,
sysfs-bus-vfio-mdev (``mdev_supported_types``), sysfs-driver-vfio and the
kernel's vfio documentation (``vfio-dev``), Documentation/PCI/sysfs-pci.rst
(``config``, ``enable``, ``resource``), drivers/pci/pci-sysfs.c (``boot_vga``,
``max_link_speed``, ``max_link_width``), and the layout of /sys/devices, where
the directory of a bridge contains those of the functions behind it.
"""

import collections
import collections.abc
import dataclasses
import posixpath
import re
import struct

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import pci_class
from nova_accel.host import firmware
from nova_accel.host import tree as trees
from nova_accel.host import vfio

DEVICES = 'sys/bus/pci/devices'

_RANGE = re.compile(r'0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) '
                    r'0x([0-9a-f]{1,16})')
# include/linux/ioport.h: the type of a resource, and two of its flags.
_TYPE, _IO, _MEMORY = 0x1f00, 0x100, 0x200
_PREFETCH, _WIDE = 0x2000, 0x100000
# PCI Code and ID Assignment Specification: an audio device, a VGA controller,
# and the base class of display controllers.
_SOUND, _VGA, _DISPLAY = 0x0403, 0x0300, 0x03
# PCI Express Base Specification, Link Capabilities and Link Status Register: a
# link has up to 32 lanes. The width reads as 0 while the link is down, and as
# 63 if the function does not answer.
_SPEED, _MAX_LANES = re.compile(r'(\d+(?:\.\d+)?) GT/s'), 32
# IORESOURCE_PCI_EA_BEI: no BAR has its address (Enhanced Allocation).
_ELSEWHERE = 0x20

# include/uapi/linux/pci_regs.h: the part of the configuration space that every
# user may read, with PCI_HEADER_TYPE and PCI_BASE_ADDRESS_0.
_HEADER, _HEADER_TYPE = 64, 0x0e
_REGISTERS = struct.Struct('<16x6I')
_BARS = 6


class _Unreadable(Exception):
    """Raised when a mandatory attribute is missing or malformed."""


@dataclasses.dataclass(frozen=True)
class _Machine:
    """What is the same for all functions of a machine.

    :param denylist: ids of devices that vfio-pci refuses
    :param bus_reset: how vfio resets all functions of a bus
    :param cpuless_nodes: as in :class:`nova_accel.core.model.Host`
    """

    denylist: collections.abc.Container[tuple[str, str]]
    bus_reset: model.BusReset
    cpuless_nodes: collections.abc.Mapping[int, int]


def read(tree: trees.Tree,
         cpuless_nodes: collections.abc.Mapping[int, int] = {},
         ) -> tuple[list[model.Function], list[str]]:
    """Return all readable functions, and a message for each other one.

    :param cpuless_nodes: as in :class:`nova_accel.core.model.Host`
    """
    found: list[model.Function] = []
    problems: list[str] = []
    machine = _Machine(vfio.denylist(tree), vfio.bus_reset(tree),
                       cpuless_nodes)
    places = {name: trees.follow(tree, f'{DEVICES}/{name}')
              for name in tree.names(DEVICES)}
    has_resets = _has_resets(tree, places.values())
    for name, place in places.items():
        try:
            function = _read_one(tree, name, place, machine)
            if not has_resets:
                function = dataclasses.replace(function, reset_methods=None)
        except (_Unreadable, ValueError) as error:
            problems.append(f'PCI device {errors.quote(name)}: {error}; '
                            'the device is ignored')
            continue
        try:
            function = dataclasses.replace(function, bars=_bars(tree, place))
        except _Unreadable as error:
            problems.append(f'PCI device {errors.quote(name)}: {error}; '
                            'the size of its memory is unknown')
        found.append(function)
    return _ignore_own_switches(found), problems


def _has_resets(tree: trees.Tree,
                places: collections.abc.Collection[str]) -> bool:
    """Whether a tree shows which functions can be reset.

    ``reset`` is write-only, so a copy of all readable files lacks it; such a
    copy has the configuration space of each function.
    """
    return trees.is_live(tree) or any(
        tree.has(f'{place}/{name}') for place in places
        for name in ('reset', 'reset_method')) or not all(
        tree.has(f'{place}/config') for place in places)


def _ignore_own_switches(functions: collections.abc.Sequence[model.Function],
                         ) -> list[model.Function]:
    """Replace the switch that is part of a card by the one above it.

    Some cards have a switch for their only device (AMD's Navi), or for it and
    an audio device (Intel's Arc). No other card can be behind such a switch.
    """
    below = collections.defaultdict(set)
    for function in functions:
        if not function.is_forwarding_bridge and (
                function.class_code >> 8 != _SOUND):
            card = function.physfn or function.address
            for port in function.location.ports:
                below[port].add(str(card).rpartition('.')[0])
    own = {port for port, cards in below.items() if len(cards) == 1}
    return [function if function.location.switch not in own else
            dataclasses.replace(function, location=dataclasses.replace(
                function.location, switch=model.nearest_switch(
                    function.location.ports, own)))
            for function in functions]


def path(tree: trees.Tree, address: model.Address) -> str:
    """Return the path of a function's directory in a tree."""
    return trees.follow(tree, f'{DEVICES}/{address}')


def read_unreadable(tree: trees.Tree,
                    found: collections.abc.Iterable[model.Function],
                    ) -> list[model.Function]:
    """Return the functions that :func:`read` ignored, with their IOMMU group.

    They are not offered, and neither are functions in the same group.
    """
    present = set(addresses(tree.names(DEVICES)))
    unreadable = []
    for address in sorted(present - {function.address for function in found}):
        place = path(tree, address)
        group = _Attributes(tree, place).linked_name('iommu_group')
        if group:
            unreadable.append(model.Function(
                address, '', '', 0, location=_location(place, None),
                iommu_group=group, unreadable=True))
    return unreadable


def can_reset(tree: trees.Tree, address: model.Address) -> bool:
    """Whether the kernel can reset a function without others."""
    return tree.has(f'{path(tree, address)}/reset')


def has_driver(tree: trees.Tree, address: model.Address) -> bool:
    """Whether any driver is bound to a function."""
    return bool(tree.link(f'{path(tree, address)}/driver'))


def functions_behind(tree: trees.Tree, bridge: model.Address,
                     ) -> set[model.PciAddress]:
    """Return the functions directly behind a bridge, readable or not."""
    return set(addresses(tree.names(path(tree, bridge))))


def is_enabled(tree: trees.Tree, address: model.Address) -> bool:
    """Whether a function is enabled.

    A function with a vfio driver is enabled while a program has it open.
    """
    text = tree.text(f'{path(tree, address)}/enable') or ''
    return text.strip() not in ('', '0')


def _read_one(tree: trees.Tree, name: str, path: str,
              machine: _Machine) -> model.Function:
    address = model.PciAddress.parse(name)
    attributes = _Attributes(tree, path)
    driver = attributes.linked_name('driver')
    bound = 'vfio' in (driver or '')
    ids = attributes.id('vendor'), attributes.id('device')
    class_code = attributes.hexadecimal('class')
    physfn = attributes.linked_address('physfn')
    has_link = not physfn and _is_link_of_interest(class_code)
    return model.Function(
        address=address,
        vendor_id=ids[0],
        product_id=ids[1],
        class_code=class_code,
        subsystem_vendor_id=attributes.id('subsystem_vendor', ''),
        subsystem_product_id=attributes.id('subsystem_device', ''),
        revision=attributes.hexadecimal('revision', 0),
        location=_location(path, attributes.decimal('numa_node'),
                           machine.cpuless_nodes),
        iommu_group=(None if bound and vfio.is_unprotected(tree, path)
                     else attributes.linked_name('iommu_group')),
        driver=driver,
        physfn=physfn,
        total_vfs=max(0, attributes.decimal('sriov_totalvfs') or 0),
        num_vfs=_count_vfs(tree, path),
        vf_offset=max(0, attributes.decimal('sriov_offset') or 0),
        vf_stride=max(0, attributes.decimal('sriov_stride') or 0),
        mdev_types=read_mdev_types(tree, path),
        reset_methods=_reset_methods(tree, path),
        resets_below=(
            None if class_code >> 16 != pci_class.BRIDGE else
            model.BusReset.SUBORDINATE
            if tree.has(f'{path}/reset_subordinate') else machine.bus_reset),
        # vfio-dev exists since Linux 6.1.
        vfio=bound or bool(tree.names(f'{path}/vfio-dev')),
        open=bound and is_enabled(tree, address),
        denied=ids in machine.denylist,
        # vfio drivers show none. A virtual function has that of its card.
        firmware=() if bound or physfn else firmware.read(tree, path),
        console=_may_be_console(attributes, class_code),
        max_link_speed=(speed(tree, f'{path}/max_link_speed')
                        if has_link else None),
        max_link_width=(lanes(tree, f'{path}/max_link_width')
                        if has_link else None))


def _is_link_of_interest(class_code: int) -> bool:
    """Whether it matters what the link of a function could do.

    Since Linux 6.18, reading the width wakes a function that sleeps, as
    reading ``config`` does. So no other links are read.
    """
    return (class_code >> 8 == pci_class.PCI_BRIDGE
            or class_code >> 16 in pci_class.NCCL)


def speed(tree: trees.Tree, path: str) -> float | None:
    """Return the speed of a link in GT/s, None if the file has none.

    :param path: of a file, ``…/max_link_speed``
    """
    match = _SPEED.match(tree.text(path) or '')
    return float(match[1]) if match else None


def lanes(tree: trees.Tree, path: str) -> int | None:
    """Return the width of a link in lanes, None if the file has none.

    :param path: of a file, ``…/max_link_width``
    """
    text = (tree.text(path) or '').strip()
    return int(text) if re.fullmatch(r'\d{1,2}', text) and (
        0 < int(text) <= _MAX_LANES) else None


def _may_be_console(attributes: '_Attributes', class_code: int) -> bool:
    if class_code >> 16 != _DISPLAY:
        return False
    if attributes.decimal('boot_display'):
        return True
    # The kernel shows boot_vga for each VGA controller. Older recordings lack
    # it: assume that any of them is the console.
    return class_code >> 8 == _VGA and attributes.decimal('boot_vga') != 0


def _count_vfs(tree: trees.Tree, path: str) -> int:
    """Return how many VFs a function has enabled, by their links.

    ``sriov_numvfs`` has the number, too, but in some kernels reading it waits
    for the device's lock (drivers/pci/iov.c: sriov_numvfs_show). A reset of
    the card or an unbind of its driver may hold that lock for ever. A copy of
    sysfs has no locks, and may lack the links.
    """
    if not tree.has(f'{path}/sriov_numvfs'):
        return 0
    if not trees.is_live(tree):
        number = _Attributes(tree, path).decimal('sriov_numvfs')
        return max(0, number or 0)
    return sum(name.startswith('virtfn') for name in tree.names(path))


def _bars(tree: trees.Tree, path: str) -> tuple[model.Bar, ...] | None:
    """Read the memory BARs from ``resource``.

    The first six lines are BARs. Sizes are right even without an address.

    :returns: None if the tree does not have ``resource``
    :raises _Unreadable: if it is malformed
    """
    text = tree.text(f'{path}/resource')
    if text is None:
        return None
    bars = []
    for number, (start, end, flags) in enumerate(_ranges(text)):
        if not end or flags & _TYPE != _MEMORY:
            continue
        size = end - start + 1
        if size <= 0 or size & size - 1:
            raise _Unreadable(f'its BAR {number} is from {start:#x} to '
                              f'{end:#x}, not a power of two')
        bars.append(model.Bar(number, size, bool(flags & _WIDE),
                              bool(flags & _PREFETCH)))
    return tuple(bars)


def _ranges(text: str) -> list[tuple[int, int, int]]:
    """Return start, end and flags of each BAR."""
    found = [(int(line[1], 16), int(line[2], 16), int(line[3], 16))
             for line in map(_RANGE.fullmatch, text.split('\n')[:_BARS])
             if line]
    if len(found) < _BARS:
        raise _Unreadable(f'its resource is {errors.quote(text)}, not ranges')
    return found


def is_alive(tree: trees.Directory, address: model.Address) -> bool:
    """Whether a function answers: if it does not, it reads as all ones.

    Read the header type: ids of a virtual function are always all ones (PCI
    Express, SR-IOV: Vendor ID of a VF is FFFFh). A function whose ``config``
    cannot be read counts as answering.
    """
    header = tree.bytes(f'{path(tree, address)}/config', _HEADER)
    return header[_HEADER_TYPE:_HEADER_TYPE + 1] != b'\xff'


def has_lost_addresses(tree: trees.Directory,
                       address: model.Address) -> bool:
    """Whether BARs of a function lost the addresses that the kernel assigned.

    A reset clears these registers. The kernel restores them, in vain if the
    function does not answer at that moment; at the next reset, it saves the
    cleared values (drivers/pci/pci.c: pci_save_state).
    """
    place = path(tree, address)
    header = tree.bytes(f'{place}/config', _HEADER)
    if (len(header) < _HEADER or header[_HEADER_TYPE] & 0x7f
            # The BARs of virtual functions are registers of their card.
            or tree.link(f'{place}/physfn')):
        return False
    try:
        ranges = _ranges(tree.text(f'{place}/resource') or '')
    except _Unreadable:
        return False
    registers = (*_REGISTERS.unpack_from(header), 0)
    return any(_is_lost(registers[number] | (
                   registers[number + 1] << 32 if flags & _WIDE else 0),
                        start, end, flags)
               for number, (start, end, flags) in enumerate(ranges))


def _is_lost(register: int, start: int, end: int, flags: int) -> bool:
    if not start or flags & _ELSEWHERE or flags & _TYPE not in (_IO, _MEMORY):
        return False
    width, size = 64 if flags & _WIDE else 32, end - start + 1
    # Bus addresses may differ from the kernel's: only all zeros or all ones
    # mean that the address is lost.
    return register & -size % (1 << width) in (0, -size % (1 << width))


def _reset_methods(tree: trees.Tree, path: str) -> tuple[str, ...] | None:
    names = tree.text(f'{path}/reset_method')
    if names is not None:
        return tuple(names.split())
    # A machine has the configuration space of each function, and so does our
    # recording since resets are recorded. Older recordings do not tell.
    if not tree.has(f'{path}/reset') and tree.has(f'{path}/config'):
        return ()
    return None


def read_mdev_types(tree: trees.Tree, path: str,
                    ) -> tuple[model.MdevType, ...]:
    """Return the mdev types of the device in a directory."""
    return tuple(_mdev_types(tree, f'{path}/mdev_supported_types'))


def _mdev_types(tree: trees.Tree, path: str,
                ) -> collections.abc.Iterator[model.MdevType]:
    for name in tree.names(path):
        attributes = _Attributes(tree, f'{path}/{name}')
        available = attributes.decimal('available_instances')
        yield model.MdevType(
            name, available if available is None else max(0, available),
            tuple(tree.names(f'{path}/{name}/devices')),
            (tree.text(f'{path}/{name}/device_api') or '').strip())


def _location(path: str, numa_node: int | None,
              cpuless_nodes: collections.abc.Mapping[int, int] = {},
              ) -> model.Location:
    """Return a function's Location from its path and its NUMA node.

    ``.../pci0000:40/0000:40:01.0/0000:41:00.0/.../<the function itself>``
    """
    nearest = cpuless = None
    # -1 is the kernel's NUMA_NO_NODE.
    if numa_node is not None and numa_node >= 0:
        nearest = cpuless_nodes.get(numa_node, numa_node)
        cpuless = numa_node if numa_node in cpuless_nodes else None
    parts = path.split('/')
    root = next((part for part in parts if part.startswith('pci')
                 and ':' in part), '')
    ports = tuple(str(address) for address in addresses(parts[:-1]))
    return model.Location(
        nearest, errors.path(root), ports, model.nearest_switch(ports),
        cpuless)


def addresses(parts: collections.abc.Iterable[str]) -> list[model.PciAddress]:
    """Return the PCI addresses among the parts of a path, in order."""
    found = []
    for part in parts:
        try:
            found.append(model.PciAddress.parse(part))
        except ValueError:
            continue
    return found


class _Attributes:
    """Read the files and links of one function."""

    def __init__(self, tree: trees.Tree, path: str):
        self._tree = tree
        self._path = path

    def hexadecimal(self, name: str, default: int | None = None) -> int:
        text = self._tree.text(f'{self._path}/{name}')
        try:
            return int((text or '').strip(), 16)
        except ValueError:
            if default is not None:
                return default
            raise _Unreadable(
                f'its {name} is missing' if text is None else
                f'its {name} is {errors.quote(text)}, not a number') from None

    def id(self, name: str, default: str | None = None) -> str:
        number = self.hexadecimal(name, None if default is None else -1)
        if 0 <= number <= 0xffff:
            return f'{number:04x}'
        if default is None:
            raise _Unreadable(f'its {name} is not 16 bits wide')
        return default

    def decimal(self, name: str) -> int | None:
        text = self._tree.text(f'{self._path}/{name}')
        try:
            return int((text or '').strip())
        except ValueError:
            return None

    def linked(self, name: str) -> str | None:
        target = self._tree.link(f'{self._path}/{name}')
        return posixpath.basename(target) if target else None

    def linked_name(self, name: str) -> str | None:
        target = self.linked(name)
        return errors.path(target) if target else None

    def linked_address(self, name: str) -> model.PciAddress | None:
        target = self.linked(name)
        return model.PciAddress.parse(target) if target else None

# SPDX-License-Identifier: Apache-2.0
"""Host, Device and Region as values, and the PCI facts behind them.

All values are immutable: a Host is a snapshot of a machine, taken by
:mod:`nova_accel.host`.
"""

import collections
import collections.abc
import dataclasses
import enum
import functools
import operator
import re
import typing

_ADDRESS = re.compile(
    r'([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])', re.IGNORECASE)

# PCI Code and ID Assignment Specification: base class 06 is a bridge, except
# subclass 80, "other" (NVSwitches).
_BRIDGE, _OTHER, _HOST_BRIDGE = 0x06, 0x0680, 0x0600
# 01 is a mass storage controller, 03 a display controller.
_STORAGE, _DISPLAY = 0x01, 0x03
_NVIDIA = '10de'
# These subclasses have a type 1 or 2 header. Therefore the kernel's vfio
# ignores them in an IOMMU group (drivers/vfio: vfio_dev_driver_allowed).
_FORWARDING_BRIDGES = frozenset({0x0604, 0x0607, 0x0609})


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class PciAddress:
    """The address of a PCI function.

    :param domain: 0 to 0xffffffff (PCIe domains created by software, such as
        Intel VMD's, start at 0x10000)
    """

    domain: int
    bus: int
    slot: int
    function: int

    @classmethod
    # Cached, because sysfs repeats each address in many places.
    @functools.lru_cache(maxsize=8192)
    def parse(cls, text: str) -> 'PciAddress':
        """Parse the form that sysfs uses, ``0000:81:00.0``.

        :raises ValueError: if the text is no such address
        """
        match = _ADDRESS.fullmatch(text)
        if not match:
            raise ValueError(f'not a PCI address: {text!r}')
        return cls(*(int(part, 16) for part in match.groups()))

    @property
    def position(self) -> tuple[int, int, int]:
        """Domain, bus and slot, which all functions of a card have."""
        return self.domain, self.bus, self.slot

    def __str__(self) -> str:
        return (f'{self.domain:04x}:{self.bus:02x}:'
                f'{self.slot:02x}.{self.function:x}')


@functools.total_ordering
@dataclasses.dataclass(frozen=True, slots=True)
class ParentName:
    """The name of an mdev parent that is not on a PCI bus.

    Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev
    (/sys/class/mdev_bus). On s390, channels and crypto cards are such devices.
    """

    name: str

    def __str__(self) -> str:
        return self.name

    def __lt__(self, other: object) -> bool:
        # PCI addresses sort first.
        return isinstance(other, ParentName) and self.name < other.name


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class MdevAddress:
    """The uuid of a mediated device, which libvirt calls its address."""

    uuid: str

    def __str__(self) -> str:
        return self.uuid


#: The address of what a host has: a function, another mdev parent, or an mdev.
Address = PciAddress | ParentName | MdevAddress


@dataclasses.dataclass(frozen=True, slots=True)
class Location:
    """The position of a function in the PCI topology.

    :param numa_node: the nearest NUMA node with CPUs; None if the machine does
        not report a node (sysfs: -1)
    :param root: the host bridge as sysfs names it, ``pci0000:40``, or ''
    :param ports: addresses of the bridges above it, root port first
    :param switch: the upstream port of the nearest PCIe switch that is not
        part of a card, or None
    :param cpuless_node: its own NUMA node if that has no CPUs, else None
    """

    numa_node: int | None = None
    root: str = ''
    ports: tuple[str, ...] = ()
    switch: str | None = None
    cpuless_node: int | None = None


def nodes_with_cpus(
        reported: collections.abc.Iterable[int | None],
        cpuless_nodes: collections.abc.Mapping[int, int],
        only_node: int | None) -> frozenset[int]:
    """Return the NUMA nodes that functions count as near to.

    :param reported: the nodes that the machine reports for the functions
    :param cpuless_nodes, only_node: as in :class:`Host`
    """
    nearest = {only_node if node is None else cpuless_nodes.get(node, node)
               for node in reported}
    return frozenset(node for node in nearest if node is not None)


def switches(ports: tuple[str, ...]) -> tuple[str, ...]:
    """Return the upstream ports of the switches above a device, nearest last.

    Below the root port each switch adds two bridges, its upstream and its
    downstream port. A single bridge more is a conventional PCI bridge.

    :param ports: as in :class:`Location`
    """
    return ports[1:-1:2]


def nearest_switch(ports: tuple[str, ...],
                   own: collections.abc.Container[str] = ()) -> str | None:
    """Return the upstream port of the nearest switch above a device, or None.

    :param ports: as in :class:`Location`
    :param own: upstream ports of switches that are part of a card
    """
    return next((port for port in switches(ports)[::-1] if port not in own),
                None)


@dataclasses.dataclass(frozen=True)
class Place:
    """The position of a Device, as affinity rules see it.

    :param numa_node: None if the host does not report it
    :param pcie_root: the host bridge, ``pci0000:40``, None if unknown
    :param pcie_switch: the nearest switch, None if there is none
    :param device: the PCI address of the card as text
    """

    numa_node: int | None
    pcie_root: str | None
    pcie_switch: str | None
    device: str

    @classmethod
    def at(cls, location: Location, device: str) -> 'Place':
        """Return the place of a card at a location."""
        return cls(location.numa_node, location.root or None, location.switch,
                   device)

    @property
    def parts(self) -> tuple[int | str | None, ...]:
        """The part of the machine at each of :data:`LEVELS`."""
        return _parts(self)


@dataclasses.dataclass(frozen=True)
class Level:
    """A kind of part of a machine that can have several Devices.

    :param key: the name of the level in affinity rules and in :class:`Place`
    :param title: the name in messages
    :param optional: whether None means that there is no such part, and not
        that the part is unknown
    """

    key: str
    title: str
    plural: str
    optional: bool = False


#: The levels at which Devices can be together, the outermost first: the first
#: fields of :class:`Place`, in the same order. The NUMA node comes first, as
#: rules compare it with the nodes of the guest. To add a level, add it here,
#: to :class:`Place`, and to :class:`Location` if that does not have it yet.
LEVELS = (
    Level('numa_node', 'NUMA node', 'NUMA nodes'),
    Level('pcie_root', 'PCIe root', 'PCIe roots'),
    Level('pcie_switch', 'PCIe switch', 'PCIe switches', optional=True))

_parts = operator.attrgetter(*(level.key for level in LEVELS))


class BusReset(enum.Enum):
    """How all functions behind a bridge are reset at once, or why not."""

    #: Documentation/ABI/testing/sysfs-bus-pci, since Linux 6.13.
    SUBORDINATE = 'reset_subordinate'
    #: include/uapi/linux/vfio.h: VFIO_DEVICE_PCI_HOT_RESET.
    HOT_RESET = 'vfio hot reset'
    NO_VFIO = 'vfio-pci is not loaded'
    NO_FILES = 'the kernel gives programs no access to vfio'


@dataclasses.dataclass(frozen=True, slots=True)
class MdevType:
    """A type of mediated device that the driver of a function can create.

    Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev.

    :param available: how many more can be created now; None if the driver
        does not report a number
    :param instances: uuids of the existing mdevs
    :param api: the interface for guests (``device_api``), '' if unknown
    """

    name: str
    available: int | None = 0
    instances: tuple[str, ...] = ()
    api: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """A memory range of a PCI function.

    :param number: the number of its Base Address Register, 0 to 5
    :param size: in bytes, a power of two
    :param wide: whether its address can be above 4 GiB (64 bits)
    """

    number: int
    size: int
    wide: bool = True
    prefetchable: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """One PCI function, or one other mdev parent, as sysfs shows it.

    A parent that is not on a PCI bus has no ids and no class.

    Source: Documentation/ABI/testing/sysfs-bus-pci.

    :param vendor_id: four lower-case hexadecimal digits, as is product_id
    :param class_code: 24 bits: base class, subclass, interface
    :param iommu_group: the group's name (a number), or None without one
    :param physfn: for a virtual function, its physical function
    :param total_vfs: VFs that could be enabled
    :param num_vfs: VFs that are enabled
    :param vf_offset: distance of the first VF's Routing ID from its own
    :param vf_stride: distance between the Routing IDs of VFs
    :param mdev_types: mediated device types that its driver offers
    :param reset_methods: methods to reset it alone, in the kernel's order; ()
        if there are none, None if unknown (kernels before 5.15 and older
        recordings do not have them)
    :param resets_below: for a bridge, how all functions behind it can be
        reset at once, or why they cannot; None if unknown
    :param netdevs: names of its network ports; for a virtual function, also
        those of its card
    :param vfio: whether its driver is a vfio driver
    :param open: whether a program has it open through a vfio driver
    :param denied: whether vfio-pci refuses functions with its ids
    :param firmware: the versions that its driver shows, by source
        (:mod:`nova_accel.host.firmware`); none for a virtual function
    :param bars: its memory ranges, None if unknown
    :param max_link_speed: what its PCI Express link could do, in GT/s; None
        if unknown, and for a virtual function, which has the link of its card
    :param max_link_width: lanes that its link could have, None as above
    :param use: how the host itself uses it, in words, or ''
    :param console: whether it has the console of the host; also true for a
        VGA controller that does not report it
    :param unreadable: whether only its address and IOMMU group are known
    """

    address: Address
    vendor_id: str
    product_id: str
    class_code: int
    subsystem_vendor_id: str = ''
    subsystem_product_id: str = ''
    revision: int = 0
    location: Location = Location()
    iommu_group: str | None = None
    driver: str | None = None
    physfn: PciAddress | None = None
    total_vfs: int = 0
    num_vfs: int = 0
    vf_offset: int = 0
    vf_stride: int = 0
    mdev_types: tuple[MdevType, ...] = ()
    netdevs: tuple[str, ...] = ()
    reset_methods: tuple[str, ...] | None = None
    resets_below: BusReset | None = None
    vfio: bool = False
    open: bool = False
    denied: bool = False
    firmware: tuple[tuple[str, str], ...] = ()
    bars: tuple[Bar, ...] | None = None
    max_link_speed: float | None = None
    max_link_width: int | None = None
    use: str = ''
    console: bool = False
    unreadable: bool = False

    def vf(self, index: int) -> PciAddress | None:
        """Return the address that a VF has or will have, None if unknown.

        Source: PCI Express Base Specification, "First VF Offset" and "VF
        Stride"; sysfs: ``sriov_offset``, ``sriov_stride``.
        """
        at = self.address
        if (not isinstance(at, PciAddress) or not self.vf_offset
                or (index and not self.vf_stride)):
            return None
        number = (at.bus << 8 | at.slot << 3 | at.function) + (
            self.vf_offset + index * self.vf_stride) & 0xffff
        return PciAddress(at.domain, number >> 8, number >> 3 & 0x1f,
                          number & 7)

    @property
    def slot(self) -> str:
        """Its address without the function, which all of a card have."""
        return str(self.address).rpartition('.')[0]

    @property
    def ids(self) -> str:
        if isinstance(self.address, ParentName):
            return 'no PCI device'
        return f'{self.vendor_id}:{self.product_id}'

    @property
    def firmware_text(self) -> str:
        """The versions of its firmware, or ''."""
        return ', '.join(text for _source, text in self.firmware)

    @property
    def is_storage(self) -> bool:
        return self.class_code >> 16 == _STORAGE

    @property
    def is_display(self) -> bool:
        return self.class_code >> 16 == _DISPLAY

    @property
    def is_nvidia_gpu(self) -> bool:
        """Whether it is a GPU of NVIDIA, and not a virtual function of one."""
        return (self.vendor_id == _NVIDIA and not self.physfn
                and self.is_display)

    @property
    def is_bridge(self) -> bool:
        return (self.class_code >> 16 == _BRIDGE
                and self.class_code >> 8 != _OTHER)

    @property
    def is_forwarding_bridge(self) -> bool:
        return self.class_code >> 8 in _FORWARDING_BRIDGES

    @property
    def ignored_by_vfio(self) -> bool:
        """Whether it is a bridge that vfio ignores in an IOMMU group.

        A host bridge is ignored only without a driver.
        """
        return self.is_forwarding_bridge or (
            self.class_code >> 8 == _HOST_BRIDGE and not self.driver)


#: The functions of a machine by their addresses.
Functions = collections.abc.Mapping[Address, Function]


def card_of(function: Function, functions: Functions) -> Function | None:
    """Return the physical function of a virtual one, None for others."""
    return functions.get(function.physfn) if function.physfn else None


#: One unit of a Region: functions that can only be assigned together, because
#: they share an IOMMU group, or one mdev.
Unit = tuple[Address, ...]


class WithheldState(enum.StrEnum):
    """The state of a device that no new server gets at present."""

    RESET_FAILED = 'reset_failed'
    UNHEALTHY = 'unhealthy'
    FIRMWARE_CHANGED = 'firmware_changed'
    FIRMWARE_UNKNOWN = 'firmware_unknown'
    DRAINED = 'drained'
    DIRTY = 'dirty'
    CLEANING = 'cleaning'
    CLEANING_FAILED = 'cleaning_failed'
    NOT_STRICT = 'not_strict'


_ALL_STATES = frozenset(WithheldState)

#: A server has had the device, and it was not cleaned since.
DIRTY_STATES = frozenset({WithheldState.DIRTY, WithheldState.CLEANING,
                          WithheldState.CLEANING_FAILED})


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """Interchangeable units of a Device: a whole card, VFs, mdevs of a type.

    :param name: unique within its Device, e.g. ``CUSTOM_QAT``
    :param units: for an mdev type, the parent, once for each mdev that exists
        or can be created
    :param managed: whether libvirt binds and unbinds the driver
    :param kind: the kind of its entry
    :param variant: which of several things the card can be, or ''
    :param mdevs: whether units are mdevs, of the type ``variant``
    :param live_migratable: whether its state can move to another host
    :param settings: values of the kind's keys in its entry
    :param limit: how many units can be in use at the same time, None for all
    :param reset: how its entry says to reset units before another server gets
        them; '' if nova_accel does not reset them
    :param needs_driver: whether a driver of the host prepares units, and is
        bound again after a reset
    :param one_time_use: whether it is reserved after one server has had it,
        until an operator frees it
    :param cleaner: the name of what cleans units after each server, or ''
    :param instances: for mdevs, those of ours that exist
    :param withheld: the units that no new server gets at present, with their
        states; a server that holds one keeps it
    :param ids: vendor and product id by function; without functions whose ids
        can change
    :param firmware_probe: the command of ``[nova_accel] firmware_probe`` that
        tells the firmware of its card, '' for none; None if its entry says
        not to compare firmware
    """

    name: str
    resource_class: str
    traits: frozenset[str]
    units: tuple[Unit, ...]
    managed: bool = True
    kind: str = 'pci'
    variant: str = ''
    mdevs: bool = False
    live_migratable: bool = False
    settings: tuple[tuple[str, collections.abc.Hashable], ...] = ()
    limit: int | None = None
    reset: str = ''
    needs_driver: bool = False
    one_time_use: bool = False
    cleaner: str = ''
    instances: frozenset[MdevAddress] = frozenset()
    withheld: tuple[tuple[Unit, WithheldState], ...] = ()
    ids: tuple[tuple[Address, str], ...] = dataclasses.field(
        default=(), compare=False)
    firmware_probe: str | None = dataclasses.field(default='', compare=False)

    def setting(self, key: str) -> typing.Any:
        """Return the value of a key of its kind, None if absent."""
        return dict(self.settings).get(key)

    def ids_of(self, address: Address) -> str:
        """Return a function's vendor and product id, '' if they can change."""
        return dict(self.ids).get(address, '')

    @property
    def tracks_dirt(self) -> bool:
        """Whether units stay dirty from a server on until they are cleaned.

        An operator cleans them if it has no cleaner.
        """
        return self.one_time_use or bool(self.cleaner)

    @property
    def is_single(self) -> bool:
        """Whether it has one unit, which one server gets after another."""
        return len(self.units) == 1

    @property
    def available(self) -> tuple[Unit, ...]:
        """The units that are not withheld."""
        return self._without(_ALL_STATES)

    @property
    def resettable(self) -> tuple[Unit, ...]:
        """The units without a failed reset, available or not."""
        return self._without({WithheldState.RESET_FAILED})

    @property
    def recoverable(self) -> tuple[Unit, ...]:
        """The units that a server may get back if it has lost its claim.

        If there are several, a dirty one can be that of another server.
        """
        return self.resettable if self.is_single else self._without(
            {WithheldState.RESET_FAILED, *DIRTY_STATES})

    def _without(self, states: collections.abc.Container[WithheldState],
                 ) -> tuple[Unit, ...]:
        """Return the units that are not withheld in one of these states."""
        if not self.withheld:
            return self.units
        withheld = {unit for unit, state in self.withheld if state in states}
        return tuple(unit for unit in self.units if unit not in withheld)

    @property
    def total(self) -> int:
        """How many units new servers can get, if no server holds any."""
        return self._limited(self.available)

    @property
    def size(self) -> int:
        """As ``total``, if no unit were withheld."""
        return self._limited(self.units)

    def _limited(self, units: tuple[Unit, ...]) -> int:
        return len(units) if self.limit is None else min(self.limit,
                                                         len(units))


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A card and its Regions.

    :param address: the first function of the card (for VFs: their PF)
    """

    address: Address
    ids: str
    location: Location
    regions: tuple[Region, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Withheld:
    """Why a device is not offered at present, and the remedy."""

    reason: str
    remedy: str = ''
    state: WithheldState = WithheldState.UNHEALTHY


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A function that an entry names, but that is not offered.

    :param states: those of a function that is offered again once they are
        over; empty if it is refused
    """

    address: Address
    ids: str
    reason: str
    remedy: str = ''
    states: tuple[WithheldState, ...] = ()

    @property
    def is_withheld(self) -> bool:
        return bool(self.states)


def group(refusals: collections.abc.Iterable[Refusal],
          ) -> dict[tuple[str, str], list[Refusal]]:
    """Return refusals by reason and remedy."""
    alike: dict[tuple[str, str], list[Refusal]] = collections.defaultdict(list)
    for refusal in refusals:
        alike[refusal.reason, refusal.remedy].append(refusal)
    return alike


@dataclasses.dataclass(frozen=True, slots=True)
class Links:
    """The direct links between Devices: NVLink, xGMI, UALink.

    Each set has the addresses of Devices, as text.

    :param partitions: sets that can only be used as a whole
    :param islands: sets of which any subset can be used together
    :param faulty: Devices with links that have failed. The partitions that
        need these links are not in ``partitions``
    """

    partitions: tuple[frozenset[str], ...] = ()
    islands: tuple[frozenset[str], ...] = ()
    faulty: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """The functions of a machine, and the devices that it offers and refuses.

    :param numa_nodes: the NUMA nodes with CPUs
    :param cpuless_nodes: for each other NUMA node, the nearest of these
    :param distances: of each NUMA node to each, without those that the
        machine does not report
    :param problems: what could not be read or understood, one line each
    :param links: link domains, including cards that are not offered
    """

    functions: tuple[Function, ...] = ()
    devices: tuple[Device, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    cpuless_nodes: collections.abc.Mapping[int, int] = dataclasses.field(
        default_factory=dict, hash=False)
    distances: collections.abc.Mapping[int, collections.abc.Mapping[
        int, int]] = dataclasses.field(default_factory=dict, hash=False)
    problems: tuple[str, ...] = ()
    links: Links = Links()

    def has(self, address: Address) -> bool:
        """Whether the machine has a function or an mdev."""
        return any(address == function.address or any(
            str(address) in mdev_type.instances
            for mdev_type in function.mdev_types)
            for function in self.functions)

    @property
    def units(self) -> collections.Counter[str]:
        """The number of offered units by resource class."""
        counts: collections.Counter[str] = collections.Counter()
        for device in self.devices:
            for region in device.regions:
                counts[region.resource_class] += region.total
        return counts

    @property
    def only_node(self) -> int | None:
        """The NUMA node with CPUs of a machine with only one, else None."""
        return self.numa_nodes[0] if len(self.numa_nodes) == 1 else None

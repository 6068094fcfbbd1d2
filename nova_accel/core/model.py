# SPDX-License-Identifier: Apache-2.0
"""Host, Device and Region as values; and the PCI facts that they rest on.

Everything here is frozen: a Host is a photograph of a machine, taken by
:mod:`nova_accel.host` and handed on.
"""

import collections
import collections.abc
import dataclasses
import functools
import re
import typing

_ADDRESS = re.compile(
    r'([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])', re.IGNORECASE)

# PCI Code and ID Assignment Specification: base class 06 is a bridge, but for
# what has no subclass of its own (NVSwitches).
_BRIDGE, _OTHER, _HOST_BRIDGE = 0x06, 0x0680, 0x0600
# These subclasses have a type 1 or 2 header, which is what lets the kernel's
# vfio take no notice of them in an IOMMU group
# (drivers/vfio: vfio_dev_driver_allowed).
_FORWARDING_BRIDGES = frozenset({0x0604, 0x0607, 0x0609})


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class PciAddress:
    """Where a PCI function sits.

    :param domain: 0 to 0xffffffff (PCIe domains made by software, such as
        Intel VMD's, start at 0x10000)
    """

    domain: int
    bus: int
    slot: int
    function: int

    @classmethod
    # A machine that is read has each of them in many places.
    @functools.lru_cache(maxsize=8192)
    def parse(cls, text: str) -> 'PciAddress':
        """Read the form that sysfs uses, ``0000:81:00.0``.

        :raises ValueError: if the text is anything else
        """
        match = _ADDRESS.fullmatch(text)
        if not match:
            raise ValueError(f'not a PCI address: {text!r}')
        return cls(*(int(part, 16) for part in match.groups()))

    def __str__(self) -> str:
        return (f'{self.domain:04x}:{self.bus:02x}:'
                f'{self.slot:02x}.{self.function:x}')


@functools.total_ordering
@dataclasses.dataclass(frozen=True, slots=True)
class ParentName:
    """A device on no PCI bus that mdevs are made of, by its name.

    Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev
    (/sys/class/mdev_bus). s390's channels and crypto cards are such devices.
    """

    name: str

    def __str__(self) -> str:
        return self.name

    def __lt__(self, other: object) -> bool:
        # PCI addresses come first.
        return isinstance(other, ParentName) and self.name < other.name


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class MdevAddress:
    """What libvirt calls the address of a mediated device: its uuid."""

    uuid: str

    def __str__(self) -> str:
        return self.uuid


#: What a hostdev's source is addressed by.
Address = PciAddress | MdevAddress


@dataclasses.dataclass(frozen=True, slots=True)
class Location:
    """Where in the machine something sits, from the processor's side.

    :param numa_node: the node, or None where the machine does not say
        (sysfs: -1)
    :param root: the host bridge as sysfs names it, ``pci0000:40``, or ''
    :param ports: addresses of the bridges on the way down, root port first
    :param switch: the nearest PCIe switch that is no part of a card, by its
        upstream port, or None
    """

    numa_node: int | None = None
    root: str = ''
    ports: tuple[str, ...] = ()
    switch: str | None = None


def nearest_switch(ports: tuple[str, ...],
                   own: collections.abc.Container[str] = ()) -> str | None:
    """The upstream port of the switch next to a device, or None.

    Below the root port each switch adds two bridges, its upstream and its
    downstream port; a single one more is a conventional PCI bridge.

    :param ports: as in :class:`Location`
    :param own: upstream ports of switches that are part of a card
    """
    return next((port for port in ports[1:-1:2][::-1] if port not in own),
                None)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a Device is.

    :param numa_node: None where the host does not say
    :param pcie_root: the host bridge, ``pci0000:40``; None where unknown
    :param pcie_switch: the nearest switch, None where there is none above it
    :param device: the card's PCI address as text
    """

    numa_node: int | None
    pcie_root: str | None
    pcie_switch: str | None
    device: str


@dataclasses.dataclass(frozen=True, slots=True)
class MdevType:
    """A type of mediated device that a function's driver makes.

    Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev.

    :param available: how many more could be made now; None if the driver
        says nothing that is a number
    :param instances: uuids of those that there are
    :param api: what a guest sees of them (``device_api``), or '' if nobody
        says
    """

    name: str
    available: int | None = 0
    instances: tuple[str, ...] = ()
    api: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """A range of memory that a PCI function answers at.

    :param number: 0 to 5, of its Base Address Register
    :param size: in bytes, a power of two
    :param wide: whether its address can be above 4 GiB
    """

    number: int
    size: int
    wide: bool = True
    prefetchable: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """One PCI function as the kernel's sysfs shows it.

    Or what else mdevs can be made of, without ids and class.

    Source: Documentation/ABI/testing/sysfs-bus-pci.

    :param vendor_id: four lower-case hexadecimal digits, as is product_id
    :param class_code: 24 bits: base class, subclass, interface
    :param iommu_group: the group's name (a number), or None without one
    :param physfn: for a virtual function, its physical function
    :param total_vfs: VFs that could be enabled
    :param num_vfs: VFs that are enabled
    :param vf_offset: how far behind its own Routing ID that of the first VF is
    :param vf_stride: and from there that of each next one
    :param mdev_types: mediated device types that its driver offers
    :param reset_methods: ways to reset it alone, as the kernel would try
        them; () if there is none, None if that is not known (kernels before
        5.15 do not name them, older recordings are silent)
    :param resets_below: of a bridge, whether all that is behind it can be
        reset at once
    :param netdevs: names of its network ports; of a virtual function, also
        those of its card
    :param vfio: whether its driver is one that a guest has devices through
    :param open: whether a program has it open through vfio-pci or its like
    :param denied: whether vfio-pci takes no function with its ids
    :param firmware: the version that its driver reports, or ''
    :param bars: its memory, or None if nobody says
    :param use: how the host itself uses it, in words, or ''
    :param console: whether the host has its console on it; so it may have on
        a VGA controller that does not say
    :param unreadable: nothing is known of it but its address and its group
    """

    address: PciAddress | ParentName
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
    resets_below: bool = False
    vfio: bool = False
    open: bool = False
    denied: bool = False
    firmware: str = ''
    bars: tuple[Bar, ...] | None = None
    use: str = ''
    console: bool = False
    unreadable: bool = False

    def vf(self, index: int) -> PciAddress | None:
        """The address that a VF of it has, or will have; None if unknown.

        Source: PCI Express Base Specification, "First VF Offset" and "VF
        Stride"; sysfs: ``sriov_offset``, ``sriov_stride``.
        """
        if not self.vf_offset or (index and not self.vf_stride):
            return None
        at = self.address
        number = (at.bus << 8 | at.slot << 3 | at.function) + (
            self.vf_offset + index * self.vf_stride) & 0xffff
        return PciAddress(at.domain, number >> 8, number >> 3 & 0x1f,
                          number & 7)

    @property
    def ids(self) -> str:
        if isinstance(self.address, ParentName):
            return 'no PCI device'
        return f'{self.vendor_id}:{self.product_id}'

    @property
    def is_bridge(self) -> bool:
        return (self.class_code >> 16 == _BRIDGE
                and self.class_code >> 8 != _OTHER)

    @property
    def is_forwarding_bridge(self) -> bool:
        return self.class_code >> 8 in _FORWARDING_BRIDGES

    @property
    def may_stay(self) -> bool:
        """A bridge that can stay in an IOMMU group that is given away.

        Without a driver, that is more of them.
        """
        return self.is_forwarding_bridge or (
            self.class_code >> 8 == _HOST_BRIDGE and not self.driver)


#: What a guest gets when it gets one unit of a Region: functions that can
#: only travel together, because they share an IOMMU group; or one mdev.
Unit = tuple[Address, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """What can be given away on its own: a whole card, VFs, mdevs of a type.

    :param name: unique within its Device, e.g. ``CUSTOM_QAT``
    :param units: like units, any of which serves a request equally; of an
        mdev type, the parent of each instance that there is or could be
    :param managed: whether libvirt binds and unbinds the driver
    :param kind: of its entry
    :param variant: which of several things that its card could be, or ''
    :param mdevs: whether units are mdevs, of the type that is the variant
    :param live_migratable: whether its state can move to another host
    :param settings: what its entry says to its kind, by key
    :param limit: how many units can be had at the same time, if not all
    :param reset: how units are reset before somebody else has them, as its
        entry says; '' if they are not
    :param needs_driver: whether a driver of the host's gets them again then,
        which makes them ready
    :param one_time_use: whether nobody has it after a server had, until it is
        freed
    :param instances: of the units that are mdevs, those of ours that there are
    :param ids: vendor and product id by function, of units that are functions
        and whatever is done with them stay what they are
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
    instances: frozenset[MdevAddress] = frozenset()
    ids: tuple[tuple[PciAddress, str], ...] = dataclasses.field(
        default=(), compare=False)

    def setting(self, key: str) -> typing.Any:
        """What its entry says for a key of its kind, None if nothing."""
        return dict(self.settings).get(key)

    def ids_of(self, address: Address) -> str:
        """A function's vendor and product id, '' if they can change."""
        return dict(self.ids).get(address, '')

    @property
    def total(self) -> int:
        """How many units can be had."""
        if self.limit is None:
            return len(self.units)
        return min(self.limit, len(self.units))


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A card: the functions that must travel together, and its Regions.

    :param address: the card's first function (for VFs: their PF)
    """

    address: PciAddress
    ids: str
    location: Location
    regions: tuple[Region, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Withheld:
    """Why nobody gets a device for the time being, and what can be done."""

    reason: str
    remedy: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A function that an entry names and that is not offered all the same."""

    address: PciAddress
    ids: str
    reason: str
    remedy: str = ''


def group(refusals: collections.abc.Iterable[Refusal],
          ) -> dict[tuple[str, str], list[Refusal]]:
    """Refusals by reason and remedy."""
    alike: dict[tuple[str, str], list[Refusal]] = collections.defaultdict(list)
    for refusal in refusals:
        alike[refusal.reason, refusal.remedy].append(refusal)
    return alike


@dataclasses.dataclass(frozen=True, slots=True)
class Links:
    """What joins Devices directly: NVLink, xGMI, UALink.

    Sets of Devices' addresses, as text.

    :param partitions: each of these can be had together as a whole only
    :param islands: of each of these any part can be had together
    """

    partitions: tuple[frozenset[str], ...] = ()
    islands: tuple[frozenset[str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """What one machine has, offers and refuses.

    :param numa_nodes: of the machine
    :param problems: what could not be read or understood, one line each
    :param links: which cards are joined, also of those that are not offered
    """

    functions: tuple[Function, ...] = ()
    devices: tuple[Device, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    links: Links = Links()

    def has(self, address: Address) -> bool:
        """Whether a function, or an mdev, is there."""
        return any(address == function.address or any(
            str(address) in mdev_type.instances
            for mdev_type in function.mdev_types)
            for function in self.functions)

    @property
    def units(self) -> collections.Counter[str]:
        """How many units are offered of each resource class."""
        counts: collections.Counter[str] = collections.Counter()
        for device in self.devices:
            for region in device.regions:
                counts[region.resource_class] += region.total
        return counts

    @property
    def only_node(self) -> int | None:
        """The machine's NUMA node where it has just one."""
        return self.numa_nodes[0] if len(self.numa_nodes) == 1 else None

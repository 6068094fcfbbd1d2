# SPDX-License-Identifier: Apache-2.0
"""The devices of a compute node, and their resource providers."""

import collections.abc
import dataclasses
import functools
import typing

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import drain
from nova_accel.core.placement import firmware


@dataclasses.dataclass(frozen=True)
class Node:
    """The compute node's resource provider.

    :param ours: names by uuid of our providers below it, including those of
        missing devices
    :param dirty: functions that were not cleaned since a server had them
        (:mod:`nova_accel.core.placement.dirt`), by uuid of our provider
    :param drained: drains by uuid of the provider that has them, one of ours
        or that of the compute node
    :param to_clean: uuids of the providers that an operator asks to clean
    :param to_free: those that an operator has cleaned
    :param marked: those that are drained, or in one of the two above
    :param withheld: the states of withheld units, by uuid of their provider
    :param foreign: the resource classes of its providers that are not ours
    :param known_firmware: the firmware that its devices have shown
    """

    uuid: str
    name: str
    ours: collections.abc.Mapping[str, str] = dataclasses.field(
        default_factory=dict)
    dirty: collections.abc.Mapping[str, frozenset[model.PciAddress]] = (
        dataclasses.field(default_factory=dict))
    drained: collections.abc.Mapping[str, drain.Drain] = dataclasses.field(
        default_factory=dict)
    to_clean: frozenset[str] = frozenset()
    to_free: frozenset[str] = frozenset()
    marked: frozenset[str] = frozenset()
    withheld: frozenset[tuple[str, model.WithheldState]] = frozenset()
    foreign: frozenset[str] = frozenset()
    known_firmware: frozenset[firmware.Version] = frozenset()

    @property
    def devices(self) -> dict[str, str]:
        """Our providers of Devices and Regions, without those of classes."""
        return {uuid: name for uuid, name in self.ours.items()
                if naming.class_of_provider(name) is None}


@dataclasses.dataclass(frozen=True)
class Offered:
    """A Region together with the resource provider that has its units.

    :param uuid: uuid of the provider
    :param name: name of the provider
    :param otherwise: for the only Region of a Device, the uuid that its
        provider would have if there were several, and vice versa
    """

    uuid: str
    name: str
    device: model.Device
    region: model.Region
    other_uuid: str = ''

    @property
    def functions(self) -> frozenset[model.PciAddress]:
        """The PCI functions of its units."""
        return frozenset(address for unit in self.region.units
                         for address in unit
                         if isinstance(address, model.PciAddress))


#: Inventories by resource class, in the form of Placement's API.
Inventories = collections.abc.Mapping[
    str, collections.abc.Mapping[str, typing.Any]]


@dataclasses.dataclass(frozen=True)
class Existing:
    """The present state of one provider in Placement."""

    uuid: str
    name: str
    parent: str | None
    inventory: Inventories
    traits: frozenset[str]


class NodeInventory:
    """The Regions that a compute node offers, with their providers.

    :param host: the machine, empty if it could not be read
    :param node: its providers in Placement
    """

    def __init__(self, host: model.Host, node: Node) -> None:
        self.host = host
        self.node = node

    @functools.cached_property
    def offered(self) -> tuple[Offered, ...]:
        """The Regions with their providers, in the order of the Host."""
        found = []
        for device in self.host.devices:
            alone = len(device.regions) == 1
            for region in device.regions:
                uuids = [naming.provider_uuid(self.node.uuid, device.address,
                                              name)
                         for name in (None, region.name)]
                uuid, other_uuid = uuids if alone else reversed(uuids)
                found.append(Offered(
                    uuid, naming.device_provider_name(self.node.name, device)
                    if alone else naming.region_provider_name(
                        self.node.name, device, region),
                    device, region, other_uuid))
        return tuple(found)

    @functools.cached_property
    def by_uuid(self) -> dict[str, Offered]:
        """``offered`` by uuid of the provider."""
        return {item.uuid: item for item in self.offered}

    @functools.cached_property
    def withheld(self) -> dict[str, model.Refusal]:
        """Refusals by uuid of the provider that the card has or would have."""
        cards = {function.address: function.physfn or function.address
                 for function in self.host.functions}
        return {naming.provider_uuid(self.node.uuid, cards[refusal.address]):
                refusal for refusal in self.host.refusals}

    @functools.cached_property
    def providers(self) -> frozenset[str]:
        """The uuids of all our providers, offered, refused or missing."""
        return frozenset(self.by_uuid).union(self.node.ours, self.withheld)

    def counting(self, classes: collections.abc.Iterable[str],
                 ) -> dict[str, str]:
        """As the function :func:`counting`, for this compute node."""
        return counting(self.node.uuid, classes)

    def find_by_alias(self, alias: str,
                      address: model.Address) -> Offered | None:
        """As the function :func:`find_by_alias`, in all ``offered``."""
        return find_by_alias(self.offered, alias, address)


def find_by_alias(items: collections.abc.Iterable[Offered], alias: str,
                  address: model.Address) -> Offered | None:
    """Return the Region that a guest's device was assigned from, if offered.

    The uuid in the alias is not enough: the provider changes when a Device
    gets a second Region or loses one, and an entry can turn the Device into
    something else. So the variant and the kind of address must match too.

    :param items: all that the Host offers
    :param alias: the device's alias
    :param address: address of the device
    """
    _group, uuid = naming.parse_alias(alias) or ('', '')
    found = None
    for item in items:
        if not _is_made_alike(item.region, alias, address):
            continue
        if uuid == item.uuid:
            return item
        if uuid == item.other_uuid and naming.is_of_variant(
                alias, item.region.variant):
            found = item
    return found


def _is_made_alike(region: model.Region, alias: str,
                   address: model.Address) -> bool:
    """Whether a device can be a unit of a Region, by variant and address."""
    if region.mdevs != isinstance(address, model.MdevAddress):
        return False
    is_variant = naming.is_of_variant(alias, region.variant)
    if region.mdevs:
        # Aliases of mdevs from older versions have no type.
        return is_variant is not False
    if naming.ids_of_alias(alias) and region.units and not region.ids:
        # The ids of a programmed unit can change, so its alias has none.
        return False
    return (bool(is_variant) if is_variant is not None
            else not region.variant)


def counting(root: str, names: collections.abc.Iterable[str],
             ) -> dict[str, str]:
    """Return classes by the uuid of their provider on a compute node.

    :param root: uuid of the compute node's provider
    :param names: the classes
    """
    return {naming.class_provider_uuid(root, name): name for name in names}

# SPDX-License-Identifier: Apache-2.0
"""A compute node's devices, and the resource providers that count them."""

import collections.abc
import dataclasses
import functools

from nova_accel.core import model
from nova_accel.core import naming


@dataclasses.dataclass(frozen=True)
class Node:
    """The compute node's resource provider.

    :param ours: names by uuid of the providers of ours below it, also of
        those whose device has gone
    :param used: those of them that are reserved until an operator frees them
        (:mod:`nova_accel.core.placement.one_time_use`)
    """

    uuid: str
    name: str
    ours: collections.abc.Mapping[str, str] = dataclasses.field(
        default_factory=dict)
    used: frozenset[str] = frozenset()

    @property
    def devices(self) -> dict[str, str]:
        """Those of Devices and their Regions, without those of classes."""
        return {uuid: name for uuid, name in self.ours.items()
                if naming.class_of_provider(name) is None}


@dataclasses.dataclass(frozen=True)
class Offered:
    """A Region together with the provider that counts its units.

    :param otherwise: uuid of the provider that would count them if the Device
        had several Regions, where it is the only one, or if it were
    """

    uuid: str
    name: str
    device: model.Device
    region: model.Region
    otherwise: str = ''


class NodeInventory:
    """What a compute node offers as it was read, by resource provider.

    :param host: the machine; an empty one, if it could not be read
    :param node: its providers in Placement
    """

    def __init__(self, host: model.Host, node: Node) -> None:
        self.host = host
        self.node = node

    @functools.cached_property
    def offered(self) -> tuple[Offered, ...]:
        """Each Region with its provider, in the order of the Host."""
        found = []
        for device in self.host.devices:
            alone = len(device.regions) == 1
            for region in device.regions:
                uuids = [naming.provider_uuid(self.node.uuid, device.address,
                                              name)
                         for name in (None, region.name)]
                uuid, otherwise = uuids if alone else reversed(uuids)
                found.append(Offered(
                    uuid, naming.device_provider_name(self.node.name, device)
                    if alone else naming.region_provider_name(
                        self.node.name, device, region),
                    device, region, otherwise))
        return tuple(found)

    @functools.cached_property
    def by_uuid(self) -> dict[str, Offered]:
        """The same by the uuid of the provider."""
        return {item.uuid: item for item in self.offered}

    @functools.cached_property
    def withheld(self) -> dict[str, model.Refusal]:
        """The providers that refused functions had, or would have."""
        cards = {function.address: function.physfn or function.address
                 for function in self.host.functions}
        return {naming.provider_uuid(self.node.uuid, cards[refusal.address]):
                    refusal for refusal in self.host.refusals}

    @functools.cached_property
    def providers(self) -> frozenset[str]:
        """The uuids of all our providers here, whatever became of them."""
        return frozenset(self.by_uuid).union(self.node.ours, self.withheld)

    def counting(self, classes: collections.abc.Iterable[str],
                 ) -> dict[str, str]:
        """Classes by the uuid of the provider that counts them here."""
        return counting(self.node.uuid, classes)

    def find_by_alias(self, alias: str,
                      address: model.Address) -> Offered | None:
        """As :func:`find_by_alias`, of all that is offered here."""
        return find_by_alias(self.offered, alias, address)


def find_by_alias(items: collections.abc.Iterable[Offered], alias: str,
                  address: model.Address) -> Offered | None:
    """What is offered of that which a guest's device was given of.

    The uuid in its alias is another Region's by now where the one Region of a
    Device has become several, or these one; and its entry may have made of
    the Device what the guest's is not. So it goes by what it was made of, too.

    :param items: all that its Host offers
    :param alias: of ours
    :param address: of the device
    """
    _group, uuid = naming.parse_alias(alias)
    found = None
    for item in items:
        if not _is_made_alike(item.region, alias, address):
            continue
        if uuid == item.uuid:
            return item
        if uuid == item.otherwise and naming.is_of_variant(
                alias, item.region.variant):
            found = item
    return found


def _is_made_alike(region: model.Region, alias: str,
                   address: model.Address) -> bool:
    """Whether a Region's units are made of their Device as this one was."""
    if region.mdevs != isinstance(address, model.MdevAddress):
        return False
    says = naming.is_of_variant(alias, region.variant)
    if region.mdevs:
        # The alias of an mdev has not always said its type.
        return says is not False
    if naming.ids_of_alias(alias) and region.units and not region.ids:
        # What is programmed has ids that change, and its alias says none.
        return False
    return bool(says) if says is not None else not region.variant


def counting(root: str, names: collections.abc.Iterable[str],
             ) -> dict[str, str]:
    """Classes by the uuid of the provider that counts them on a Host."""
    return {naming.class_provider_uuid(root, name): name for name in names}

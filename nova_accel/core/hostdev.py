# SPDX-License-Identifier: Apache-2.0
"""Hostdev: what a guest gets, one element of its libvirt XML each."""

import collections
import collections.abc
import dataclasses

from nova_accel.core import assignment
from nova_accel.core import identity
from nova_accel.core import model
from nova_accel.core import providers


@dataclasses.dataclass(frozen=True)
class Hostdev:
    """A PCI function, or an mdev, in a guest.

    :param alias: libvirt user alias that names group and provider, and of a
        function its ids, or what it was made of
    :param managed: whether libvirt binds and unbinds the driver
    :param guest_address: where the guest has it, once libvirt knows; no part
        of what it is
    """

    address: model.Address
    alias: str
    managed: bool = True
    guest_address: model.PciAddress | None = dataclasses.field(
        default=None, compare=False)

    @property
    def card(self) -> model.PciAddress | None:
        """The card that an mdev is of; None for a function."""
        return identity.card_of_alias(self.alias)

    @property
    def ids(self) -> str:
        """Vendor and product id that it was given with, '' if nobody knows."""
        return identity.ids_of_alias(self.alias)


#: What one domain holds.
Hostdevs = tuple[Hostdev, ...]


def ours(hostdevs: collections.abc.Iterable[Hostdev]) -> Hostdevs:
    """Those of a domain's hostdevs that a flavor put there."""
    return tuple(device for device in hostdevs
                 if identity.parse_alias(device.alias))


def plan(grants: collections.abc.Iterable[assignment.Grant],
         ) -> tuple[Hostdev, ...]:
    """The hostdevs of a guest, in the order of its profile's groups."""
    seen: collections.Counter = collections.Counter()
    hostdevs = []
    for grant in grants:
        for address in grant.unit:
            key = grant.group, grant.offered.uuid
            hostdevs.append(Hostdev(
                address, identity.alias(
                    *key, seen[key], grant.offered.region.ids_of(address),
                    grant.offered.region.variant, _card(grant.offered)),
                grant.offered.region.managed))
            seen[key] += 1
    return tuple(hostdevs)


def _card(item: providers.Offered) -> model.PciAddress | None:
    """What the alias of an mdev says that it is of."""
    address = item.device.address
    return (address if item.region.mdevs
            and isinstance(address, model.PciAddress) else None)

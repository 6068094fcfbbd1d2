# SPDX-License-Identifier: Apache-2.0
"""Hostdev: what a guest gets, one element of its libvirt XML each."""

import collections
import collections.abc
import dataclasses

from nova_accel.core import model
from nova_accel.core import naming


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
        return naming.card_of_alias(self.alias)

    @property
    def ids(self) -> str:
        """Vendor and product id that it was given with, '' if nobody knows."""
        return naming.ids_of_alias(self.alias)


#: What one domain holds.
Hostdevs = tuple[Hostdev, ...]


def ours(hostdevs: collections.abc.Iterable[Hostdev]) -> Hostdevs:
    """Those of a domain's hostdevs that a flavor put there."""
    return tuple(device for device in hostdevs
                 if naming.parse_alias(device.alias))

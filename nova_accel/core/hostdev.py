# SPDX-License-Identifier: Apache-2.0
"""Hostdev: one ``<hostdev>`` element of a guest's libvirt XML."""

import collections
import collections.abc
import dataclasses

from nova_accel.core import model
from nova_accel.core import naming


@dataclasses.dataclass(frozen=True)
class Hostdev:
    """A PCI function or an mdev of a guest.

    :param alias: libvirt user alias (:func:`nova_accel.core.naming.alias`)
    :param managed: whether libvirt binds and unbinds the driver
    :param guest_address: its address in the guest, None until libvirt assigns
        it; ignored when Hostdevs are compared, as are the following
    :param iommufd: whether QEMU opens it with iommufd
    :param clique: the number of a GPU's clique
        (:mod:`nova_accel.core.guest.cliques`), '' if it has none
    """

    address: model.Address
    alias: str
    managed: bool = True
    guest_address: model.PciAddress | None = dataclasses.field(
        default=None, compare=False)
    iommufd: bool = dataclasses.field(default=False, compare=False)
    clique: str = dataclasses.field(default='', compare=False)

    @property
    def group(self) -> str:
        """The group that it was assigned for, '' if it is not ours."""
        return (naming.parse_alias(self.alias) or ('', ''))[0]

    @property
    def provider(self) -> str:
        """The provider that it was assigned from, '' if it is not ours."""
        return (naming.parse_alias(self.alias) or ('', ''))[1]

    @property
    def card(self) -> model.PciAddress | None:
        """The card of an mdev, None for a function."""
        return naming.card_of_alias(self.alias)

    @property
    def ids(self) -> str:
        """Vendor and product id when it was assigned, '' if unknown."""
        return naming.ids_of_alias(self.alias)


#: The hostdevs of one domain.
Hostdevs = tuple[Hostdev, ...]


def ours(hostdevs: collections.abc.Iterable[Hostdev]) -> Hostdevs:
    """Return the hostdevs that nova_accel assigned, by their alias."""
    return tuple(device for device in hostdevs
                 if naming.parse_alias(device.alias))

# SPDX-License-Identifier: Apache-2.0
"""Who holds which device, read from libvirt, which is where it is kept.

Seam: ``nova.virt.libvirt.host.Host.list_instance_domains``.
"""

import collections.abc

from nova_accel.compute import guest
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.host import domains


class Record:
    """What the domains that libvirt has defined hold.

    :param host: nova.virt.libvirt.host.Host
    """

    def __init__(self, host):
        self._host = host

    def holders(self) -> dict[model.Address, str]:
        """The domain's uuid, by device; servers of Nova's and any other."""
        return {held.address: uuid for uuid, hostdevs in self.read().items()
                for held in hostdevs}

    def held_by(self, uuid: str) -> hostdev.Hostdevs:
        """What a server holds, as its definition has it."""
        # Not of all: each description is a question to libvirt.
        return domains.read((
            domain for domain in self._host.list_instance_domains(
                only_running=False) if domain.UUIDString() == uuid),
            guest.libvirt()).get(uuid, ())

    def read(self) -> dict[str, hostdev.Hostdevs]:
        """What each domain holds, by its uuid."""
        return domains.read(self._host.list_instance_domains(
            only_running=False), guest.libvirt())

    def short(self, is_busy: collections.abc.Callable[[str], bool],
              ) -> collections.abc.Iterator[tuple[object, hostdev.Hostdevs]]:
        """Guests that run with less than they hold, and what they lack.

        :param is_busy: whether an operation of a server goes on: one that is
            being suspended or resumed is short for a moment
        :returns: libvirt's domains
        """
        libvirt = guest.libvirt()
        for domain in self._host.list_instance_domains(only_running=True):
            # Asked again afterwards, for what has begun meanwhile.
            if is_busy(domain.UUIDString()):
                continue
            held, has = (
                domains.parse(xml)[1] if xml else () for xml in (
                    domains.describe(domain, flags, libvirt)
                    for flags in (libvirt.VIR_DOMAIN_XML_INACTIVE, 0)))
            there = {device.address for device in has}
            lacking = tuple(device for device in hostdev.ours(held)
                            if device.address not in there)
            if lacking and not is_busy(domain.UUIDString()):
                yield domain, lacking

    def running(self, uuid: str) -> hostdev.Hostdevs:
        """What a server's guest has at this moment.

        Less than it holds while it is being suspended or resumed.
        """
        libvirt = guest.libvirt()
        for domain in self._host.list_instance_domains(only_running=True):
            if domain.UUIDString() == uuid:
                xml = domains.describe(domain, 0, libvirt)
                return domains.parse(xml)[1] if xml else ()
        return ()

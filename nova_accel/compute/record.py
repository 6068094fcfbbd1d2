# SPDX-License-Identifier: Apache-2.0
"""Who holds which device, read from libvirt, which is where it is kept.

Seam: ``nova.virt.libvirt.host.Host.list_instance_domains``. Checked with Nova
33 and 34.
"""

import collections.abc

from nova_accel.compute import guest
from nova_accel.core import errors
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
        return self.read().get(uuid, ())

    def read(self) -> dict[str, hostdev.Hostdevs]:
        """What each domain holds, by its uuid."""
        held: dict[str, dict[model.Address, hostdev.Hostdev]] = {}
        for xml in self._definitions():
            uuid, hostdevs = domains.parse(xml)
            held.setdefault(uuid, {}).update(
                (hostdev_.address, hostdev_) for hostdev_ in hostdevs)
        return {uuid: tuple(by_address.values())
                for uuid, by_address in held.items()}

    def running(self, uuid: str) -> hostdev.Hostdevs:
        """What a server's guest has at this moment.

        Less than it holds while it is being suspended or resumed.
        """
        libvirt = guest.libvirt()
        for domain in self._host.list_instance_domains(only_running=True):
            if domain.UUIDString() == uuid:
                xml = _describe(domain, 0, libvirt)
                return domains.parse(xml)[1] if xml else ()
        return ()

    def _definitions(self) -> collections.abc.Iterator[str]:
        """Each domain, as it is to start next and as it is while it runs.

        A guest has let go of its devices before it is suspended; its
        definition keeps them.
        """
        libvirt = guest.libvirt()
        for domain in self._host.list_instance_domains(only_running=False):
            for flags in (libvirt.VIR_DOMAIN_XML_INACTIVE, 0):
                xml = _describe(domain, flags, libvirt)
                if xml:
                    yield xml


def _describe(domain, flags, libvirt) -> str:
    try:
        return domain.XMLDesc(flags)
    except libvirt.libvirtError as error:
        # A domain can go between the list and the look. Of any other nobody
        # knows what it holds.
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return ''
        raise errors.AssignmentError(
            'libvirt', f'does not describe a domain: {error}') from None

# SPDX-License-Identifier: Apache-2.0
"""Who holds which device, read from libvirt, which is where it is kept.

Seam: ``nova.virt.libvirt.host.Host.list_instance_domains``.
"""

import collections.abc
import threading

from nova_accel.compute.guest import hostdev_xml
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.host import libvirt_xml


class LibvirtDomains:
    """What the domains that libvirt has defined hold.

    Each description of a domain is a call to libvirt, and a host can have
    hundreds of domains. So a domain is read when it is new, when an operation
    of its server has ended, and once in each round of the periodic tasks.

    :param host: nova.virt.libvirt.host.Host
    """

    def __init__(self, host):
        self._host = host
        self._known: dict[str, libvirt_xml.Domain] = {}
        self._lock = threading.Lock()

    def invalidate(self, uuid: str) -> None:
        """Read a domain again the next time: it may hold other devices."""
        with self._lock:
            self._known.pop(uuid, None)

    def refresh(self) -> None:
        """Read every domain again the next time."""
        with self._lock:
            self._known = {}

    def holders(self) -> dict[model.Address, str]:
        """The domain's uuid, by device; servers of Nova's and any other."""
        return {held.address: uuid for uuid, hostdevs in self.read().items()
                for held in hostdevs}

    def read(self) -> dict[str, hostdev.Hostdevs]:
        """What each domain holds, by its uuid.

        :raises errors.AssignmentError: if it is not known of all of them
        """
        return {uuid: known.held for uuid, known in self._look().items()}

    def held_by(self, uuid: str) -> hostdev.Hostdevs:
        """What a server holds, as its definition has it now."""
        domain = self._domain(uuid)
        looked = domain and libvirt_xml.read_domain(domain,
                                                    hostdev_xml.libvirt())
        return looked.held if looked else ()

    def running_without_devices(
            self, is_busy: collections.abc.Callable[[str], bool],
            ) -> collections.abc.Iterator[tuple[object, hostdev.Hostdevs]]:
        """Guests that run with less than they hold, and what they lack.

        :param is_busy: whether an operation of a server goes on: one that is
            being suspended or resumed is short for a moment
        :returns: libvirt's domains
        """
        known = self._look()
        for domain in self._domains(only_running=True):
            uuid = domain.UUIDString()
            if uuid not in known or not known[uuid].lacks or is_busy(uuid):
                continue
            looked = libvirt_xml.read_domain(domain, hostdev_xml.libvirt())
            lacks = hostdev.ours(looked.lacks) if looked else ()
            # Asked again, for what has begun meanwhile.
            if lacks and not is_busy(uuid):
                yield domain, lacks

    def attached(self, uuid: str) -> hostdev.Hostdevs:
        """What a server's guest has at this moment.

        Less than it holds while it is being suspended or resumed.
        """
        domain = self._domain(uuid, only_running=True)
        xml = domain and libvirt_xml.describe(domain, 0, hostdev_xml.libvirt())
        return libvirt_xml.parse(xml)[1] if xml else ()

    def _look(self) -> dict[str, libvirt_xml.Domain]:
        """What every domain holds; reads those that are not known."""
        with self._lock:
            there = {domain.UUIDString(): domain for domain in self._domains()}
            self._known = {
                uuid: known for uuid, domain in there.items()
                if (known := self._known.get(uuid)
                    or libvirt_xml.read_domain(domain, hostdev_xml.libvirt()))}
            return dict(self._known)

    def _domain(self, uuid: str, only_running: bool = False):
        return next((domain for domain in self._domains(only_running)
                     if domain.UUIDString() == uuid), None)

    def _domains(self, only_running: bool = False) -> list:
        return self._host.list_instance_domains(only_running=only_running)

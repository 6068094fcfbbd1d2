# SPDX-License-Identifier: Apache-2.0
"""The devices that libvirt's domains hold. They are stored nowhere else.

Seams: ``nova.virt.libvirt.host.Host``: ``list_instance_domains`` and
``write_instance_config``.
"""

import collections.abc
import threading

from nova.virt.libvirt import host as hosts

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.host import libvirt_xml


def libvirt():
    """Return the libvirt module.

    Nova imports it on the first connection, so that Nova's modules can be
    loaded without it.
    """
    return hosts.libvirt


class LibvirtDomains:
    """Reads and caches the hostdevs of libvirt's domains.

    Each domain takes a call to libvirt, and a host can have hundreds of them.
    So read a domain only when it is new, when an operation of its server has
    ended, and once in each run of the periodic tasks.

    :param host: nova.virt.libvirt.host.Host
    """

    def __init__(self, host):
        self._host = host
        self._known: dict[str, libvirt_xml.Domain] = {}
        self._lock = threading.Lock()

    def invalidate(self, uuid: str) -> None:
        """Read a domain again next time: it may hold other devices."""
        with self._lock:
            self._known.pop(uuid, None)

    def refresh(self) -> None:
        """Read every domain again next time."""
        with self._lock:
            self._known = {}

    def holders(self) -> dict[model.Address, str]:
        """Return the domain's uuid by device, also of domains not of Nova."""
        return {held.address: uuid for uuid, hostdevs in self.read().items()
                for held in hostdevs}

    def read(self) -> dict[str, hostdev.Hostdevs]:
        """Return the hostdevs of each domain, by its uuid.

        :raises errors.AssignmentError: if any domain cannot be read
        """
        return {uuid: known.held for uuid, known in self._read_new().items()}

    def held_by(self, uuid: str) -> hostdev.Hostdevs:
        """Return what a server's domain holds, read from libvirt now."""
        domain = self._domain(uuid)
        found = domain and libvirt_xml.read_domain(domain, libvirt())
        return found.held if found else ()

    def running(self) -> frozenset[str]:
        """Return the uuids of the domains that run, or are paused."""
        return frozenset(domain.UUIDString() for domain
                         in self._domains(only_running=True))

    def running_without_devices(
            self, is_busy: collections.abc.Callable[[str], bool],
            ) -> collections.abc.Iterator[tuple[object, hostdev.Hostdevs]]:
        """Yield running domains that lack devices, and the missing devices.

        :param is_busy: whether an operation of a server is in progress: during
            suspend and resume, a guest lacks devices for a moment
        :returns: libvirt's domains, and the devices that each lacks
        """
        known = self._read_new()
        for domain in self._domains(only_running=True):
            uuid = domain.UUIDString()
            if uuid not in known or not known[uuid].lacks or is_busy(uuid):
                continue
            found = libvirt_xml.read_domain(domain, libvirt())
            lacks = hostdev.ours(found.lacks) if found else ()
            # Check again: an operation may have started meanwhile.
            if lacks and not is_busy(uuid):
                yield domain, lacks

    def attached(self, uuid: str) -> hostdev.Hostdevs:
        """Return the devices of a server's running guest.

        During suspend and resume it has fewer than its domain holds.
        """
        domain = self._domain(uuid, only_running=True)
        found = domain and libvirt_xml.read_domain(domain, libvirt())
        return tuple(device for device in found.held
                     if device not in found.lacks) if found else ()

    def set_aliases(self, uuid: str, aliases: collections.abc.Mapping[
            model.Address, str]) -> None:
        """Change the aliases in the definition of a server's domain.

        A running guest keeps those with which it was started.

        :raises errors.AssignmentError: if there is no domain
        """
        domain, module = self._domain(uuid), libvirt()
        xml = domain and libvirt_xml.describe(
            domain, module.VIR_DOMAIN_XML_INACTIVE
            | module.VIR_DOMAIN_XML_SECURE, module)
        if not xml:
            raise errors.AssignmentError(f'server {uuid}', 'has no domain')
        self._host.write_instance_config(libvirt_xml.with_aliases(xml,
                                                                  aliases))
        self.invalidate(uuid)

    def _read_new(self) -> dict[str, libvirt_xml.Domain]:
        """Return every domain by uuid; read those that are not cached."""
        with self._lock:
            domains = {domain.UUIDString(): domain
                       for domain in self._domains()}
            self._known = {
                uuid: known for uuid, domain in domains.items()
                if (known := self._known.get(uuid)
                    or libvirt_xml.read_domain(domain, libvirt()))}
            return dict(self._known)

    def _domain(self, uuid: str, only_running: bool = False):
        return next((domain for domain in self._domains(only_running)
                     if domain.UUIDString() == uuid), None)

    def _domains(self, only_running: bool = False) -> list:
        return self._host.list_instance_domains(only_running=only_running)

# SPDX-License-Identifier: Apache-2.0
"""Sets how many threads allocate the memory of a guest when it starts.

Nova has QEMU allocate all memory at the start if it is in huge pages, which
libvirt always preallocates, or in files (``mode='immediate'``). The number of
threads (``prealloc-threads`` of a memory backend) is, if libvirt gives none,
that of the guest's CPUs since QEMU 7.1 (backends/hostmem.c, commit
f8d426a6852c), and one before. QEMU uses at most 16, at most one for each CPU
of the host, and at least 64 MiB for each (util/oslib-posix.c).

XML: libvirt's formatdomain, "Memory Backing".

Seam: ``LibvirtConfigGuestMemoryBacking``, which has no number of threads.
"""

import functools

from lxml import etree
import nova.conf
from nova.virt.libvirt import config
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_accel.compute.guest import written_xml

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: The first libvirt with ``<allocation threads>``.
MIN_LIBVIRT = (8, 2, 0)


def set_number(guest: config.LibvirtConfigGuest, nova_host: libvirt_host.Host,
               instance) -> None:
    """Set the number of threads, unless it is set or nothing is preallocated.

    :param instance: nova.objects.Instance
    """
    number = min(CONF.nova_accel.memory_allocation_threads, guest.vcpus)
    if not number or not _needs_number(guest.membacking):
        return
    if not nova_host.has_min_version(lv_ver=MIN_LIBVIRT,
                                     hv_type=libvirt_host.HV_DRIVER_QEMU):
        LOG.info('QEMU chooses the number of threads that allocate the memory '
                 "of this server, since this host's libvirt is older than "
                 '8.2.0', instance=instance)
        return
    written_xml.change(guest.membacking, functools.partial(_write, number))


def _needs_number(backing) -> bool:
    if backing is None:
        return False
    written = backing.format_dom()
    return not written.xpath('allocation/@threads') and bool(
        written.xpath('hugepages | allocation[@mode="immediate"]'))


def _write(number: int, backing) -> None:
    allocation = backing.find('allocation')
    if allocation is None:
        allocation = etree.SubElement(backing, 'allocation')
    allocation.set('threads', str(number))

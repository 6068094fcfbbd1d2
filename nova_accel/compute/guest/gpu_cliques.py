# SPDX-License-Identifier: Apache-2.0
"""Tells a guest which of its GPUs may access each other directly.

libvirt has no element for QEMU's property of a clique. ``<qemu:override>``
sets it for the device with a user alias, and taints the domain.

XML: libvirt's drvqemu, "Overriding properties of QEMU devices".

Seam: ``LibvirtConfigGuest``, which has no elements of QEMU's namespace.
"""

import functools

from lxml import etree
from nova.virt.libvirt import config
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_accel.compute import instance_request
from nova_accel.compute.guest import hostdev_xml
from nova_accel.compute.guest import written_xml
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.guest import cliques
from nova_accel.host import libvirt_xml

LOG = logging.getLogger(__name__)

#: The first libvirt with ``<qemu:override>``.
MIN_LIBVIRT = (8, 2, 0)
#: The first QEMU that finds room for the capability in GPUs since Turing
#: (commit f6b30c1984f7). An older one does not start a guest with it.
MIN_QEMU = (8, 1, 0)


def add(guest: config.LibvirtConfigGuest, held: hostdev.Hostdevs,
        host: model.Host, nova_host: libvirt_host.Host, instance) -> None:
    """Give the GPUs of a guest their cliques, if its profile asks for them.

    :param guest: with its hostdevs
    :param instance: nova.objects.Instance
    """
    if not instance_request.of(instance).gpu_cliques:
        return
    found = cliques.find(held, host)
    reason = _why_not(guest, found, nova_host)
    if reason:
        LOG.warning('The GPUs of this server get no cliques, which its '
                    'profile asks for, since %s', reason, instance=instance)
        return
    by_alias = {device.alias: found[device.address] for device in held
                if device.address in found}
    for device in guest.devices:
        if isinstance(device, hostdev_xml.AliasedFunction):
            device.clique = by_alias.get(device.alias)
    written_xml.change(guest, functools.partial(_write, by_alias))


def _why_not(guest, found, nova_host) -> str:
    if guest.os_arch != 'x86_64' or 'q35' not in (guest.os_mach_type or ''):
        return 'its machine type is not q35'
    if not nova_host.has_min_version(lv_ver=MIN_LIBVIRT, hv_ver=MIN_QEMU,
                                     hv_type=libvirt_host.HV_DRIVER_QEMU):
        return "this host's libvirt is older than 8.2.0 or its QEMU than 8.1.0"
    if not found:
        return ('no two of its devices are NVIDIA GPUs behind one PCIe switch '
                'of this host')
    return ''


def _write(by_alias, domain) -> None:
    override = etree.SubElement(domain, libvirt_xml.QEMU + 'override',
                                nsmap={'qemu': libvirt_xml.QEMU[1:-1]})
    for alias, clique in by_alias.items():
        device = etree.SubElement(override, libvirt_xml.QEMU + 'device',
                                  alias=alias)
        etree.SubElement(
            etree.SubElement(device, libvirt_xml.QEMU + 'frontend'),
            libvirt_xml.QEMU + 'property', name=cliques.PROPERTY,
            type='unsigned', value=str(clique))

# SPDX-License-Identifier: Apache-2.0
"""A guest's physical address bits, set or said.

Seam: ``cpu.maxphysaddr`` of the guest's configuration, which Nova makes of the
flavor's ``hw:maxphysaddr_mode`` and ``hw:maxphysaddr_bits`` or the image's
``hw_maxphysaddr_*``.
"""

import re

import nova.conf
from nova.virt.libvirt import config
from nova.virt.libvirt import driver
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.guest import bar_window

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# Machine types of x86 alone, by any distribution's name.
_X86 = re.compile(r'(pc|q35)(-.*)?')


def fit(guest: config.LibvirtConfigGuest, held: hostdev.Hostdevs,
        host: model.Host, nova_host: libvirt_host.Host, instance) -> None:
    """Give a guest the address bits that BARs of its devices need.

    Or say why it cannot have them. It is left alone where its firmware can do
    without, or where the sizes of BARs are not known, as those of mdevs are.
    """
    if not _X86.fullmatch(guest.os_mach_type or ''):
        return
    needed = bar_window.need(_bars(held, host), guest.memory * 1024,
                             _uefi(guest))
    if not needed:
        return
    bits = _host_bits(nova_host)
    asked = guest.cpu and guest.cpu.maxphysaddr
    if asked:
        given = asked.bits or bits or bar_window.MAX_BITS
        if given < needed.least:
            _say(needed, f'hw:maxphysaddr_mode {asked.mode} gives it {given}',
                 instance)
        return
    reason = _obstacle(guest, needed, bits, nova_host)
    if reason:
        _say(needed, reason, instance)
        return
    width = config.LibvirtConfigGuestCPUMaxPhysAddr()
    width.mode = 'emulate'
    width.bits = bar_window.choose(needed, bits)
    guest.cpu.maxphysaddr = width
    LOG.info('Server gets %d physical address bits, since the BARs of its '
             'devices need a window of %s', width.bits,
             bar_window.text(needed.window), instance=instance)


def _uefi(guest) -> bool:
    # Its file is named instead, where libvirt has chosen it before.
    return bool(guest.os_firmware or guest.os_loader or guest.os_loader_type
                or guest.os_loader_secure is not None)


def _bars(held, host):
    known = {function.address: function.bars for function in host.functions}
    return [known[device.address] for device in held
            if known.get(device.address)]


def _host_bits(nova_host) -> int | None:
    cpu = nova_host.get_capabilities().host.cpu
    return cpu.maxphysaddr.bits if cpu and cpu.maxphysaddr else None


def _obstacle(guest, needed, bits, nova_host) -> str:
    if not CONF.nova_accel.set_address_bits:
        return '[nova_accel] set_address_bits is off'
    if guest.cpu is None:
        return 'the guest has a CPU of which nothing is said'
    # Nova's own condition for the trait that it asks hosts for.
    if not nova_host.has_min_version(
            lv_ver=driver.MIN_LIBVIRT_MAXPHYSADDR,
            hv_type=libvirt_host.HV_DRIVER_QEMU):
        return "this host's libvirt is older than 8.7.0"
    if bits is None:
        return 'libvirt does not say how many this host has'
    if bar_window.choose(needed, bits) is None:
        return (f'firmware can use {min(bits, bar_window.MAX_BITS)} on this '
                'host')
    return ''


def _say(needed, reason, instance) -> None:
    if needed.least > bar_window.MAX_BITS:
        LOG.warning(
            'The BARs of the devices that this server gets need a window of '
            '%s, which its firmware cannot have: it may not start, or leave '
            'devices without addresses. Give its flavor fewer devices',
            bar_window.text(needed.window), instance=instance)
        return
    bits = max(needed.least, min(needed.roomy, bar_window.MAX_BITS))
    LOG.warning(
        'The BARs of the devices that this server gets need a window of %s; '
        'without %d physical address bits its firmware may not start, or '
        'leave devices without addresses. They are not set, since %s. Give '
        'its flavor hw:maxphysaddr_mode=emulate and hw:maxphysaddr_bits=%d '
        '(by an API version before 2.86), or its image hw_maxphysaddr_mode '
        'and hw_maxphysaddr_bits, for hosts that have as many; or give it '
        'fewer devices', bar_window.text(needed.window), needed.least, reason,
        bits,
        instance=instance)

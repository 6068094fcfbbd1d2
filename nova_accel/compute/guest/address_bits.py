# SPDX-License-Identifier: Apache-2.0
"""Sets a guest's physical address bits, or logs why they are too few.

Seam: ``cpu.maxphysaddr`` of the guest's configuration, which Nova sets from
the flavor's ``hw:maxphysaddr_mode`` and ``hw:maxphysaddr_bits`` or the image's
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

# Machine types of x86, also with a distribution's suffix.
_X86 = re.compile(r'(pc|q35)(-.*)?')


def fit(guest: config.LibvirtConfigGuest, held: hostdev.Hostdevs,
        host: model.Host, nova_host: libvirt_host.Host, instance) -> None:
    """Set the address bits that the BARs of a guest's devices need.

    Log a warning if they cannot be set. Leave the guest unchanged if its
    firmware needs no more bits, or if the sizes of BARs are unknown (mdevs).
    """
    if not _X86.fullmatch(guest.os_mach_type or ''):
        return
    needed = bar_window.need(_bars(held, host), guest.memory * 1024,
                             _uefi(guest))
    if not needed:
        return
    bits = _host_bits(nova_host)
    requested = guest.cpu and guest.cpu.maxphysaddr
    if requested:
        available = requested.bits or bits or bar_window.MAX_BITS
        if available < needed.least:
            _warn(needed, f'hw:maxphysaddr_mode {requested.mode} gives it '
                  f'{available}', instance)
        return
    reason = _why_not_set(guest, needed, bits, nova_host)
    if bits is None or reason:
        _warn(needed, reason, instance)
        return
    width = config.LibvirtConfigGuestCPUMaxPhysAddr()
    width.mode = 'emulate'
    width.bits = bar_window.choose(needed, bits)
    guest.cpu.maxphysaddr = width
    LOG.info('Server gets %d physical address bits, since the BARs of its '
             'devices need a window of %s', width.bits,
             bar_window.text(needed.window), instance=instance)


def _uefi(guest) -> bool:
    # Once libvirt has chosen the firmware, its file is named instead.
    return bool(guest.os_firmware or guest.os_loader or guest.os_loader_type
                or guest.os_loader_secure is not None)


def _bars(held, host):
    known = {function.address: function.bars for function in host.functions}
    return [known[device.address] for device in held
            if known.get(device.address)]


def _host_bits(nova_host) -> int | None:
    cpu = nova_host.get_capabilities().host.cpu
    return cpu.maxphysaddr.bits if cpu and cpu.maxphysaddr else None


def _why_not_set(guest, needed, bits, nova_host) -> str:
    if not CONF.nova_accel.set_address_bits:
        return '[nova_accel] set_address_bits is off'
    if guest.cpu is None:
        return 'the guest has no CPU configuration'
    # Nova's own condition for the trait that it requires of hosts.
    if not nova_host.has_min_version(
            lv_ver=driver.MIN_LIBVIRT_MAXPHYSADDR,
            hv_type=libvirt_host.HV_DRIVER_QEMU):
        return "this host's libvirt is older than 8.7.0"
    if bits is None:
        return 'libvirt does not report how many this host has'
    if bar_window.choose(needed, bits) is None:
        return (f'firmware can use {min(bits, bar_window.MAX_BITS)} on this '
                'host')
    return ''


def _warn(needed, reason, instance) -> None:
    if needed.least > bar_window.MAX_BITS:
        LOG.warning(
            'The BARs of the devices that this server gets need a window of '
            '%s, more than its firmware supports: it may not start, or leave '
            'devices without addresses. Give its flavor fewer devices',
            bar_window.text(needed.window), instance=instance)
        return
    bits = max(needed.least, min(needed.roomy, bar_window.MAX_BITS))
    LOG.warning(
        'The BARs of the devices that this server gets need a window of %s; '
        'without %d physical address bits its firmware may not start, or '
        'leave devices without addresses. They are not set, since %s. Give '
        'its flavor hw:maxphysaddr_mode=emulate and hw:maxphysaddr_bits=%d '
        '(with an API version before 2.86), or its image hw_maxphysaddr_mode '
        'and hw_maxphysaddr_bits, for hosts that have as many; or give it '
        'fewer devices', bar_window.text(needed.window), needed.least, reason,
        bits,
        instance=instance)

# SPDX-License-Identifier: Apache-2.0
"""Detaches devices from running guests, and attaches them again.

Saved memory does not have the state of a device. So detach the devices before
the memory is saved. The definition of the domain keeps them meanwhile.

Seam: ``nova.virt.libvirt.guest.Guest`` (attach_device, detach_device,
get_power_state).
"""

import collections.abc
import time
import typing

from nova import exception
from nova.compute import power_state
import nova.conf
from nova.virt.libvirt import guest as libvirt_guest
from oslo_log import log as logging

from nova_accel.compute import faults
from nova_accel.compute import log_once
from nova_accel.compute.guest import hostdev_xml
from nova_accel.compute.state import libvirt_domains
from nova_accel.core import errors
from nova_accel.core import hostdev

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# Seconds. A guest that cooperates detaches a device in less than one.
_POLL = 0.5


def check_running(state: int) -> None:
    """Check that a guest is running: a paused one cannot detach devices.

    It would detach them when it is unpaused, and then run without them.

    :param state: of nova.compute.power_state
    :raises nova.exception.InstanceFaultRollback: with which Nova leaves the
        server as it is
    """
    if state != power_state.RUNNING:
        raise exception.InstanceFaultRollback(
            exception.InstanceSuspendFailure(
                reason='the guest is not running, so it cannot detach its '
                       'devices; unpause it first'))


def detach_all(domain, held: hostdev.Hostdevs,
               running: collections.abc.Callable[[], hostdev.Hostdevs],
               ) -> None:
    """Detach all devices of a running guest, or none.

    :param domain: nova.virt.libvirt.guest.Guest
    :param running: returns the devices that the guest has now
    :raises nova.exception.InstanceFaultRollback: if the guest keeps a device;
        Nova then leaves the server as it is
    """
    detached: list[hostdev.Hostdev] = []
    for device in held:
        why = _detach(domain, device, running)
        if not why:
            detached.append(device)
            continue
        error = exception.InstanceSuspendFailure(reason=faults.log_and_redact(
            'Guest was not suspended', 'the guest does not detach device '
            f'{device.address}: {why}'))
        try:
            attach(domain, detached)
        except errors.AccelError:
            # The guest lacks a device now, so there is no rollback.
            raise error from None
        raise exception.InstanceFaultRollback(error)


def attach(domain, missing: collections.abc.Iterable[hostdev.Hostdev],
           ) -> None:
    """Attach devices to a running guest, at their former guest addresses.

    :raises errors.AssignmentError: which names the device that failed
    """
    for device in missing:
        try:
            _attach(domain, device)
        except libvirt_domains.libvirt().libvirtError as error:
            raise errors.AssignmentError(
                f'device {device.address}',
                f'cannot be attached to the guest: {error}') from None


def reattach_missing(incomplete: collections.abc.Iterable[
        tuple[typing.Any, hostdev.Hostdevs]],
        prepare: collections.abc.Callable[[hostdev.Hostdevs], None],
        ) -> list[log_once.Line]:
    """Attach missing devices to running guests.

    A guest can detach a device long after a suspend has given up, once the
    guest's driver has finished with it. Or its card was missing.

    :param incomplete: libvirt's running domains, and what they lack
    :param prepare: prepares devices; raises errors.AccelError if it cannot
    :returns: messages about the devices that could not be attached
    """
    failed = []
    for domain, lacking in incomplete:
        uuid = domain.UUIDString()
        for device in lacking:
            try:
                prepare((device,))
                attach(libvirt_guest.Guest(domain), (device,))
            except errors.AccelError as error:
                failed.append((logging.ERROR, f'Guest {uuid} runs without '
                               f'a device that it holds: {error}'))
            else:
                LOG.info('Reattached %s to guest %s', device.address, uuid)
    return failed


def _attach(domain, device) -> None:
    if device.guest_address:
        try:
            domain.attach_device(hostdev_xml.hostdev_config(
                device, device.guest_address), live=True)
            return
        except libvirt_domains.libvirt().libvirtError as error:
            # Another device may have this address now. Let libvirt choose one.
            LOG.info('Could not attach %s at its former guest address: %s',
                     device.address, error)
    domain.attach_device(hostdev_xml.hostdev_config(device), live=True)


def _detach(domain, device, running) -> str:
    """Detach a device, and return why it is still attached, or ''."""
    try:
        domain.detach_device(hostdev_xml.hostdev_config(device), live=True)
    except libvirt_domains.libvirt().libvirtError as error:
        return str(error)
    seconds_left = CONF.libvirt.device_detach_timeout
    while any(device.address == other.address for other in running()):
        if seconds_left <= 0:
            return 'not within ' + errors.count(
                CONF.libvirt.device_detach_timeout, 'second')
        time.sleep(_POLL)
        seconds_left -= _POLL
    return ''

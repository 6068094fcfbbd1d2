# SPDX-License-Identifier: Apache-2.0
"""Devices of a guest whose memory is saved, and which comes back later.

A device's state is in no saved memory, so the guest lets go of its devices
first, and gets the same ones again. Its definition keeps them meanwhile.

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
from nova_accel.core import errors
from nova_accel.core import hostdev

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# Unplugging needs the guest's cooperation, and takes a part of a second.
_POLL = 0.5


def check_awake(state: int) -> None:
    """Refuse what only a guest that runs can do.

    A paused one would let go of its devices when it runs again, and by then
    be without them.

    :param state: of nova.compute.power_state
    :raises nova.exception.InstanceFaultRollback: with which Nova leaves the
        server as it is
    """
    if state != power_state.RUNNING:
        raise exception.InstanceFaultRollback(
            exception.InstanceSuspendFailure(
                reason='the guest does not run, and so cannot let go of its '
                       'devices; unpause it first'))


def detach_all(domain, held: hostdev.Hostdevs,
           running: collections.abc.Callable[[], hostdev.Hostdevs]) -> None:
    """Unplug a running guest's devices, all or none.

    :param domain: nova.virt.libvirt.guest.Guest
    :param running: what the guest has at the moment of asking
    :raises nova.exception.InstanceFaultRollback: where the guest keeps one;
        Nova then leaves the server as it is
    """
    gone: list[hostdev.Hostdev] = []
    for device in held:
        why = _unplug(domain, device, running)
        if not why:
            gone.append(device)
            continue
        error = exception.InstanceSuspendFailure(reason=faults.told(
            'Guest goes on', 'the guest does not let go of device '
            f'{device.address}: {why}'))
        try:
            attach(domain, gone)
        except errors.AccelError:
            # Short of a device, it is not as it was.
            raise error from None
        raise exception.InstanceFaultRollback(error)


def attach(domain, missing: collections.abc.Iterable[hostdev.Hostdev],
            ) -> None:
    """Plug devices into a running guest, where it had them.

    :raises errors.AssignmentError: naming the one that cannot be
    """
    for device in missing:
        try:
            _plug(domain, device)
        except hostdev_xml.libvirt().libvirtError as error:
            raise errors.AssignmentError(
                f'device {device.address}',
                f'the guest cannot have it again: {error}') from None


def reattach_missing(short: collections.abc.Iterable[
        tuple[typing.Any, hostdev.Hostdevs]],
        prepare: collections.abc.Callable[[hostdev.Hostdevs], None],
        ) -> list[log_once.Line]:
    """Give guests what they let go for a suspension that never came.

    A guest can let go of a device long after it was asked to: once its driver
    has done with it, say. One whose card was away gets it as well.

    :param short: libvirt's domains that run, and what they lack
    :param prepare: makes devices ready, or says why they cannot be had
    :returns: what could not be done
    """
    failed = []
    for domain, lacking in short:
        uuid = domain.UUIDString()
        for device in lacking:
            try:
                prepare((device,))
                attach(libvirt_guest.Guest(domain), (device,))
            except errors.AccelError as error:
                failed.append((logging.ERROR, f'Guest {uuid} runs without '
                               f'what it holds: {error}'))
            else:
                LOG.info('Guest %s has %s again', uuid, device.address)
    return failed


def _plug(domain, device) -> None:
    if device.guest_address:
        try:
            domain.attach_device(hostdev_xml.hostdev_config(
                device, device.guest_address), live=True)
            return
        except hostdev_xml.libvirt().libvirtError as error:
            # Something else may be there now: better elsewhere than without.
            LOG.info('Guest does not take %s where it was: %s',
                     device.address, error)
    domain.attach_device(hostdev_xml.hostdev_config(device), live=True)


def _unplug(domain, device, running) -> str:
    """Why a device is still there, or ''."""
    try:
        domain.detach_device(hostdev_xml.hostdev_config(device), live=True)
    except hostdev_xml.libvirt().libvirtError as error:
        return str(error)
    patience = CONF.libvirt.device_detach_timeout
    while any(device.address == other.address for other in running()):
        if patience <= 0:
            return f'not within {CONF.libvirt.device_detach_timeout} seconds'
        time.sleep(_POLL)
        patience -= _POLL
    return ''

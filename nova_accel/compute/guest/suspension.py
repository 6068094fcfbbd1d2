# SPDX-License-Identifier: Apache-2.0
"""When the devices of a guest are detached, and attached again.

As in :mod:`nova_accel.compute.server_operations`, the driver calls Nova's
method in the context that the method of the same name returns.
"""

import collections.abc
import contextlib

from nova import exception
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging
from oslo_utils import excutils

from nova_accel.compute import faults
from nova_accel.compute import log_once
from nova_accel.compute.devices import guest_devices
from nova_accel.compute.guest import hotplug
from nova_accel.compute.state import node_state
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.host import background

LOG = logging.getLogger(__name__)


class Suspension:
    """Detaches and attaches the devices of guests."""

    def __init__(self, state: node_state.NodeState,
                 devices: guest_devices.GuestDevices,
                 nova_host: libvirt_host.Host) -> None:
        self._state = state
        self._claims = state.claims
        self._domains = state.domains
        self._devices = devices
        self._nova_host = nova_host
        self._reattaching = background.Runner()
        self._incomplete_guests = log_once.LogOnce(LOG)

    @contextlib.contextmanager
    def suspend(self, instance) -> collections.abc.Iterator[None]:
        """Detach all devices; attach them again if the suspend fails."""
        with self._claims.operation(instance):
            held = hostdev.ours(self._domains.attached(instance.uuid))
            self._claims.claim(instance, held)
            domain = self._nova_host.get_guest(instance)
            if held:
                hotplug.check_running(domain.get_power_state(self._nova_host))
            hotplug.detach_all(
                domain, held, lambda: self._domains.attached(instance.uuid))
            try:
                yield
            except Exception:
                with excutils.save_and_reraise_exception():
                    self._attach(instance, held)
            finally:
                self._state.local_host.invalidate()

    @contextlib.contextmanager
    def resume(self, instance, context) -> collections.abc.Iterator[None]:
        """Attach the devices again.

        :param context: of the request
        """
        with self._claims.operation(instance):
            held = self._claims.held(instance)
            if held:
                # If resume fails, Nova undefines the domain.
                self._claims.claim(instance, held, keep=True)
                self._prepare_to_resume(held, instance, context)
            # If the domain is not defined, Nova creates the guest again, and
            # _get_guest_config claims devices for it.
            yield
            self._attach(instance, self._claims.held(instance))

    @contextlib.contextmanager
    def snapshot(self, instance, has_suspended: bool,
                 ) -> collections.abc.Iterator[None]:
        """Attach the devices again, if a snapshot has suspended the guest.

        Nova suspends a guest whose disk cannot be copied while it runs.
        """
        with self._claims.operation(instance):
            yield
            if has_suspended:
                self._attach(instance, self._claims.held(instance))

    def check_complete(self, uuid: str) -> None:
        """Attach the devices that a running guest lacks.

        :param uuid: of the server
        :raises nova.exception.VolumeRebaseFailed: if one cannot be attached
        """
        self._domains.invalidate(uuid)
        failures = hotplug.reattach_missing(
            self._domains.running_without_devices(
                lambda other: other != uuid), self._devices.prepare)
        if failures:
            raise exception.VolumeRebaseFailed(reason=faults.log_and_redact(
                'Volume cannot be swapped', '; '.join(
                    line for _level, line in failures)))

    def reattach_missing(self) -> None:
        """Attach the devices that running guests lack; log what fails."""
        self._incomplete_guests.log(hotplug.reattach_missing(
            self._domains.running_without_devices(self._claims.is_busy),
            self._devices.prepare))

    def start_reattaching(self) -> None:
        """Do it in a thread, unless this is being done."""
        self._reattaching.run(self.reattach_missing)

    def _prepare_to_resume(self, held, instance, context) -> None:
        """Keep the server suspended if its devices cannot be prepared.

        If resume fails later, Nova undefines the domain, and the saved memory
        of the guest is lost.
        """
        try:
            self._devices.prepare(held, instance, context)
        except Exception as error:
            raise exception.InstanceFaultRollback(
                exception.InstanceResumeFailure(reason=faults.log_and_redact(
                    'Server stays suspended', error, instance))) from None

    def _attach(self, instance, held: hostdev.Hostdevs) -> None:
        """Attach the missing devices to a running guest.

        If that fails, stop the guest: a reboot can repair it.
        """
        domain = self._nova_host.get_guest(instance)
        attached = {device.address
                    for device in self._domains.attached(instance.uuid)}
        try:
            hotplug.attach(domain, [device for device in held
                                    if device.address not in attached])
        except errors.AccelError as error:
            domain.poweroff()
            why = faults.log_and_redact('Guest was stopped', error, instance)
            raise exception.InstanceResumeFailure(
                reason=f'{why}; the guest was stopped') from None

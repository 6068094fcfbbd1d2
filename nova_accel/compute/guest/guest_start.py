# SPDX-License-Identifier: Apache-2.0
"""What happens to the devices of a guest when Nova defines and starts it.

Seam: ``nova.virt.libvirt.driver.LibvirtDriver._create_guest``, which calls
``post_xml_callback`` between the definition and the start.
"""

import collections.abc
import contextlib

from nova_accel.compute import faults
from nova_accel.compute.devices import guest_devices
from nova_accel.compute.devices import use as uses
from nova_accel.compute.guest import guest_roles
from nova_accel.compute.state import device_claims
from nova_accel.core import hostdev
from nova_accel.host import libvirt_xml

Callback = collections.abc.Callable[[], None]


class GuestStart:
    """The steps around the start of a guest.

    :param roles: tells the guest what its devices are
    """

    def __init__(self, claims: device_claims.DeviceClaims,
                 use: uses.Use,
                 devices: guest_devices.GuestDevices,
                 roles: guest_roles.GuestRoles) -> None:
        self._claims = claims
        self._use = use
        self._devices = devices
        self._roles = roles

    @contextlib.contextmanager
    def of(self, context, xml: str, instance, callback: Callback | None,
           ) -> collections.abc.Iterator[tuple[str, Callback]]:
        """Prepare the devices of a guest; its start is in this context.

        :param context: of the request
        :param xml: of the domain
        :param instance: nova.objects.Instance
        :param callback: what Nova calls when the domain is defined
        :returns: the XML to define, and what Nova has to call instead
        :raises nova.exception.InstanceDeployFailure: if a device cannot be
            prepared; so does the returned callback
        """
        held = hostdev.ours(libvirt_xml.parse(xml)[1])

        def defined():
            if callback:
                callback()
            with faults.deploy_failures():
                self._use.store(held, self._claims.is_new(instance))

        with self._claims.operation(instance):
            with faults.deploy_failures():
                if held:
                    # Unrescue starts the guest from its old XML. If it does
                    # not start, Nova undefines the domain.
                    self._claims.ensure_claimed(instance, held, keep=True)
                self._devices.prepare(held, instance, context)
            yield (self._roles.with_document(xml, instance) if held
                   else xml), defined

# SPDX-License-Identifier: Apache-2.0
"""Live migration: check that device state can move, and choose its targets.

Seam: ``nova.virt.libvirt.driver``: ``MIN_VFIO_PCI_VARIANT_LIBVIRT_VERSION``
and ``MIN_VFIO_PCI_VARIANT_QEMU_VERSION``;
``nova.virt.libvirt.host.Host.has_min_version``.
"""

import collections.abc
import contextlib
import typing

from nova import exception
from nova.virt.libvirt import driver
from nova.virt.libvirt import host as libvirt_host
from oslo_utils import excutils

from nova_accel.compute import allocator
from nova_accel.compute import faults
from nova_accel.compute import instance_request
from nova_accel.compute.devices import guest_devices
from nova_accel.compute.devices import reclaim
from nova_accel.compute.devices import use as uses
from nova_accel.compute.guest import migration_message
from nova_accel.compute.state import node_state
from nova_accel.compute.state import placement
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core.assignment import verify
from nova_accel.core.guest import device_state
from nova_accel.core.placement import inventory

#: Address and description of the source's hostdevs, by alias.
Announced = collections.abc.Mapping[str, tuple[str, str]]


@contextlib.contextmanager
def refusal() -> collections.abc.Iterator[None]:
    """Turn any error into one with which Nova leaves the server as it is.

    :raises nova.exception.MigrationPreCheckError: for any error
    """
    try:
        yield
    except exception.MigrationPreCheckError:
        raise
    except Exception as error:
        # For other errors Nova puts the running server into ERROR.
        raise exception.MigrationPreCheckError(reason=faults.log_and_redact(
            'Server cannot be migrated live', error)) from None


class LiveMigration:
    """The steps for devices on both hosts of a live migration.

    :param libvirt: nova.virt.libvirt.host.Host
    """

    def __init__(self, libvirt: libvirt_host.Host,
                 state: node_state.NodeState,
                 allocator: allocator.Allocator,
                 reclamation: reclaim.Reclamation,
                 devices: guest_devices.GuestDevices,
                 use: uses.Use) -> None:
        self._host = libvirt
        self._state = state
        self._allocator = allocator
        self._reclamation = reclamation
        self._devices = devices
        self._use = use
        self._claims = state.claims

    @refusal()
    def describe(self, instance) -> dict[hostdev.Hostdev, str]:
        """Describe the devices of a server's guest for the destination.

        :raises nova.exception.MigrationPreCheckError: if their state cannot
            move
        """
        running = hostdev.ours(self._state.domains.attached(instance.uuid))
        device_state.check_complete(running, self._claims.held(instance))
        if not running:
            return {}
        here = self._state.read()
        device_state.check_source(running, here.by_uuid)
        self._check_versions('this host')
        return {device: device_state.describe(device, here.host, here.by_uuid)
                for device in running}

    @contextlib.contextmanager
    def check_at_destination(self, instance, data, allocations,
                             ) -> collections.abc.Iterator[
                                 collections.abc.Callable[[typing.Any], None]]:
        """Choose and claim equal devices; end the claim if Nova refuses.

        :param data: nova.objects.LibvirtLiveMigrateData of the source
        :param allocations: in Placement's form
        :returns: writes the chosen devices into the message of Nova
        :raises nova.exception.MigrationPreCheckError: if there are none
        """
        announced = migration_message.take_announced(data)
        pairs: dict[str, hostdev.Hostdev] = {}
        with refusal(), instance.mutated_migration_context():
            if announced:
                pairs = self._choose(instance, allocations, announced)
            else:
                self._check_without(instance, allocations)

        def answer(message) -> None:
            if pairs:
                migration_message.answer(message, pairs, {
                    alias: address
                    for alias, (address, _text) in announced.items()})

        try:
            yield answer
        except Exception:
            with excutils.save_and_reraise_exception():
                self._claims.release(instance.uuid)

    @contextlib.contextmanager
    def pre_live_migration(self, instance, context, data,
                           ) -> collections.abc.Iterator[None]:
        """Prepare the chosen devices; store which of them are dirty.

        :param context: of the request
        :param data: nova.objects.LibvirtLiveMigrateData
        :raises nova.exception.MigrationPreCheckError: if that fails
        """
        planned = migration_message.planned_hostdevs(data)
        if planned:
            with refusal():
                self._accept(instance, planned)
                self._devices.prepare(planned, instance, context)
        yield
        if planned:
            # From now on, libvirt can start the guest here.
            with refusal():
                self._use.store(planned)

    def _check_without(self, instance, allocations) -> None:
        """Check that a server has no devices if its host announced none.

        :raises errors.AssignmentError: if it has
        """
        request = instance_request.of(instance)
        here, _unreadable = self._state.read_or_empty()
        if request.classes and verify.includes_our_devices(
                request, placement.allocated(allocations), here):
            raise errors.AssignmentError(
                f'server {instance.uuid}', 'the source host sent no '
                'description of its devices')

    def _choose(self, instance, allocations, announced: Announced,
                ) -> dict[str, hostdev.Hostdev]:
        """Choose and claim devices that match those of the source.

        :returns: the destination's devices, by alias of the source's
        :raises errors.AccelError: if there are none
        """
        self._check_versions('the destination')
        here = self._state.read()
        texts = {alias: text for alias, (_address, text) in announced.items()}
        like = inventory.NodeInventory(
            device_state.keep_matching(here.host, here.by_uuid,
                                       texts.values()), here.node)
        allocated = placement.allocated(allocations)
        try:
            try:
                chosen = self._allocator.choose(instance, allocated, like,
                                                is_live_migration=True)
            except errors.AssignmentError:
                # Choose from all devices, so that the error of the pairing
                # tells how they differ.
                chosen = self._allocator.choose(instance, allocated, here,
                                                is_live_migration=True)
            found = device_state.pair(texts, chosen, here.host, here.by_uuid)
        except Exception:
            with excutils.save_and_reraise_exception():
                self._claims.release(instance.uuid)
        return found

    def _accept(self, instance, planned: hostdev.Hostdevs) -> None:
        """Claim and reset the devices that the source says were chosen here.

        :raises errors.AccelError: if they were not, or cannot be reset
        """
        self._check_planned(instance, planned)
        # A restart of nova-compute loses the claim. Keep it from now on:
        # libvirt can start the guest here.
        self._claims.ensure_claimed(instance, planned)
        self._claims.keep(instance)
        here, _unreadable = self._state.read_or_empty(cached=True)
        if not self._reclamation.sanitize(instance, planned, here):
            raise errors.AssignmentError(
                f'server {instance.uuid}', 'a device that was chosen for '
                'it is dirty, or its reset failed', 'try again')

    def _check_planned(self, instance, planned) -> None:
        claimed = self._claims.get(instance)
        if not (self._are_allocated(instance, planned) if claimed is None
                else {device.address for device in planned} ==
                {device.address for device in claimed}):
            raise errors.AssignmentError(
                f'server {instance.uuid}', 'the source host names devices of '
                'this host that were not chosen for it', 'try again')

    def _are_allocated(self, instance, planned) -> bool:
        allocated = placement.allocated(
            self._state.placement_client.allocations_of_consumer(
                instance.uuid))
        return verify.matches_allocations(
            planned, instance_request.of(instance), allocated,
            self._state.read(), exactly=True)

    def _check_versions(self, here: str) -> None:
        """Check that libvirt and QEMU can move the state of devices.

        :param here: the name of this host in an error
        :raises errors.AssignmentError: if not
        """
        if not self._host.has_min_version(
                lv_ver=driver.MIN_VFIO_PCI_VARIANT_LIBVIRT_VERSION,
                hv_ver=driver.MIN_VFIO_PCI_VARIANT_QEMU_VERSION,
                hv_type=libvirt_host.HV_DRIVER_QEMU):
            raise errors.AssignmentError(
                here, 'its libvirt or QEMU is too old to move the state of '
                'devices', 'libvirt 10.0.0 and QEMU 8.2.2 can')

# SPDX-License-Identifier: Apache-2.0
"""What happens to the devices of a server in each operation of Nova.

The driver calls Nova's method in the context that the method of a like name
returns. Those of suspend, and most of live migration, are in
:mod:`nova_accel.compute.guest`.
"""

import collections.abc
import contextlib

from nova.compute import task_states
import nova.conf
from nova.virt.libvirt import host as libvirt_host
from oslo_utils import excutils

from nova_accel.compute import allocator
from nova_accel.compute import faults
from nova_accel.compute import instance_request
from nova_accel.compute import nonfatal
from nova_accel.compute.devices import guest_devices
from nova_accel.compute.reporting import announcer
from nova_accel.compute.state import node_state
from nova_accel.compute.state import placement
from nova_accel.core import errors
from nova_accel.core.assignment import verify

CONF = nova.conf.CONF

#: Task states in which Nova undefines a domain to define it again: on rebuild,
#: and on the source host of a resize to another cell.
_UNDEFINING = (task_states.REBUILDING, task_states.RESIZE_MIGRATING)


class ServerOperations:
    """The operations that claim or release the devices of a server."""

    def __init__(self, state: node_state.NodeState,
                 allocator: allocator.Allocator,
                 devices: guest_devices.GuestDevices,
                 announcer: announcer.Announcer,
                 nova_host: libvirt_host.Host) -> None:
        self._state = state
        self._claims = state.claims
        self._allocator = allocator
        self._devices = devices
        self._announcer = announcer
        self._nova_host = nova_host

    @contextlib.contextmanager
    def spawn(self, instance, allocations) -> collections.abc.Iterator[None]:
        """Claim devices for a new server."""
        with self._claims.operation(instance):
            self._allocator.for_spawn(instance, allocations)
            yield

    @contextlib.contextmanager
    def finish_migration(self, migration, instance, allocations,
                         ) -> collections.abc.Iterator[None]:
        """Claim devices for a moved or resized server."""
        if migration.source_node == migration.dest_node:
            # Nova is about to replace the domain that holds the old devices.
            self._claims.keep_for(migration.uuid, instance,
                                  self._claims.held(instance))
        with self._claims.operation(instance):
            self._allocator.for_move(instance, allocations)
            try:
                yield
            except Exception:
                with excutils.save_and_reraise_exception(), nonfatal.step(
                        'prepare the devices that a server keeps'):
                    # It stays here in ERROR. Another server must not take
                    # the capacity of its card as another type.
                    self._devices.prepare(self._claims.get(instance) or ())

    @contextlib.contextmanager
    def confirm_migration(self, migration, instance,
                          ) -> collections.abc.Iterator[None]:
        """End the claims of the old devices."""
        try:
            yield
        finally:
            self._claims.release(migration.uuid)
            if instance.host != CONF.host:
                self._claims.release(instance.uuid)

    @contextlib.contextmanager
    def finish_revert_migration(self, migration, instance,
                                ) -> collections.abc.Iterator[None]:
        """Claim the devices that a server had before its resize."""
        with self._claims.operation(instance):
            self._allocator.for_restart(instance, migration)
            # The server has its old devices now, by a claim of its own.
            self._claims.release(migration.uuid)
            yield

    @contextlib.contextmanager
    def hard_reboot(self, instance, power_off: collections.abc.Callable[
            [], None]) -> collections.abc.Iterator[None]:
        """Claim the same devices again.

        :param power_off: called if a device is missing. Nova sets a server
            whose guest still runs to ACTIVE, although it lacks a device.
        """
        with self._claims.operation(instance):
            # Nova is about to undefine the domain that holds the devices.
            self._allocator.for_restart(instance)
            with faults.deploy_failures():
                try:
                    self._devices.check(self._claims.get(instance) or ())
                except errors.AccelError:
                    with excutils.save_and_reraise_exception():
                        power_off()
            yield

    @contextlib.contextmanager
    def destroy(self, instance) -> collections.abc.Iterator[None]:
        """Keep the devices of a server until its domain is removed.

        It keeps them if Nova defines the domain again, or if the removal
        fails.
        """
        # An evacuated server is rebuilt on another node.
        is_removal = (instance.task_state not in _UNDEFINING
                      or instance.node != self._nova_host.get_hostname())
        with self._claims.operation(instance, is_removal):
            if instance_request.of(instance).classes:
                with nonfatal.step('keep the devices of a server that is '
                                   'removed', if_true=is_removal):
                    self._claims.claim(instance, self._claims.held(instance),
                                       keep=True)
            yield

    @contextlib.contextmanager
    def cleanup(self, instance) -> collections.abc.Iterator[None]:
        """End the claim of a server that has left; announce its devices."""
        try:
            yield
        finally:
            # libvirt just gave the devices back to their drivers.
            self._state.local_host.invalidate()
            self._state.domains.invalidate(instance.uuid)
            if not self._claims.is_busy(instance.uuid):
                # Without destroy(), the server is on another host by now:
                # after a live migration, or a resize to another cell.
                self._claims.release(instance.uuid)
            self._announcer.operation_ended(instance)

    @contextlib.contextmanager
    def post_live_migration(self, instance) -> collections.abc.Iterator[None]:
        """End the claim of a server that has come: its domain is defined."""
        self._claims.release(instance.uuid)
        try:
            yield
        finally:
            self._announcer.operation_ended(instance)

    @contextlib.contextmanager
    def rollback_live_migration(self, instance,
                                ) -> collections.abc.Iterator[None]:
        """End the claim of a server that does not come."""
        try:
            yield
        finally:
            self._claims.release(instance.uuid)

    def numa_nodes(self, flavor, allocations) -> frozenset[int]:
        """Return the NUMA nodes near the devices that a server is to get."""
        with nonfatal.step('find the NUMA nodes of the devices of a server'):
            request = instance_request.of_flavor(flavor)
            # Skip reading the host for a server without devices.
            return verify.numa_nodes(
                request, placement.allocated(allocations),
                self._state.read_or_empty(cached=True)[0],
                self._state.holders.hostdevs
            ) if request.classes else frozenset()
        return frozenset()

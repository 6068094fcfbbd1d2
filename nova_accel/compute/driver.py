# SPDX-License-Identifier: Apache-2.0
"""``compute_driver = accel.LibvirtDriver``: Nova's libvirt driver, and ours.

Each override calls Nova's method and one thing of ours. Signatures are passed
through, so that the class fits Nova 33 and 34, with which each seam was
checked (tests/contract):

===========================  ==========================================
``init_host``                say what is offered and who holds it
``get_available_resource``   locations, for the scheduler
``update_provider_tree``     our providers
``spawn``                    devices for a new server
``finish_migration``         devices for a server that arrives
``finish_revert_migration``  the old devices again
``_hard_reboot``             the same devices again
``destroy``                  keep them, where a rebuild goes on to spawn
``_get_guest_config``        hostdev elements, on every way to guest XML
===========================  ==========================================
"""

import contextlib
import copy

from nova import context as nova_context
from nova import exception
from nova.compute import task_states
from nova.virt.libvirt import driver
from oslo_log import log as logging

from nova_accel.compute import claims
from nova_accel.compute import guest
from nova_accel.compute import machine
from nova_accel.compute import provider_tree as provider_trees
from nova_accel.compute import record
from nova_accel.core import errors
from nova_accel.core import flavor
from nova_accel.core import identity
from nova_accel.core import model
from nova_accel.core import providers
from nova_accel.core import summary

LOG = logging.getLogger(__name__)


class LibvirtDriver(driver.LibvirtDriver):
    """Nova's libvirt driver with devices that profiles ask for."""

    def __init__(self, virtapi, *args, **kwargs):
        super().__init__(virtapi, *args, **kwargs)
        self._machine = machine.Machine()
        self._record = record.Record(self._host)
        self._claims = claims.Claims(self._record)

    # What there is

    def init_host(self, *args, **kwargs):
        super().init_host(*args, **kwargs)
        with _never_fatal('read which devices servers hold'):
            self._machine.read()
            held = [list(filter(_is_ours, hostdevs))
                    for hostdevs in self._record.read().values()]
            LOG.info('%d hostdevs are held by %d servers',
                     sum(map(len, held)), sum(map(bool, held)))

    def get_available_resource(self, *args, **kwargs):
        resources = super().get_available_resource(*args, **kwargs)
        with _never_fatal('tell the scheduler where devices are'):
            stats = dict(resources.get('stats') or {})
            node = self._node()
            stats[summary.KEY] = summary.dumps(providers.offered(
                self._machine.read(), node.uuid, node.name))
            resources['stats'] = stats
        return resources

    def update_provider_tree(self, provider_tree, nodename, *args, **kwargs):
        super().update_provider_tree(provider_tree, nodename, *args, **kwargs)
        with _never_fatal('report devices to Placement'):
            provider_trees.update(provider_tree, nodename,
                                  self._machine.read(), self._is_allocated)
            # Nova keeps the tree for itself; so it has to have ours in it.
            self.provider_tree = copy.deepcopy(provider_tree)

    # Who gets it

    def spawn(self, context, instance, image_meta, injected_files,
              admin_password, allocations, *args, **kwargs):
        with self._claims.during(instance):
            self._assign(instance, allocations)
            return super().spawn(context, instance, image_meta,
                                 injected_files, admin_password, allocations,
                                 *args, **kwargs)

    def finish_migration(self, context, migration, instance, disk_info,
                         network_info, image_meta, resize_instance,
                         allocations, *args, **kwargs):
        with self._claims.during(instance):
            self._assign(instance, allocations)
            return super().finish_migration(
                context, migration, instance, disk_info, network_info,
                image_meta, resize_instance, allocations, *args, **kwargs)

    def finish_revert_migration(self, context, instance, *args, **kwargs):
        with self._claims.during(instance):
            self._assign_as_placement_says(instance)
            return super().finish_revert_migration(context, instance, *args,
                                                   **kwargs)

    def _hard_reboot(self, context, instance, *args, **kwargs):
        with self._claims.during(instance):
            # Its definition, the record, is about to be undefined.
            self._assign_as_placement_says(instance)
            return super()._hard_reboot(context, instance, *args, **kwargs)

    def destroy(self, context, instance, *args, **kwargs):
        if (instance.task_state == task_states.REBUILDING
                and flavor.classes(instance.flavor.extra_specs)):
            # Its definition goes, and spawn comes: for the same devices.
            self._claims.claim(instance, self._claims.held(instance))
            return super().destroy(context, instance, *args, **kwargs)
        with self._claims.during(instance):
            return super().destroy(context, instance, *args, **kwargs)

    def _get_guest_config(self, instance, *args, **kwargs):
        config = super()._get_guest_config(instance, *args, **kwargs)
        with self._claims.during(instance):
            if self._claims.of(instance) is None:
                self._assign_as_placement_says(instance)
            for hostdev in self._claims.of(instance) or ():
                config.add_device(guest.hostdev_config(hostdev))
        return config

    def _assign_as_placement_says(self, instance) -> None:
        if flavor.classes(instance.flavor.extra_specs):
            # An operation's context may have no token, at host boot say.
            report = self.virtapi.reportclient
            self._assign(instance, report.get_allocations_for_consumer(
                nova_context.get_admin_context(), instance.uuid))

    def _assign(self, instance, allocations) -> None:
        """Claim the devices that a server was promised.

        Those that it has, if they are what it was promised, whatever the
        configuration says by now; otherwise a choice.

        :raises nova.exception.ComputeResourcesUnavailable: with which Nova
            tries the next host
        """
        if not flavor.classes(instance.flavor.extra_specs):
            return
        promised = {uuid: allocation['resources']
                    for uuid, allocation in (allocations or {}).items()}
        node = self._node()
        host, unreadable = self._look()
        if not claims.concerns_us(instance, promised, host, node):
            # Said once for the whole operation.
            self._claims.claim(instance, ())
            return
        try:
            held = self._claims.held(instance)
            if held and claims.keeps(held, instance, promised):
                self._claims.claim(instance, held)
                return
            self._claims.release(instance)
            if unreadable:
                raise unreadable
            chosen = self._claims.choose(instance, promised, host, node)
        except errors.AccelError as error:
            LOG.warning('Server gets no devices: %s', error,
                        instance=instance)
            raise exception.ComputeResourcesUnavailable(
                reason=str(error)) from None
        if chosen:
            LOG.info('Server gets %s', ', '.join(
                str(hostdev.address) for hostdev in chosen),
                instance=instance)

    def _look(self) -> tuple[model.Host, errors.TreeError | None]:
        """The Host; or an empty one, and why it cannot be read."""
        try:
            return self._machine.read(), None
        except errors.TreeError as error:
            return model.Host(), error

    def _node(self) -> claims.Node:
        name = self._host.get_hostname()
        # Nova's copy of the tree; None until the first update.
        known = (provider_trees.existing(self.provider_tree, name)
                 if self.provider_tree else [])
        return claims.Node(self._host.get_node_uuid(), name, {
            provider.uuid: provider.name for provider in known})

    def _is_allocated(self, provider: str) -> bool:
        allocations = (
            self.virtapi.reportclient.get_allocations_for_resource_provider(
                nova_context.get_admin_context(), provider))
        return bool(allocations.allocations)


def _is_ours(hostdev) -> bool:
    return identity.parse_alias(hostdev.alias) is not None


@contextlib.contextmanager
def _never_fatal(what: str):
    """Keep nova-compute up, whatever a device, a file or our code does."""
    try:
        yield
    except errors.TreeError as error:
        # Said once already, and then at every round of the periodic tasks.
        LOG.debug('Could not %s: %s', what, error)
    except Exception:
        LOG.exception('Could not %s', what)

# SPDX-License-Identifier: Apache-2.0
"""``compute_driver = accel.LibvirtDriver``: the libvirt driver, with devices.

Each override calls Nova's method and adds one step of ours. Signatures are
passed through, so that the class works with every version of Nova that it is
tested with (tests/contract):

========================================== ===================================
``init_host``                              set the numbers of VFs; recreate
                                           mdevs after a reboot of the host
``get_available_resource``                 send device locations to the
                                           scheduler
``update_provider_tree``                   release unused devices; audit;
                                           report resource providers; announce
                                           changes
``spawn``                                  claim devices for a new server
``finish_migration``                       claim devices for a moved or
                                           resized server
``finish_revert_migration``                claim the devices that the server
                                           had before its resize
``confirm_migration``                      end the claims of the old devices
``_hard_reboot``                           claim the same devices again
``destroy``                                keep the devices of a server whose
                                           domain Nova defines again, or whose
                                           removal fails
``cleanup``                                forget the cached Host and domain;
                                           end the claim of a server that has
                                           left; announce released devices
``_get_guest_config``                      add hostdevs, and address bits for
                                           their BARs
``_create_guest``                          create mdevs and program FPGAs;
                                           describe the devices to the guest;
                                           store which devices are dirty
``_build_device_metadata``                 add the roles of the devices
``unrescue``                               rebuild the metadata, as is done in
                                           other methods below
``_allocate_mdevs``                        hide our allocations from Nova
``suspend``                                detach all devices first
``resume``                                 reattach the devices
``_resume_guest_after_snapshot``           reattach the devices, if the
                                           snapshot suspended the guest
``_swap_volume``                           reattach missing devices first
``_get_mdevs_from_guest_config``           hide our mdevs from Nova
``check_can_live_migrate_source``          check that the state of the devices
                                           can move; describe them
``check_source_migrate_data_at_dest``      choose equal devices on this host
``pre_live_migration``                     prepare the chosen devices; store
                                           which devices are dirty
``_live_migration_operation``              write their aliases and addresses
                                           into the XML
``_live_migration_monitor``                no switch to post-copy with devices
``_is_post_copy_enabled``                  no post-copy with devices
``post_live_migration_at_destination``     end the claim: the domain is
                                           defined
``rollback_live_migration_at_destination`` end the claim
========================================== ===================================
"""

import copy
import functools

from nova import exception
from nova.compute import task_states
import nova.conf
from nova.virt.libvirt import driver
from oslo_log import log as logging
from oslo_utils import excutils

from nova_accel.compute import adoption
from nova_accel.compute import allocator
from nova_accel.compute import class_mover
from nova_accel.compute import faults
from nova_accel.compute import instance_request
from nova_accel.compute import log_once
from nova_accel.compute import nonfatal
from nova_accel.compute import patches
from nova_accel.compute.devices import device_config
from nova_accel.compute.devices import fabric_partitions
from nova_accel.compute.devices import firmware_probes
from nova_accel.compute.devices import prepare
from nova_accel.compute.devices import reclaim
from nova_accel.compute.devices import use
from nova_accel.compute.devices import virtual_functions
from nova_accel.compute.guest import guest_config
from nova_accel.compute.guest import guest_roles
from nova_accel.compute.guest import guest_start
from nova_accel.compute.guest import hostdev_xml
from nova_accel.compute.guest import live_migration
from nova_accel.compute.guest import migration_message
from nova_accel.compute.guest import suspend
from nova_accel.compute.reporting import announcer
from nova_accel.compute.reporting import audit
from nova_accel.compute.reporting import tree_update
from nova_accel.compute.state import device_claims
from nova_accel.compute.state import kept_claims
from nova_accel.compute.state import libvirt_domains
from nova_accel.compute.state import local_host
from nova_accel.compute.state import node_holders
from nova_accel.compute.state import node_state
from nova_accel.compute.state import placement
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.assignment import verify
from nova_accel.core.placement import host_summary
from nova_accel.core.placement import inventory
from nova_accel.host import background
from nova_accel.host import libvirt_xml

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

#: Task states in which Nova undefines a domain to define it again: on rebuild,
#: and on the source host of a resize to another cell.
_UNDEFINING = (task_states.REBUILDING, task_states.RESIZE_MIGRATING)


class LibvirtDriver(driver.LibvirtDriver):
    """Nova's libvirt driver, with the devices that profiles request."""

    def __init__(self, virtapi, *args, **kwargs):
        super().__init__(virtapi, *args, **kwargs)
        self._domains = libvirt_domains.LibvirtDomains(self._host)
        self._claims = device_claims.DeviceClaims(
            self._domains, kept_claims.KeptClaims(self._host.get_node_uuid))
        self._placement_client = placement.PlacementClient(virtapi)
        self._holders = node_holders.NodeHolders(
            self._domains, self._claims, self._placement_client)
        self._local_host = local_host.LocalHost(self._holders.hostdevs)
        self._read_node = functools.lru_cache(maxsize=1)(tree_update.read_node)
        self._state = node_state.NodeState(
            self._local_host, self._domains, self._claims,
            self._placement_client, self._holders, self._node)
        self._preparation = prepare.Preparation(self._local_host)
        self._fabric = fabric_partitions.FabricPartitions(self._state)
        self._use = use.Use(self._state)
        self._reclamation = reclaim.Reclamation(self._state,
                                                self._preparation)
        self._probes = firmware_probes.FirmwareProbes(self._state)
        self._allocator = allocator.Allocator(self._state, self._probes,
                                              self._reclamation)
        self._guest_config = guest_config.GuestConfig(
            self._state, self._allocator, self._host)
        self._guest_roles = guest_roles.GuestRoles(self._state, self._host)
        self._guest_start = guest_start.GuestStart(
            self._claims, self._use, self._prepare, self._guest_roles)
        self._device_migration = live_migration.LiveMigration(
            self._host, self._state, self._allocator, self._reclamation)
        self._adopter = adoption.Adopter(self._state, virtapi)
        self._class_mover = class_mover.ClassMover(self._state)
        self._auditor = audit.Auditor(self._state)
        self._announcer = announcer.Announcer(self._state)
        self._claims.on_end = self._announcer.operation_ended
        self._reattaching = background.Runner()
        self._incomplete_guests = log_once.LogOnce(LOG)
        patches.install()

    # Start and periodic tasks

    def init_host(self, *args, **kwargs):
        super().init_host(*args, **kwargs)
        with nonfatal.step('read what servers keep without a domain'):
            self._claims.load()
        with nonfatal.step('set the number of virtual functions'):
            node = self._node()
            virtual_functions.set_numbers(self._local_host, node,
                                          self._holders.read(node.name))
        with nonfatal.step('read which devices servers hold'):
            host = self._local_host.read()
            self._announcer.start(self._domains.read())
            held = [ours for hostdevs in self._holders.hostdevs().values()
                    if (ours := hostdev.ours(hostdevs))]
            LOG.info('%s held by %s', errors.count(
                sum(map(len, held)), 'hostdev is', 'hostdevs are'),
                errors.count(len(held), 'server'))
            # A reboot of the host removes all mdevs. Recreate them before a
            # new server takes their place on the card.
            for hostdevs in held:
                with nonfatal.step('recreate the mdevs that servers hold'):
                    self._prepare(hostdevs, host=host)
        with nonfatal.step('reattach missing devices to guests'):
            self._reattach_missing()

    def _reattach_missing(self) -> None:
        self._incomplete_guests.log(suspend.reattach_missing(
            self._domains.running_without_devices(self._claims.is_busy),
            self._prepare))

    def get_available_resource(self, *args, **kwargs):
        resources = super().get_available_resource(*args, **kwargs)
        with nonfatal.step('read which devices are drained'):
            node = self._node()
            if node.ours:
                self._local_host.dirt.note_failures()
                self._placement_client.refresh_requests(node)
        with nonfatal.step('read who holds devices'):
            self._domains.refresh()
            if self.provider_tree:
                self._reclamation.end_claims(node)
        with nonfatal.step('report device locations to the scheduler'):
            stats = dict(resources.get('stats') or {})
            here = self._state.read()
            stats[host_summary.KEY] = host_summary.dumps(
                here.offered,
                self._holders.recent(here.node.name).counts(here.offered),
                here.host.links,
                here.host.cpuless_nodes)
            resources['stats'] = stats
        return resources

    def update_provider_tree(self, provider_tree, nodename, *args, **kwargs):
        super().update_provider_tree(provider_tree, nodename, *args, **kwargs)
        host = node = None
        with nonfatal.step('release and reset devices that no server holds'):
            # Walks through the whole tree, so do it once for all steps below.
            node = self._node(provider_tree)
            with nonfatal.step('see which devices are withheld'):
                self._local_host.refresh_withheld(node)
                self._probes.run_due()
            with nonfatal.step('settle the partitions of the fabric'):
                self._fabric.settle()
            host = self._reclamation.clear_up(node)
        with nonfatal.step('take over servers of [pci] alias or of Cyborg'):
            self._adopt(node, provider_tree)
        with nonfatal.step('move servers to other resource classes'):
            self._class_mover.move(
                inventory.NodeInventory(self._local_host.read_cached(), node),
                lambda uuid: provider_tree.data(uuid).inventory)
        with nonfatal.step('reattach missing devices to guests'):
            self._reattaching.run(self._reattach_missing)
        with nonfatal.step('audit the devices that servers hold'):
            self._auditor.audit(lambda: inventory.NodeInventory(
                self._local_host.read_cached(),
                node or self._node(provider_tree)))
        with nonfatal.step('report devices to Placement'):
            tree_update.update(
                provider_tree, inventory.NodeInventory(
                    host or self._local_host.read(),
                    node or self._node(provider_tree)),
                self._placement_client.units_by_class,
                self._holders.recent(nodename),
                self._local_host.dirt.cleaned(),
                self._local_host.dirt.unstored(), self._auditor.disputed)
            provider_tree.add_traits(
                nodename, *self._local_host.firmware.new_traits())
            # The libvirt driver keeps its own copy, made before our update.
            self.provider_tree = copy.deepcopy(provider_tree)
        with nonfatal.step('announce what has changed'):
            self._announcer.announce_servers()
            if host and node:
                self._announcer.announce_devices(
                    inventory.NodeInventory(host, node))

    def refresh_providers(self) -> None:
        """Let Nova read outdated providers again, before it reports."""
        self._placement_client.refresh_providers()

    def _adopt(self, node, provider_tree) -> None:
        self._adopter.adopt(
            inventory.NodeInventory(self._local_host.read_cached(), node),
            lambda: {uuid: provider_tree.data(uuid).name
                     for uuid in provider_tree.get_provider_uuids()})

    # Claims of devices

    def nodes_for(self, flavor, allocations) -> frozenset[int]:
        """Return the NUMA nodes near the devices of a guest, for its claim."""
        with nonfatal.step('find the NUMA nodes of the devices of a server'):
            request = instance_request.of_flavor(flavor)
            # Skip reading the host for a server without devices.
            return verify.numa_nodes(
                request, placement.allocated(allocations),
                self._state.read_or_empty(cached=True)[0],
                self._holders.hostdevs) if request.classes else frozenset()
        return frozenset()

    def spawn(self, context, instance, image_meta, injected_files,
              admin_password, allocations, *args, **kwargs):
        with self._claims.operation(instance):
            self._allocator.for_spawn(instance, allocations)
            return super().spawn(context, instance, image_meta,
                                 injected_files, admin_password, allocations,
                                 *args, **kwargs)

    def finish_migration(self, context, migration, instance, disk_info,
                         network_info, image_meta, resize_instance,
                         allocations, *args, **kwargs):
        if migration.source_node == migration.dest_node:
            # Nova is about to replace the domain that holds the old devices.
            self._claims.keep_for(migration.uuid, instance,
                                  self._claims.held(instance))
        with self._claims.operation(instance):
            self._allocator.for_move(instance, allocations)
            try:
                return super().finish_migration(
                    context, migration, instance, disk_info, network_info,
                    image_meta, resize_instance, allocations, *args, **kwargs)
            except Exception:
                with excutils.save_and_reraise_exception(), nonfatal.step(
                        'prepare the devices that a server keeps'):
                    # It stays here in ERROR. Another server must not take
                    # the capacity of its card as another type.
                    self._prepare(self._claims.get(instance) or ())

    def confirm_migration(self, context, migration, instance, *args,
                          **kwargs):
        try:
            return super().confirm_migration(context, migration, instance,
                                             *args, **kwargs)
        finally:
            self._claims.release(migration.uuid)
            if instance.host != CONF.host:
                self._claims.release(instance.uuid)

    def finish_revert_migration(self, context, instance, network_info,
                                migration, *args, **kwargs):
        with self._claims.operation(instance):
            self._allocator.for_restart(instance, migration)
            # The server has its old devices now, by a claim of its own.
            self._claims.release(migration.uuid)
            super().finish_revert_migration(
                context, instance, network_info, migration, *args, **kwargs)
            # The instance has the metadata of the host that it leaves.
            if any(instance_request.of_flavor(flavor).classes
                   for flavor in (instance.flavor, instance.new_flavor)
                   if flavor):
                self._rebuild_metadata(context, instance)

    def _hard_reboot(self, context, instance, *args, **kwargs):
        with self._claims.operation(instance):
            # Nova is about to undefine the domain that holds the devices.
            self._allocator.for_restart(instance)
            self._check_present(instance, self._claims.get(instance) or ())
            return super()._hard_reboot(context, instance, *args, **kwargs)

    def _check_present(self, instance, held: hostdev.Hostdevs) -> None:
        """Fail before the domain is undefined if a device is missing."""
        with faults.deploy_failures():
            try:
                self._preparation.check(held, self._node())
            except errors.AccelError:
                with excutils.save_and_reraise_exception():
                    # Nova sets a server whose guest still runs to ACTIVE,
                    # although it lacks a device.
                    self._destroy(instance)

    def destroy(self, context, instance, *args, **kwargs):
        # An evacuated server is rebuilt on another node.
        is_removal = (instance.task_state not in _UNDEFINING
                      or instance.node != self._host.get_hostname())
        with self._claims.operation(instance, is_removal):
            if instance_request.of(instance).classes:
                # The server keeps its devices if Nova defines its domain
                # again, or if it is not removed.
                with nonfatal.step('keep the devices of a server that is '
                                  'removed', if_true=is_removal):
                    self._claims.claim(instance, self._claims.held(instance),
                                       keep=True)
            return super().destroy(context, instance, *args, **kwargs)

    def cleanup(self, context, instance, *args, **kwargs):
        try:
            return super().cleanup(context, instance, *args, **kwargs)
        finally:
            # libvirt just gave the devices back to their drivers.
            self._local_host.invalidate()
            self._domains.invalidate(instance.uuid)
            if not self._claims.is_busy(instance.uuid):
                # Without destroy(), the server is on another host by now:
                # after a live migration, or a resize to another cell.
                self._claims.release(instance.uuid)
            self._announcer.operation_ended(instance)

    def _get_guest_config(self, instance, *args, **kwargs):
        config = super()._get_guest_config(instance, *args, **kwargs)
        self._guest_config.complete(config, instance)
        return config

    def _create_guest(self, context, xml, instance, power_on=True,
                      pause=False, post_xml_callback=None, *args, **kwargs):
        with self._guest_start.of(context, xml, instance,
                                  post_xml_callback) as (xml, defined):
            return super()._create_guest(context, xml, instance, power_on,
                                         pause, defined, *args, **kwargs)

    def unrescue(self, context, instance, *args, **kwargs):
        super().unrescue(context, instance, *args, **kwargs)
        if instance_request.of(instance).classes:
            # It has the metadata of the guest that was rescued.
            self._rebuild_metadata(context, instance)

    def _build_device_metadata(self, context, instance, *args, **kwargs):
        return self._guest_roles.with_metadata(
            super()._build_device_metadata(context, instance, *args,
                                           **kwargs), instance)

    def _rebuild_metadata(self, context, instance) -> None:
        """Rebuild the device metadata where Nova does not; Nova saves it."""
        with nonfatal.step('rebuild the device metadata of a server'):
            instance.device_metadata = self._build_device_metadata(context,
                                                                   instance)

    def _allocate_mdevs(self, allocations, *args, **kwargs):
        node = self._node()
        # While nova-compute starts, Nova has no tree, and node.ours is empty.
        ours = {*node.ours, *inventory.counting(node.uuid, {
            name for allocation in (allocations or {}).values()
            for name in allocation['resources']})}
        return super()._allocate_mdevs({
            uuid: allocation
            for uuid, allocation in (allocations or {}).items()
            if uuid not in ours}, *args, **kwargs)

    # Suspend and resume

    def suspend(self, context, instance, *args, **kwargs):
        with self._claims.operation(instance):
            held = hostdev.ours(self._domains.attached(instance.uuid))
            self._claims.claim(instance, held)
            domain = self._host.get_guest(instance)
            if held:
                suspend.check_running(domain.get_power_state(self._host))
            suspend.detach_all(
                domain, held, lambda: self._domains.attached(instance.uuid))
            try:
                super().suspend(context, instance, *args, **kwargs)
            except Exception:
                with excutils.save_and_reraise_exception():
                    self._reattach(instance, held)
            finally:
                self._local_host.invalidate()

    def resume(self, context, instance, *args, **kwargs):
        with self._claims.operation(instance):
            held = self._claims.held(instance)
            if held:
                # If resume fails, Nova undefines the domain.
                self._claims.claim(instance, held, keep=True)
                self._prepare_to_resume(held, instance, context)
            # If the domain is not defined, Nova creates the guest again, and
            # _get_guest_config claims devices for it.
            super().resume(context, instance, *args, **kwargs)
            self._reattach(instance, self._claims.held(instance))
            if held:
                self._rebuild_metadata(context, instance)

    def _prepare_to_resume(self, held, instance, context) -> None:
        """Keep the server suspended if its devices cannot be prepared.

        If resume fails later, Nova undefines the domain, and the saved memory
        of the guest is lost.
        """
        try:
            self._prepare(held, instance, context)
        except Exception as error:
            raise exception.InstanceFaultRollback(
                exception.InstanceResumeFailure(reason=faults.log_and_redact(
                    'Server stays suspended', error, instance))) from None

    def _resume_guest_after_snapshot(self, context, live_snapshot,
                                     original_power_state, instance, *args,
                                     **kwargs):
        # Nova suspends a guest whose disk cannot be copied while it runs.
        with self._claims.operation(instance):
            super()._resume_guest_after_snapshot(
                context, live_snapshot, original_power_state, instance, *args,
                **kwargs)
            if self._needs_suspend_resume_for_snapshot(live_snapshot,
                                                       original_power_state):
                self._reattach(instance, self._claims.held(instance))
                if instance_request.of(instance).classes:
                    self._rebuild_metadata(context, instance)

    def _reattach(self, instance, held: hostdev.Hostdevs) -> None:
        """Attach the missing devices to a running guest.

        If that fails, stop the guest: a reboot can repair it.
        """
        domain = self._host.get_guest(instance)
        attached = {device.address
                    for device in self._domains.attached(instance.uuid)}
        try:
            suspend.attach(domain, [device for device in held
                                    if device.address not in attached])
        except errors.AccelError as error:
            domain.poweroff()
            why = faults.log_and_redact('Guest was stopped', error, instance)
            raise exception.InstanceResumeFailure(
                reason=f'{why}; the guest was stopped') from None

    def _swap_volume(self, guest, *args, **kwargs):
        # Nova redefines the domain from the XML of the running guest. The
        # definition would lose each device that the guest lacks.
        self._domains.invalidate(guest.uuid)
        failures = suspend.reattach_missing(
            self._domains.running_without_devices(
                lambda uuid: uuid != guest.uuid), self._prepare)
        if failures:
            raise exception.VolumeRebaseFailed(reason=faults.log_and_redact(
                'Volume cannot be swapped', '; '.join(
                    line for _level, line in failures)))
        return super()._swap_volume(guest, *args, **kwargs)

    def _get_mdevs_from_guest_config(self, xml, *args, **kwargs):
        held = {device.address
                for device in hostdev.ours(libvirt_xml.parse(xml)[1])}
        return [element for element
                in super()._get_mdevs_from_guest_config(
                    xml, *args, **kwargs)
                if not hostdev_xml.holds(element, held.__contains__)]

    # Live migration

    def check_can_live_migrate_source(self, context, instance, *args,
                                      **kwargs):
        with live_migration.refusal():
            described = self._device_migration.describe(instance)
        data = super().check_can_live_migrate_source(context, instance, *args,
                                                     **kwargs)
        if described:
            migration_message.announce(data, described)
        return data

    def check_source_migrate_data_at_dest(self, ctxt, instance, migrate_data,
                                          migration, limits, allocs, *args,
                                          **kwargs):
        announced = migration_message.take_announced(migrate_data)
        pairs = {}
        with live_migration.refusal(), instance.mutated_migration_context():
            if announced:
                pairs = self._device_migration.choose(instance, allocs,
                                                      announced)
            else:
                self._device_migration.check_without(instance, allocs)
        try:
            data = super().check_source_migrate_data_at_dest(
                ctxt, instance, migrate_data, migration, limits, allocs,
                *args, **kwargs)
        except Exception:
            with excutils.save_and_reraise_exception():
                self._claims.release(instance.uuid)
        if pairs:
            migration_message.answer(data, pairs, {
                alias: address
                for alias, (address, _text) in announced.items()})
        return data

    def pre_live_migration(self, context, instance, block_device_info,
                           network_info, disk_info, migrate_data, *args,
                           **kwargs):
        planned = migration_message.planned_hostdevs(migrate_data)
        if planned:
            with live_migration.refusal():
                self._device_migration.accept(instance, planned)
                self._prepare(planned, instance, context)
        data = super().pre_live_migration(
            context, instance, block_device_info, network_info, disk_info,
            migrate_data, *args, **kwargs)
        if planned:
            # From now on, libvirt can start the guest here.
            with live_migration.refusal():
                self._use.store(planned)
        return data

    def _live_migration_operation(self, context, instance, dest,
                                  block_migration, migrate_data, guest,
                                  *args, **kwargs):
        if migration_message.planned_hostdevs(migrate_data):
            guest = migration_message.MigratingGuest(guest, migrate_data)
        return super()._live_migration_operation(
            context, instance, dest, block_migration, migrate_data, guest,
            *args, **kwargs)

    def _live_migration_monitor(self, context, instance, guest, dest,
                                post_method, recover_method, block_migration,
                                migrate_data, *args, **kwargs):
        with migration_message.migrating(migrate_data):
            return super()._live_migration_monitor(
                context, instance, guest, dest, post_method, recover_method,
                block_migration, migrate_data, *args, **kwargs)

    def _is_post_copy_enabled(self, *args, **kwargs):
        return (migration_message.can_post_copy()
                and super()._is_post_copy_enabled(*args, **kwargs))

    def post_live_migration_at_destination(self, context, instance, *args,
                                           **kwargs):
        self._claims.release(instance.uuid)
        try:
            super().post_live_migration_at_destination(
                context, instance, *args, **kwargs)
            if instance_request.of(instance).classes:
                self._rebuild_metadata(context, instance)
        finally:
            self._announcer.operation_ended(instance)

    def rollback_live_migration_at_destination(self, context, instance, *args,
                                               **kwargs):
        try:
            return super().rollback_live_migration_at_destination(
                context, instance, *args, **kwargs)
        finally:
            self._claims.release(instance.uuid)

    def _prepare(self, hostdevs: hostdev.Hostdevs, instance=None,
                 context=None, host: model.Host | None = None) -> None:
        """Prepare the devices of a guest.

        :param instance: if its guest is about to start. Its flavor tells what
            to program
        :param context: of the request, if there is one
        :param host: the Host, if it has just been read
        """
        if hostdevs:
            self._preparation.prepare(
                hostdevs, self._node(), device_config.DeviceConfigs(
                    context, instance, self._state), host)
        if instance is not None:
            self._fabric.activate(instance.uuid, hostdevs)

    def _node(self, provider_tree=None) -> inventory.Node:
        # The libvirt driver's copy of the tree is None until the first update,
        # and is never changed, but replaced.
        read = tree_update.read_node if provider_tree else self._read_node
        return read(provider_tree or self.provider_tree,
                    self._host.get_node_uuid(), self._host.get_hostname())

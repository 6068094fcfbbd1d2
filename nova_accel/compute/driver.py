# SPDX-License-Identifier: Apache-2.0
"""``compute_driver = accel.LibvirtDriver``: the libvirt driver, with devices.

Each override calls Nova's method, and ours. Signatures are passed through, so
that the class works with every version of Nova that it is tested with
(tests/contract):

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

from nova.virt.libvirt import driver
from oslo_log import log as logging

from nova_accel.compute import adoption
from nova_accel.compute import allocator
from nova_accel.compute import class_mover
from nova_accel.compute import instance_request
from nova_accel.compute import nonfatal
from nova_accel.compute import patches
from nova_accel.compute import periodic
from nova_accel.compute import server_operations
from nova_accel.compute.devices import fabric_partitions
from nova_accel.compute.devices import firmware_probes
from nova_accel.compute.devices import guest_devices
from nova_accel.compute.devices import prepare
from nova_accel.compute.devices import reclaim
from nova_accel.compute.devices import use
from nova_accel.compute.guest import guest_config
from nova_accel.compute.guest import guest_roles
from nova_accel.compute.guest import guest_start
from nova_accel.compute.guest import hostdev_xml
from nova_accel.compute.guest import live_migration
from nova_accel.compute.guest import migration_message
from nova_accel.compute.guest import suspension
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
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)


class LibvirtDriver(driver.LibvirtDriver):
    """Nova's libvirt driver, with the devices that profiles request."""

    def __init__(self, virtapi, *args, **kwargs):
        super().__init__(virtapi, *args, **kwargs)
        self._read_node = functools.lru_cache(maxsize=1)(tree_update.read_node)
        self._state = state = self._new_state(virtapi)
        self._claims = state.claims
        preparation = prepare.Preparation(state.local_host)
        fabric = fabric_partitions.FabricPartitions(state)
        devices = guest_devices.GuestDevices(state, preparation, fabric)
        dirt = use.Use(state)
        reclamation = reclaim.Reclamation(state, preparation)
        probes = firmware_probes.FirmwareProbes(state)
        chooser = allocator.Allocator(state, probes, reclamation)
        self._guest_config = guest_config.GuestConfig(state, chooser,
                                                      self._host)
        self._guest_roles = guest_roles.GuestRoles(state, self._host)
        self._guest_start = guest_start.GuestStart(
            self._claims, dirt, devices, self._guest_roles)
        self._suspension = suspension.Suspension(state, devices, self._host)
        self._device_migration = live_migration.LiveMigration(
            self._host, state, chooser, reclamation, devices, dirt)
        self._announcer = announcer.Announcer(state)
        self._claims.on_end = self._announcer.operation_ended
        self._operations = server_operations.ServerOperations(
            state, chooser, devices, self._announcer, self._host)
        self._periodic = periodic.Periodic(state, periodic.Parts(
            devices, self._suspension, reclamation, probes, fabric,
            adoption.Adopter(state, virtapi), class_mover.ClassMover(state),
            audit.Auditor(state), self._announcer))
        patches.install()

    def _new_state(self, virtapi) -> node_state.NodeState:
        domains = libvirt_domains.LibvirtDomains(self._host)
        claims = device_claims.DeviceClaims(
            domains, kept_claims.KeptClaims(self._host.get_node_uuid))
        client = placement.PlacementClient(virtapi)
        holders = node_holders.NodeHolders(domains, claims, client)
        return node_state.NodeState(
            local_host.LocalHost(holders.hostdevs), domains, claims, client,
            holders, self._node)

    def _node(self, provider_tree=None) -> inventory.Node:
        # The libvirt driver's copy of the tree is None until the first update,
        # and is never changed, but replaced.
        read = tree_update.read_node if provider_tree else self._read_node
        return read(provider_tree or self.provider_tree,
                    self._host.get_node_uuid(), self._hostname)

    @functools.cached_property
    def _hostname(self) -> str:
        # Nova asks libvirt each time, and goes on with the first answer.
        return self._host.get_hostname()

    # Start and periodic tasks

    def init_host(self, *args, **kwargs):
        super().init_host(*args, **kwargs)
        self._periodic.start()

    def get_available_resource(self, *args, **kwargs):
        resources = super().get_available_resource(*args, **kwargs)
        self._periodic.report_resources(resources, bool(self.provider_tree))
        return resources

    def update_provider_tree(self, provider_tree, nodename, *args, **kwargs):
        super().update_provider_tree(provider_tree, nodename, *args, **kwargs)
        here = self._periodic.update(provider_tree,
                                     lambda: self._node(provider_tree))
        # The libvirt driver keeps its own copy, made before our update.
        self.provider_tree = copy.deepcopy(provider_tree)
        self._periodic.announce(here)

    def refresh_providers(self) -> None:
        """Let Nova read outdated providers again, before it reports."""
        self._state.placement_client.refresh_providers()

    # Claims of devices

    def nodes_for(self, flavor, allocations) -> frozenset[int]:
        """Return the NUMA nodes near the devices of a guest, for its claim."""
        return self._operations.numa_nodes(flavor, allocations)

    def spawn(self, context, instance, image_meta, injected_files,
              admin_password, allocations, *args, **kwargs):
        with self._operations.spawn(instance, allocations):
            return super().spawn(context, instance, image_meta,
                                 injected_files, admin_password, allocations,
                                 *args, **kwargs)

    def finish_migration(self, context, migration, instance, disk_info,
                         network_info, image_meta, resize_instance,
                         allocations, *args, **kwargs):
        with self._operations.finish_migration(migration, instance,
                                               allocations):
            return super().finish_migration(
                context, migration, instance, disk_info, network_info,
                image_meta, resize_instance, allocations, *args, **kwargs)

    def confirm_migration(self, context, migration, instance, *args,
                          **kwargs):
        with self._operations.confirm_migration(migration, instance):
            return super().confirm_migration(context, migration, instance,
                                             *args, **kwargs)

    def finish_revert_migration(self, context, instance, network_info,
                                migration, *args, **kwargs):
        with self._operations.finish_revert_migration(migration, instance):
            super().finish_revert_migration(
                context, instance, network_info, migration, *args, **kwargs)
            # The instance has the metadata of the host that it leaves.
            self._rebuild_metadata(context, instance, instance.flavor,
                                   instance.new_flavor)

    def _hard_reboot(self, context, instance, *args, **kwargs):
        with self._operations.hard_reboot(
                instance, lambda: self._destroy(instance)):
            return super()._hard_reboot(context, instance, *args, **kwargs)

    def destroy(self, context, instance, *args, **kwargs):
        with self._operations.destroy(instance):
            return super().destroy(context, instance, *args, **kwargs)

    def cleanup(self, context, instance, *args, **kwargs):
        with self._operations.cleanup(instance):
            return super().cleanup(context, instance, *args, **kwargs)

    # The guest

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
        # It has the metadata of the guest that was rescued.
        self._rebuild_metadata(context, instance, instance.flavor)

    def _build_device_metadata(self, context, instance, *args, **kwargs):
        return self._guest_roles.with_metadata(
            super()._build_device_metadata(context, instance, *args,
                                           **kwargs), instance)

    def _rebuild_metadata(self, context, instance, *flavors) -> None:
        """Rebuild the device metadata where Nova does not; Nova saves it.

        :param flavors: of the server; nothing is done if none has devices
        """
        if any(instance_request.of_flavor(flavor).classes
               for flavor in flavors if flavor):
            with nonfatal.step('rebuild the device metadata of a server'):
                instance.device_metadata = self._build_device_metadata(
                    context, instance)

    def _allocate_mdevs(self, allocations, *args, **kwargs):
        return super()._allocate_mdevs(
            placement.not_ours(allocations or {}, self._node()),
            *args, **kwargs)

    def _get_mdevs_from_guest_config(self, xml, *args, **kwargs):
        return hostdev_xml.not_ours(
            super()._get_mdevs_from_guest_config(xml, *args, **kwargs), xml)

    # Suspend and resume

    def suspend(self, context, instance, *args, **kwargs):
        with self._suspension.suspend(instance):
            super().suspend(context, instance, *args, **kwargs)

    def resume(self, context, instance, *args, **kwargs):
        with self._suspension.resume(instance, context):
            super().resume(context, instance, *args, **kwargs)
        self._rebuild_metadata(context, instance, instance.flavor)

    def _resume_guest_after_snapshot(self, context, live_snapshot,
                                     original_power_state, instance, *args,
                                     **kwargs):
        has_suspended = self._needs_suspend_resume_for_snapshot(
            live_snapshot, original_power_state)
        with self._suspension.snapshot(instance, has_suspended):
            super()._resume_guest_after_snapshot(
                context, live_snapshot, original_power_state, instance, *args,
                **kwargs)
        if has_suspended:
            self._rebuild_metadata(context, instance, instance.flavor)

    def _swap_volume(self, guest, *args, **kwargs):
        # Nova redefines the domain from the XML of the running guest. The
        # definition would lose each device that the guest lacks.
        self._suspension.check_complete(guest.uuid)
        return super()._swap_volume(guest, *args, **kwargs)

    # Live migration

    def check_can_live_migrate_source(self, context, instance, *args,
                                      **kwargs):
        described = self._device_migration.describe(instance)
        data = super().check_can_live_migrate_source(context, instance, *args,
                                                     **kwargs)
        migration_message.announce(data, described)
        return data

    def check_source_migrate_data_at_dest(self, ctxt, instance, migrate_data,
                                          migration, limits, allocs, *args,
                                          **kwargs):
        with self._device_migration.check_at_destination(
                instance, migrate_data, allocs) as answer:
            data = super().check_source_migrate_data_at_dest(
                ctxt, instance, migrate_data, migration, limits, allocs,
                *args, **kwargs)
            answer(data)
            return data

    def pre_live_migration(self, context, instance, block_device_info,
                           network_info, disk_info, migrate_data, *args,
                           **kwargs):
        with self._device_migration.pre_live_migration(instance, context,
                                                       migrate_data):
            return super().pre_live_migration(
                context, instance, block_device_info, network_info, disk_info,
                migrate_data, *args, **kwargs)

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
        with self._operations.post_live_migration(instance):
            super().post_live_migration_at_destination(
                context, instance, *args, **kwargs)
            self._rebuild_metadata(context, instance, instance.flavor)

    def rollback_live_migration_at_destination(self, context, instance, *args,
                                               **kwargs):
        with self._operations.rollback_live_migration(instance):
            return super().rollback_live_migration_at_destination(
                context, instance, *args, **kwargs)

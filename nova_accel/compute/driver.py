# SPDX-License-Identifier: Apache-2.0
"""``compute_driver = accel.LibvirtDriver``: Nova's libvirt driver, and ours.

Each override calls Nova's method and one thing of ours. Signatures are passed
through, so that the class fits every Nova that it is tested with
(tests/contract):

=====================================  ================================
``init_host``                          VFs; say what is offered and held
``get_available_resource``             locations, for the scheduler
``update_provider_tree``               our providers
``spawn``                              devices for a new server
``finish_migration``                   devices for a server that arrives
``finish_revert_migration``            the old devices again
``_hard_reboot``                       the same devices again
``destroy``                            keep them, where a rebuild goes on
``cleanup``                            what it had is another than it was
``_get_guest_config``                  hostdevs, on every way to guest XML;
                                       and address bits for their BARs
``_create_guest``                      mdevs, and what is programmed, on every
                                       way to a start
``_allocate_mdevs``                    ours are not Nova's to make
``suspend``                            the guest lets go of them
``resume``                             the guest has them again
``_resume_guest_after_snapshot``       so, where it slept for a snapshot
``_swap_volume``                       the guest has them all before it
``_get_mdevs_from_guest_config``       ours are not Nova's to attach
``check_can_live_migrate_source``      can their state move, and what is it
``check_source_migrate_data_at_dest``  like devices for it here
``pre_live_migration``                 the like devices made ready
``_live_migration_operation``          their names in the guest's XML
``_live_migration_monitor``            no switch to post-copy
``_is_post_copy_enabled``              not with devices
``post_live_migration_at_destination`` the guest has them
``rollback_live_migration_at_destination``  nobody needs them
=====================================  ================================
"""

import contextlib
import copy

from nova import exception
from nova.compute import task_states
from nova.virt.libvirt import driver
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging
from oslo_utils import excutils

from nova_accel.compute import address_width
from nova_accel.compute import assigner
from nova_accel.compute import auditor
from nova_accel.compute import beside
from nova_accel.compute import claims
from nova_accel.compute import faults
from nova_accel.compute import guest
from nova_accel.compute import ledger
from nova_accel.compute import live_migration
from nova_accel.compute import machine
from nova_accel.compute import promise
from nova_accel.compute import provider_tree as provider_trees
from nova_accel.compute import rebuild
from nova_accel.compute import record
from nova_accel.compute import said
from nova_accel.compute import startup
from nova_accel.compute import suspension
from nova_accel.compute import tracker
from nova_accel.compute import upkeep
from nova_accel.compute import waiting
from nova_accel.compute import wishes
from nova_accel.core import errors
from nova_accel.core import flavor
from nova_accel.core import guest_topology
from nova_accel.core import holding
from nova_accel.core import hostdev
from nova_accel.core import identity
from nova_accel.core import migration
from nova_accel.core import model
from nova_accel.core import once
from nova_accel.core import providers
from nova_accel.core import summary
from nova_accel.host import domains

LOG = logging.getLogger(__name__)


class LibvirtDriver(driver.LibvirtDriver):
    """Nova's libvirt driver with devices that profiles ask for."""

    def __init__(self, virtapi, *args, **kwargs):
        super().__init__(virtapi, *args, **kwargs)
        self._record = record.Record(self._host)
        self._machine = machine.Machine(self._record.read)
        self._upkeep = upkeep.Upkeep(self._machine)
        self._claims = claims.Claims(self._record)
        self._ledger = ledger.Ledger(virtapi)
        self._auditor = auditor.Auditor(self._record, self._ledger)
        self._completing = beside.Beside()
        tracker.install()
        startup.install()
        self._short = said.Said(LOG)
        self._assigner = assigner.Assigner(
            self._machine, self._upkeep, self._record, self._claims,
            self._ledger, self._node)

    # What there is

    def init_host(self, *args, **kwargs):
        super().init_host(*args, **kwargs)
        with _never_fatal('set the number of virtual functions'):
            self._upkeep.set_vfs(self._record.holders())
        with _never_fatal('read which devices servers hold'):
            host = self._machine.read()
            held = [ours for hostdevs in self._record.read().values()
                    if (ours := hostdev.ours(hostdevs))]
            LOG.info('%d hostdevs are held by %d servers',
                     sum(map(len, held)), len(held))
            # A reboot of the host has taken mdevs with it; before somebody
            # else takes their place, they are there again.
            for hostdevs in held:
                with _never_fatal('make mdevs that servers hold'):
                    self._prepare(hostdevs, host=host)
        with _never_fatal('complete guests that run without their devices'):
            self._complete()

    def _complete(self) -> None:
        self._short.say(suspension.complete(
            self._record.short(self._claims.is_busy), self._prepare))

    def get_available_resource(self, *args, **kwargs):
        resources = super().get_available_resource(*args, **kwargs)
        with _never_fatal('tell the scheduler where devices are'):
            # A round of the periodic tasks begins here.
            self._record.refresh()
            stats = dict(resources.get('stats') or {})
            node = self._node()
            host = self._machine.read()
            offered = providers.offered(host, node.uuid, node.name)
            stats[summary.KEY] = summary.dumps(
                offered, holding.counts(offered, self._record.read())
                | {item.uuid: item.region.total for item in offered
                   if item.uuid in node.used}, host.links)
            resources['stats'] = stats
        return resources

    def update_provider_tree(self, provider_tree, nodename, *args, **kwargs):
        super().update_provider_tree(provider_tree, nodename, *args, **kwargs)
        host = None
        with _never_fatal('clear up what nobody holds'):
            host = self._clear_up(self._node(provider_tree))
        with _never_fatal('complete guests that run without their devices'):
            self._completing.do(self._complete)
        with _never_fatal('compare what is held with what is promised'):
            self._auditor.audit(self._machine.read_lately,
                                self._node(provider_tree))
        with _never_fatal('report devices to Placement'):
            provider_trees.update(
                provider_tree, nodename, host or self._machine.read(),
                self._ledger.classes, self._auditor.disputed,
                self._record.holders())
            # Nova keeps the tree for itself; so it has to have ours in it.
            self.provider_tree = copy.deepcopy(provider_tree)

    # Who gets it

    def nodes_for(self, flavor, allocations) -> frozenset[int]:
        """The NUMA nodes that a guest should be on, for its devices."""
        with _never_fatal('see where the devices of a guest are'):
            return promise.nodes(
                flavor.extra_specs, ledger.promised(allocations),
                lambda: self._machine.look(lately=True)[0],
                self._record.read, self._node())
        return frozenset()

    def spawn(self, context, instance, image_meta, injected_files,
              admin_password, allocations, *args, **kwargs):
        with self._claims.during(instance):
            self._assigner.assign(instance, allocations, lately=True)
            return super().spawn(context, instance, image_meta,
                                 injected_files, admin_password, allocations,
                                 *args, **kwargs)

    def finish_migration(self, context, migration, instance, disk_info,
                         network_info, image_meta, resize_instance,
                         allocations, *args, **kwargs):
        with self._claims.during(instance):
            self._assigner.assign(instance, allocations, is_resized=True)
            return super().finish_migration(
                context, migration, instance, disk_info, network_info,
                image_meta, resize_instance, allocations, *args, **kwargs)

    def finish_revert_migration(self, context, instance, *args, **kwargs):
        with self._claims.during(instance):
            self._assigner.assign_as_placement_says(instance,
                                                    is_resized=True)
            return super().finish_revert_migration(context, instance, *args,
                                                   **kwargs)

    def _hard_reboot(self, context, instance, *args, **kwargs):
        claimed = None
        try:
            with self._claims.during(instance):
                # Its definition, the record, is about to be undefined.
                self._assigner.assign_as_placement_says(instance)
                claimed = self._claims.of(instance)
                self._check_there(instance, claimed or ())
                return super()._hard_reboot(context, instance, *args,
                                            **kwargs)
        except Exception:
            with excutils.save_and_reraise_exception():
                if claimed and not self._record.held_by(instance.uuid):
                    # For the next try, which nothing else tells what it had.
                    self._claims.claim(instance, claimed)

    def _check_there(self, instance, held: hostdev.Hostdevs) -> None:
        """Keep the definition of a guest that could not be defined again."""
        with _as_nova_says_it():
            try:
                self._upkeep.check(held, self._node())
            except errors.AccelError:
                with excutils.save_and_reraise_exception():
                    # One that still runs, with what is left, is ACTIVE to
                    # Nova.
                    self._destroy(instance)

    def destroy(self, context, instance, *args, **kwargs):
        if (instance.task_state == task_states.REBUILDING
                and instance.node == self._host.get_hostname()
                and flavor.classes(instance.flavor.extra_specs)):
            # Its definition goes, and spawn comes: for the same devices. One
            # that was evacuated is rebuilt on another node.
            self._claims.claim(instance, self._claims.held(instance))
            return super().destroy(context, instance, *args, **kwargs)
        with self._claims.during(instance):
            return super().destroy(context, instance, *args, **kwargs)

    def cleanup(self, context, instance, *args, **kwargs):
        try:
            return super().cleanup(context, instance, *args, **kwargs)
        finally:
            # On every way on which a guest's devices come back.
            self._machine.forget()
            self._record.forget(instance.uuid)

    def _get_guest_config(self, instance, *args, **kwargs):
        config = super()._get_guest_config(instance, *args, **kwargs)
        with self._claims.during(instance):
            if self._claims.of(instance) is None:
                self._assigner.assign_as_placement_says(instance)
            claimed = self._claims.of(instance) or ()
            addresses = {device.address for device in claimed}

            def is_ours(address):
                return address in addresses or identity.is_mdev_of(
                    str(address), instance.uuid, self._node().ours)

            # Nova puts back the mdevs that it finds in the old XML.
            config.devices = [element for element in config.devices
                              if not guest.holds(element, is_ours)]
            if claimed:
                host, _unreadable = self._machine.look(lately=True)
                guest.add(config, claimed, guest_topology.locate(
                    claimed, host, providers.by_uuid(host, self._node())))
                with _never_fatal('see how wide addresses have to be'):
                    address_width.fit(config, claimed, host, self._host,
                                      instance)
        return config

    def _create_guest(self, context, xml, instance, *args, **kwargs):
        held = hostdev.ours(domains.parse(xml)[1])
        with self._claims.during(instance):
            with _as_nova_says_it():
                if held:
                    # An old definition can come back, say of a rescue.
                    self._claims.claim_again(instance, held)
                self._prepare(held, instance, context)
            return super()._create_guest(context, xml, instance, *args,
                                         **kwargs)

    def _allocate_mdevs(self, allocations, *args, **kwargs):
        node = self._node()
        # When the host boots, Nova has no tree yet.
        ours = {*node.ours, *providers.of_classes(node.uuid, {
            name for allocation in (allocations or {}).values()
            for name in allocation['resources']})}
        return super()._allocate_mdevs({
            uuid: allocation
            for uuid, allocation in (allocations or {}).items()
            if uuid not in ours}, *args, **kwargs)

    # A guest that sleeps

    def suspend(self, context, instance, *args, **kwargs):
        with self._claims.during(instance):
            held = hostdev.ours(self._record.running(instance.uuid))
            self._claims.claim(instance, held)
            domain = self._host.get_guest(instance)
            if held:
                suspension.check_awake(domain.get_power_state(self._host))
            suspension.let_go(domain, held,
                              lambda: self._record.running(instance.uuid))
            try:
                super().suspend(context, instance, *args, **kwargs)
            except Exception:
                with excutils.save_and_reraise_exception():
                    self._have_again(instance, held)
            finally:
                self._machine.forget()

    def resume(self, context, instance, *args, **kwargs):
        with self._claims.during(instance):
            held = self._claims.held(instance)
            if held:
                self._claims.claim(instance, held)
                self._prepare_to_resume(held, instance, context)
            # Without its definition it is made, and assigned to, again.
            super().resume(context, instance, *args, **kwargs)
            self._have_again(instance, self._claims.held(instance))

    def _prepare_to_resume(self, held, instance, context) -> None:
        """Have a server whose devices are away sleep on.

        Of what fails later, Nova undefines the domain, and what the guest had
        in memory is gone with it.
        """
        try:
            self._prepare(held, instance, context)
        except Exception as error:
            raise exception.InstanceFaultRollback(
                exception.InstanceResumeFailure(reason=faults.told(
                    'Server sleeps on', error, instance))) from None

    def _resume_guest_after_snapshot(self, context, live_snapshot,
                                     original_power_state, instance, *args,
                                     **kwargs):
        # A guest that cannot be copied live is suspended for its snapshot.
        with self._claims.during(instance):
            super()._resume_guest_after_snapshot(
                context, live_snapshot, original_power_state, instance, *args,
                **kwargs)
            if self._needs_suspend_resume_for_snapshot(live_snapshot,
                                                       original_power_state):
                self._have_again(instance, self._claims.held(instance))

    def _have_again(self, instance, held: hostdev.Hostdevs) -> None:
        """Give a running guest what it lacks of its devices.

        One that cannot have them all is stopped: a reboot can cure it.
        """
        domain = self._host.get_guest(instance)
        there = {device.address
                 for device in self._record.running(instance.uuid)}
        try:
            suspension.take_up(domain, [device for device in held
                                        if device.address not in there])
        except errors.AccelError as error:
            domain.poweroff()
            why = faults.told('Guest is stopped', error, instance)
            raise exception.InstanceResumeFailure(
                reason=f'{why}; the guest was stopped') from None

    def _swap_volume(self, guest, *args, **kwargs):
        # Nova defines the domain anew from the XML of the running guest, which
        # leaves out what the guest lacks.
        self._record.forget(guest.uuid)
        lacks = suspension.complete(
            self._record.short(lambda uuid: uuid != guest.uuid),
            self._prepare)
        if lacks:
            raise exception.VolumeRebaseFailed(reason=faults.told(
                'A volume is not swapped', '; '.join(
                    line for _level, line in lacks)))
        return super()._swap_volume(guest, *args, **kwargs)

    def _get_mdevs_from_guest_config(self, xml, *args, **kwargs):
        held = {device.address
                for device in hostdev.ours(domains.parse(xml)[1])}
        return [element for element
                in super()._get_mdevs_from_guest_config(
                    xml, *args, **kwargs)
                if not guest.holds(element, held.__contains__)]

    # A guest that moves

    def check_can_live_migrate_source(self, context, instance, *args,
                                      **kwargs):
        running = hostdev.ours(self._record.running(instance.uuid))
        described = {}
        with _as_migration_check():
            migration.check_whole(running, self._claims.held(instance))
            if running:
                described = self._describe(running)
        data = super().check_can_live_migrate_source(context, instance, *args,
                                                     **kwargs)
        if described:
            live_migration.announce(data, described)
        return data

    def check_source_migrate_data_at_dest(self, ctxt, instance, migrate_data,
                                          migration, limits, allocs, *args,
                                          **kwargs):
        announced = live_migration.take_announced(migrate_data)
        pairs = {}
        with _as_migration_check(), instance.mutated_migration_context():
            if announced:
                pairs = self._choose_likes(instance, allocs, announced)
            elif flavor.classes(instance.flavor.extra_specs) and (
                    promise.concerns_us(instance, ledger.promised(allocs),
                                       self._machine.look()[0],
                                       self._node())):
                raise errors.AssignmentError(
                    f'server {instance.uuid}', 'its host does not say which '
                    'devices it has')
        try:
            data = super().check_source_migrate_data_at_dest(
                ctxt, instance, migrate_data, migration, limits, allocs,
                *args, **kwargs)
        except Exception:
            with excutils.save_and_reraise_exception():
                self._claims.release(instance.uuid)
        if pairs:
            live_migration.answer(data, pairs, {
                alias: address
                for alias, (address, _text) in announced.items()})
        return data

    def pre_live_migration(self, context, instance, block_device_info,
                           network_info, disk_info, migrate_data, *args,
                           **kwargs):
        planned = live_migration.answered(migrate_data)
        if planned:
            with _as_migration_check():
                self._check_planned(instance, planned)
                # The claim is lost if nova-compute was restarted meanwhile.
                self._claims.claim_again(instance, planned)
                if not self._upkeep.hand_over(planned,
                                              self._record.holders()):
                    raise errors.AssignmentError(
                        f'server {instance.uuid}', 'the reset of a device '
                        'that was chosen for it failed')
                self._prepare(planned, instance, context)
        return super().pre_live_migration(
            context, instance, block_device_info, network_info, disk_info,
            migrate_data, *args, **kwargs)

    def _check_planned(self, instance, planned: hostdev.Hostdevs) -> None:
        """Check that the source says what was chosen here.

        :raises errors.AssignmentError: if not
        """
        claimed = self._claims.of(instance)
        if not (promise.keeps(planned, instance, ledger.promised(
                    self._ledger.of_consumer(instance.uuid)),
                    self._machine.read(), self._node(), exactly=True)
                if claimed is None else
                {device.address for device in planned} ==
                {device.address for device in claimed}):
            raise errors.AssignmentError(
                f'server {instance.uuid}', 'its host names devices of this '
                'one that were not chosen for it', 'try again')

    def _live_migration_operation(self, context, instance, dest,
                                  block_migration, migrate_data, guest,
                                  *args, **kwargs):
        if live_migration.answered(migrate_data):
            guest = live_migration.Moving(guest, migrate_data)
        return super()._live_migration_operation(
            context, instance, dest, block_migration, migrate_data, guest,
            *args, **kwargs)

    def _live_migration_monitor(self, context, instance, guest, dest,
                                post_method, recover_method, block_migration,
                                migrate_data, *args, **kwargs):
        with live_migration.moving(migrate_data):
            return super()._live_migration_monitor(
                context, instance, guest, dest, post_method, recover_method,
                block_migration, migrate_data, *args, **kwargs)

    def _is_post_copy_enabled(self, *args, **kwargs):
        return (live_migration.can_post_copy()
                and super()._is_post_copy_enabled(*args, **kwargs))

    def post_live_migration_at_destination(self, context, instance, *args,
                                           **kwargs):
        self._claims.release(instance.uuid)
        return super().post_live_migration_at_destination(
            context, instance, *args, **kwargs)

    def rollback_live_migration_at_destination(self, context, instance, *args,
                                               **kwargs):
        try:
            return super().rollback_live_migration_at_destination(
                context, instance, *args, **kwargs)
        finally:
            self._claims.release(instance.uuid)

    def _describe(self, held) -> dict[hostdev.Hostdev, str]:
        host = self._machine.read()
        offered = providers.by_uuid(host, self._node())
        migration.check_source(held, offered)
        self._check_versions('this host')
        return {device: migration.describe(device, host, offered)
                for device in held}

    def _check_versions(self, here: str) -> None:
        """Check that libvirt and QEMU can move the state of devices.

        :param here: what an error calls this host
        :raises errors.AssignmentError: if not
        """
        if not self._host.has_min_version(
                lv_ver=driver.MIN_VFIO_PCI_VARIANT_LIBVIRT_VERSION,
                hv_ver=driver.MIN_VFIO_PCI_VARIANT_QEMU_VERSION,
                hv_type=libvirt_host.HV_DRIVER_QEMU):
            raise errors.AssignmentError(
                here, 'its libvirt or QEMU is too old to move the state of '
                'devices', 'libvirt 10.0.0 and QEMU 8.2.2 can')

    def _choose_likes(self, instance, allocs, announced):
        self._check_versions('the destination')
        host = self._machine.read()
        offered = providers.by_uuid(host, self._node())
        texts = {alias: text for alias, (_address, text) in announced.items()}
        promised = ledger.promised(allocs)
        try:
            try:
                chosen = self._assigner.choose(
                    instance, promised, migration.only_like(
                        host, offered, texts.values()), comes_live=True)
            except errors.AssignmentError:
                # Of all there are, so that it is said what is unlike.
                chosen = self._assigner.choose(instance, promised, host,
                                               comes_live=True)
            return migration.pair(texts, chosen, host, offered)
        except Exception:
            with excutils.save_and_reraise_exception():
                self._claims.release(instance.uuid)

    def _prepare(self, hostdevs: hostdev.Hostdevs, instance=None,
                 context=None, host: model.Host | None = None) -> None:
        """Make ready what a guest is to have.

        :param instance: whose flavor says more of it, if that is at hand
        :param context: of the request, if there is one
        :param host: the machine, if it has just been read
        """
        if hostdevs:
            self._upkeep.prepare(
                hostdevs, self._node(), wishes.Wishes(
                    context, instance, self._claims, self._record).of, host)

    def _clear_up(self, node: providers.Node) -> model.Host:
        """Let go of what an operation left behind that did not end.

        :returns: what there is then
        """
        ours = set(node.ours)
        for uuid, claim in self._claims.lingering().items():
            promised = self._ledger.of_consumer(uuid)
            if (promised is not None and ours.isdisjoint(promised)
                    and not rebuild.goes_on(uuid)
                    and self._claims.release_lingering(uuid, claim)):
                LOG.info('Server %s is not coming: its claim ends', uuid)
        host = self._machine.read()
        if self._upkeep.sweep(
                host, self._claims.everything, self._claims.aside,
                lambda left, there: waiting.kept(left, there, node,
                                                 self._ledger, self._record)):
            host = self._machine.read()
        if self._upkeep.reset_free(host, self._claims.everything,
                                   self._claims.aside):
            host = self._machine.read()
        return host

    def _node(self, provider_tree=None) -> providers.Node:
        name = self._host.get_hostname()
        # Nova's copy of the tree; None until the first update.
        provider_tree = provider_tree or self.provider_tree
        known = (provider_trees.existing(provider_tree, name)
                 if provider_tree else [])
        return providers.Node(self._host.get_node_uuid(), name, {
            provider.uuid: provider.name for provider in known},
            once.used(known))


@contextlib.contextmanager
def _as_migration_check():
    """Have Nova leave the server where and as it is, and say why."""
    try:
        yield
    except exception.MigrationPreCheckError:
        raise
    except Exception as error:
        # Of anything else Nova would put a server that runs into ERROR.
        raise exception.MigrationPreCheckError(reason=faults.told(
            'Server cannot be migrated live', error)) from None


@contextlib.contextmanager
def _as_nova_says_it():
    try:
        yield
    except errors.AccelError as error:
        raise exception.InstanceDeployFailure(reason=faults.told(
            'Server does not start', error)) from None


@contextlib.contextmanager
def _never_fatal(what: str):
    """Keep nova-compute up, whatever a device, a file or our code does."""
    try:
        yield
    except errors.TreeError as error:
        # Said once already, and then at every round of the periodic tasks.
        LOG.debug('Could not %s: %s', what, error)
    except errors.AccelError as error:
        LOG.error('Could not %s: %s', what, error)
    except Exception:
        LOG.exception('Could not %s', what)

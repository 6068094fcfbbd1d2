# SPDX-License-Identifier: Apache-2.0
"""What nova-compute does when it starts, and in each of its periodic runs.

A step that fails is logged, and the others are done.
"""

import collections.abc
import typing

from oslo_log import log as logging

from nova_accel.compute import adoption
from nova_accel.compute import class_mover
from nova_accel.compute import nonfatal
from nova_accel.compute.devices import fabric_partitions
from nova_accel.compute.devices import firmware_probes
from nova_accel.compute.devices import guest_devices
from nova_accel.compute.devices import reclaim
from nova_accel.compute.devices import virtual_functions
from nova_accel.compute.guest import suspension
from nova_accel.compute.reporting import announcer
from nova_accel.compute.reporting import audit
from nova_accel.compute.reporting import tree_update
from nova_accel.compute.state import node_state
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core.placement import host_summary
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)


class Parts(typing.NamedTuple):
    """The parts of the driver that have something to do in a run."""

    devices: guest_devices.GuestDevices
    suspension: suspension.Suspension
    reclamation: reclaim.Reclamation
    probes: firmware_probes.FirmwareProbes
    fabric: fabric_partitions.FabricPartitions
    adopter: adoption.Adopter
    class_mover: class_mover.ClassMover
    auditor: audit.Auditor
    announcer: announcer.Announcer


class Periodic:
    """The steps of a start and of a periodic run."""

    def __init__(self, state: node_state.NodeState, parts: Parts) -> None:
        self._state = state
        self._parts = parts
        self._local_host = state.local_host
        self._holders = state.holders

    def start(self) -> None:
        """Prepare the host before nova-compute starts the first guest."""
        with nonfatal.step('read what servers keep without a domain'):
            self._state.claims.load()
        with nonfatal.step('set the number of virtual functions'):
            node = self._state.node()
            virtual_functions.set_numbers(self._local_host, node,
                                          self._holders.read(node.name))
        with nonfatal.step('read which devices servers hold'):
            host = self._local_host.read()
            self._parts.announcer.start(self._state.domains.read())
            held = [ours for hostdevs in self._holders.hostdevs().values()
                    if (ours := hostdev.ours(hostdevs))]
            LOG.info('%s held by %s', errors.count(
                sum(map(len, held)), 'hostdev is', 'hostdevs are'),
                errors.count(len(held), 'server'))
            # A reboot of the host removes all mdevs. Recreate them before a
            # new server takes their place on the card.
            for hostdevs in held:
                with nonfatal.step('recreate the mdevs that servers hold'):
                    self._parts.devices.prepare(hostdevs, host=host)
        with nonfatal.step('reattach missing devices to guests'):
            self._parts.suspension.reattach_missing()

    def report_resources(self, resources: dict[str, typing.Any],
                         knows_providers: bool) -> None:
        """Report device locations to the scheduler.

        :param resources: what Nova's get_available_resource() returns;
            changed in place
        :param knows_providers: whether Nova has read its resource providers
        """
        with nonfatal.step('read which devices are drained'):
            node = self._state.node()
            if node.ours:
                self._local_host.dirt.note_failures()
                self._state.placement_client.refresh_requests(node)
        with nonfatal.step('read who holds devices'):
            self._state.domains.refresh()
            if knows_providers:
                self._parts.reclamation.end_claims(node)
        with nonfatal.step('report device locations to the scheduler'):
            stats = dict(resources.get('stats') or {})
            here = self._state.read()
            stats[host_summary.KEY] = host_summary.dumps(
                here.offered,
                self._holders.recent(here.node.name).counts(here.offered),
                here.host.links,
                here.host.cpuless_nodes)
            resources['stats'] = stats

    def update(self, provider_tree,
               read_node: collections.abc.Callable[[], inventory.Node],
               ) -> inventory.NodeInventory | None:
        """Release, take over and audit devices, and report them.

        :param provider_tree: nova.compute.provider_tree.ProviderTree of this
            compute node; changed in place
        :param read_node: reads the compute node from the tree
        :returns: what to announce; None if it could not be read
        """
        parts = self._parts
        host = node = None
        with nonfatal.step('release and reset devices that no server holds'):
            # Walks through the whole tree, so do it once for all steps below.
            node = read_node()
            with nonfatal.step('see which devices are withheld'):
                self._local_host.refresh_withheld(node)
                parts.probes.run_due()
            with nonfatal.step('settle the partitions of the fabric'):
                parts.fabric.settle()
            host = parts.reclamation.clear_up(node)
        with nonfatal.step('take over servers of [pci] alias or of Cyborg'):
            parts.adopter.adopt(
                inventory.NodeInventory(self._local_host.read_cached(), node),
                lambda: {uuid: provider_tree.data(uuid).name
                         for uuid in provider_tree.get_provider_uuids()})
        with nonfatal.step('move servers to other resource classes'):
            parts.class_mover.move(
                inventory.NodeInventory(self._local_host.read_cached(), node),
                lambda uuid: provider_tree.data(uuid).inventory)
        with nonfatal.step('reattach missing devices to guests'):
            parts.suspension.start_reattaching()
        with nonfatal.step('audit the devices that servers hold'):
            parts.auditor.audit(lambda: inventory.NodeInventory(
                self._local_host.read_cached(),
                node or read_node()))
        with nonfatal.step('report devices to Placement'):
            self._report(provider_tree, inventory.NodeInventory(
                host or self._local_host.read(),
                node or read_node()))
        return inventory.NodeInventory(host, node) if host and node else None

    def announce(self, here: inventory.NodeInventory | None) -> None:
        """Announce what has changed.

        :param here: the result of :meth:`update`
        """
        with nonfatal.step('announce what has changed'):
            self._parts.announcer.announce_servers()
            if here:
                self._parts.announcer.announce_devices(here)

    def _report(self, provider_tree, here: inventory.NodeInventory) -> None:
        tree_update.update(
            provider_tree, here, self._state.placement_client.units_by_class,
            self._holders.recent(here.node.name),
            self._local_host.dirt.cleaned(),
            self._local_host.dirt.unstored(), self._parts.auditor.disputed)
        provider_tree.add_traits(here.node.name,
                                 *self._local_host.firmware.new_traits())

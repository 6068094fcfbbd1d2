# SPDX-License-Identifier: Apache-2.0
"""Takes over servers whose devices ``[pci] alias`` or Cyborg assigned.

A guest goes on while it is taken over. Each step can be repeated, so that one
that nova-compute did not finish is done in its next periodic run:

1. The definition of the domain gets our aliases, which are the record of what
   a server holds. The running guest keeps its own aliases.
2. Placement gets the allocations, and the units are not reserved any more, in
   one request: no other server can get them in between.
3. The flavor of the server gets the request for its devices, if no task of the
   server has started. From then on it is a server of ours.
4. Nova frees its PCI devices, and then forgets its PCI requests. Until then,
   the requests tell that this step is not done.

Seams: ``nova.objects.Instance``; ``nova.compute.manager.ComputeManager.rt``
with its ``pci_tracker``: ``pci_devs``, ``to_be_removed_when_freed``,
``free_device`` and ``save``.
"""

import collections.abc

from nova import exception
from nova import objects
from oslo_log import log as logging

from nova_accel.compute import instance_state
from nova_accel.compute import log_once
from nova_accel.compute import server_flavor
from nova_accel.compute.state import node_state
from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import hostdev
from nova_accel.core.assignment import adoption
from nova_accel.core.placement import inventory
from nova_accel.core.request import flavor_specs

LOG = logging.getLogger(__name__)


class Adopter:
    """Takes over servers of this host.

    :param virtapi: nova.virt.virtapi.VirtAPI
    """

    def __init__(self, state: node_state.NodeState, virtapi) -> None:
        self._state = state
        self._virtapi = virtapi
        self._findings = log_once.LogOnce(LOG)
        # Hostdevs of domains that are not to be taken over: look these up in
        # Nova's database only once. A server that is to be taken over later
        # has other hostdevs then.
        self._others: dict[str, hostdev.Hostdevs] = {}

    def adopt(self, here: inventory.NodeInventory,
              names: collections.abc.Callable[
                  [], collections.abc.Mapping[str, str]]) -> None:
        """Take over all servers that can be taken over.

        :param names: returns the names of all providers of the compute node,
            by uuid; called only for a server that is taken over
        """
        lines = []
        domains = self._state.domains.read()
        self._others = {uuid: held for uuid, held in self._others.items()
                        if uuid in domains}
        for uuid, held in domains.items():
            if not held or self._others.get(uuid) == held:
                continue
            try:
                with server_flavor.lock(uuid):
                    self._adopt(uuid, held, here, names)
            except server_flavor.BUSY as error:
                lines.append((logging.DEBUG, f'Server {uuid} is busy, and not '
                              f'taken over in this run: {error}'))
            except errors.AccelError as error:
                lines.append((logging.WARNING,
                              f'Server {uuid} is not taken over: {error}'))
            except exception.NovaException as error:
                lines.append((logging.WARNING, f'Server {uuid} cannot be '
                              f'taken over now: {error}'))
        self._findings.log(lines)

    def _adopt(self, uuid, held, here, names) -> None:
        instance = server_flavor.find(uuid, 'pci_devices', 'pci_requests')
        if instance and not instance_state.is_settled_here(instance):
            return
        if not instance or not _is_candidate(instance, held):
            self._others[uuid] = held
            return
        addresses = _addresses(instance, self._state.domains.held_by(uuid))
        if addresses.isdisjoint(
                address for item in here.offered
                for unit in item.region.units for address in unit):
            # [pci] device_spec or Cyborg still has them.
            return
        plan = adoption.plan(addresses, instance.flavor.extra_specs, here)
        self._state.domains.set_aliases(uuid, {
            device.address: device.alias for device in plan.hostdevs})
        if adoption.is_candidate(instance.flavor.extra_specs):
            self._state.placement_client.adopt(
                uuid, plan.allocated, adoption.foreign_providers(
                    addresses, names(), here.node))
            for item, functions in held_devices.dirty(plan.hostdevs, here):
                # The request has made it free.
                self._state.use(item, functions)
            server_flavor.write(instance, plan.extra_specs)
        self._forget(instance, plan)
        LOG.info('Took over the server with its devices %s; its flavor asks '
                 'for them as %s', ', '.join(
                     str(device.address) for device in plan.hostdevs),
                 instance.flavor.extra_specs[flavor_specs.EXPANDED_KEY],
                 instance=instance)

    def _forget(self, instance, plan: adoption.Adoption) -> None:
        """Remove the PCI devices and the PCI requests of Nova.

        Nova cannot read the devices of a server that lacks their requests.
        """
        ours = {str(device.address) for device in plan.hostdevs}
        tracker = self._virtapi._compute.rt.pci_tracker
        for device in [device for device in tracker.pci_devs
                       if device.instance_uuid == instance.uuid
                       and device.address in ours]:
            # Otherwise Nova deletes its record at once, with the server still
            # in it. Nova deletes records of free devices in its next run.
            tracker.to_be_removed_when_freed.pop(device.address, None)
            tracker.free_device(device, instance)
        tracker.save(instance._context)
        if _alias_requests(instance):
            instance.pci_requests.requests = [
                request for request in instance.pci_requests.requests
                if request.source != objects.InstancePCIRequest.FLAVOR_ALIAS]
            # Assigned, so that save() writes it.
            instance.pci_requests = instance.pci_requests
            instance.save()


def _is_candidate(instance, held: hostdev.Hostdevs) -> bool:
    """Whether a server is to be taken over, or this is not finished.

    A guest that was not started again since lacks our aliases. The swap of a
    volume defines the domain from the XML of the guest.
    """
    specs = instance.flavor.extra_specs
    return adoption.is_candidate(specs) or flavor_specs.EXPANDED_KEY in specs \
        and bool(_alias_requests(instance) or not hostdev.ours(held))


def _alias_requests(instance) -> list:
    """Return the PCI requests of Nova for an alias."""
    return [request for request in (
        instance.pci_requests.requests if instance.pci_requests else ())
        if request.source == objects.InstancePCIRequest.FLAVOR_ALIAS]


def _addresses(instance, held: hostdev.Hostdevs) -> set:
    """Return the devices that a server has by its flavor.

    Nova's database has those of an alias, and libvirt alone has those of
    Cyborg. Devices of ports are left out.
    """
    of_ports = {device.address for device in instance.get_pci_devices(
        source=objects.InstancePCIRequest.NEUTRON_PORT)}
    found = {device.address for device in held
             if str(device.address) not in of_ports}
    if flavor_specs.ALIAS_KEY not in instance.flavor.extra_specs:
        return found
    novas = {device.address for device in instance.pci_devices or ()}
    return {address for address in found if str(address) in novas}

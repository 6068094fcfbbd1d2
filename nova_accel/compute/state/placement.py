# SPDX-License-Identifier: Apache-2.0
"""Reads and writes allocations in Placement.

Uses Nova's own client with its sessions, retries and generations. Uses an
admin context, since the context of an operation may have no token: when
nova-compute starts servers at the boot of the host, for example.

Seams: ``SchedulerReportClient``: ``get``, ``put``, ``post``,
``get_allocs_for_consumer``, ``get_allocations_for_resource_provider``,
``put_allocations``, ``delete_allocation_for_instance`` and
``clear_provider_cache``; ``nova.scheduler.utils``:
``ResourceRequest.from_request_spec``.
"""

import collections
import collections.abc

from keystoneauth1 import exceptions as keystone
from nova import context
from nova import exception
from nova import objects
from nova.compute import utils as compute_utils
from nova.scheduler import utils
from oslo_log import log as logging

from nova_accel import moved_flavors
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import allocations
from nova_accel.core.assignment import class_move
from nova_accel.core.placement import dirt
from nova_accel.core.placement import firmware
from nova_accel.core.placement import inventory
from nova_accel.core.placement import providers

LOG = logging.getLogger(__name__)

# Each allocation changes the provider's generation: a PUT can conflict.
_TRIES = 4


class PlacementClient:
    """A client of Placement.

    :param virtapi: nova.virt.virtapi.VirtAPI, which creates Nova's client of
        Placement on the first use
    """

    def __init__(self, virtapi):
        self._virtapi = virtapi
        #: Whether Placement answered when it was last asked for requests.
        self.answers = True
        #: Whether a write of ours, or of an operator, has outdated Nova's
        #: cache of the providers.
        self._is_outdated = False

    def allocations_of_consumer(self, uuid: str) -> dict[str, dict] | None:
        """Return the allocations of a server or a migration, by provider.

        :returns: in Placement's form, as Nova passes them to drivers; None if
            Placement does not answer
        """
        try:
            return self._client.get_allocs_for_consumer(
                context.get_admin_context(), uuid)['allocations']
        except (exception.ConsumerAllocationRetrievalFailed,
                keystone.ClientException) as error:
            LOG.warning('Could not read the allocations of %s from '
                        'Placement: %s', uuid, error)
            return None

    def allocations_of_provider(self, uuid: str) -> dict[str, dict]:
        """Return a provider's allocations by consumer, in Placement's form.

        :raises nova.exception.ResourceProviderAllocationRetrievalFailed: if
            Placement does not know the provider, or does not answer
        """
        return self._client.get_allocations_for_resource_provider(
            context.get_admin_context(), uuid).allocations

    def refresh_requests(self, node: inventory.Node) -> None:
        """See whether Nova's cache lacks what an operator asks for.

        Otherwise Nova reads traits every ``[compute]
        resource_provider_association_refresh`` seconds.

        :param node: as Nova knows the compute node
        """
        self.answers = False
        marked = self._marked(node)
        if marked is None:
            # Placement does not know each trait before its first use.
            for trait in sorted(providers.MARKS):
                self._client.put(f'/traits/{trait}', {}, version='1.6')
            marked = self._marked(node) or set()
        if self.answers and (marked != node.marked
                             or self._is_firmware_accepted(node)):
            self._is_outdated = True

    def refresh_providers(self) -> None:
        """Let Nova read the providers again if its cache is outdated.

        Nova's report to Placement uses the cache from its beginning to its
        end. So this is called before a report.
        """
        if self._is_outdated:
            self._is_outdated = False
            self._client.clear_provider_cache()

    def _is_firmware_accepted(self, node) -> bool:
        """Whether an operator has accepted a change of firmware."""
        if not firmware.changes(node.known_firmware):
            return False
        answer = self._client.get(f'/resource_providers/{node.uuid}/traits',
                                  version='1.6')
        return answer.status_code == 200 and firmware.loads(
            answer.json()['traits']) != node.known_firmware

    def _marked(self, node) -> set[str] | None:
        """Return our providers with marks; None if a mark does not exist."""
        answer = self._client.get(
            f'/resource_providers?in_tree={node.uuid}'
            f'&required=in:{",".join(sorted(providers.MARKS))}',
            version='1.39')
        self.answers = answer.status_code in (200, 400)
        if answer.status_code == 400:
            return None
        return {provider['uuid'] for provider in answer.json()[
            'resource_providers']} if self.answers else set()

    def units_by_class(self, provider: str) -> collections.Counter[str]:
        """Return the allocated amounts of a provider, by class."""
        found: collections.Counter[str] = collections.Counter()
        for allocation in self.allocations_of_provider(provider).values():
            found.update(allocation['resources'])
        return found

    def units_by_consumer(self, provider: str, resource_class: str,
                          ) -> dict[str, int]:
        """Return the allocated units of a provider, by consumer.

        :param resource_class: of the provider's Region
        :raises errors.AssignmentError: if Placement does not answer
        """
        try:
            try:
                by_consumer = self.allocations_of_provider(provider)
            except exception.ResourceProviderAllocationRetrievalFailed:
                if not self._is_new(provider):
                    raise
                return {}
        except (exception.ResourceProviderAllocationRetrievalFailed,
                keystone.ClientException) as error:
            raise errors.AssignmentError(
                'Placement', f'does not answer: {error}',
                'try again') from None
        return {consumer: allocations.count_units(allocation['resources'],
                                                  resource_class)
                for consumer, allocation in by_consumer.items()}

    def _is_new(self, provider: str) -> bool:
        """Whether Placement answers that it does not know a provider."""
        return self._client.get(
            f'/resource_providers/{provider}').status_code == 404

    def restore(self, instance, allocated: allocations.Allocations,
                ours: collections.abc.Container[str]) -> None:
        """Write all allocations of a server that has lost them.

        The units that it holds may be reserved meanwhile: its device is
        drained, for example. So both are changed in one request, as in
        :meth:`adopt`.

        :param ours: our providers among those of the allocations
        :raises errors.AssignmentError: if Placement rejects them
        """
        try:
            why = self._write_with_reserved({
                uuid: amounts for uuid, amounts in allocated.items()
                if uuid in ours}, instance.uuid, {
                    'allocations': _form(allocated),
                    'project_id': instance.project_id,
                    'user_id': instance.user_id,
                    'consumer_generation': None})
        except keystone.ClientException as error:
            why = str(error)
        if why:
            raise errors.AssignmentError(
                f'server {instance.uuid}', 'has no allocations, and '
                f'Placement rejects new ones: {why}',
                'make room for it, or write its allocations with `openstack '
                'resource provider allocation set`, and try again')
        LOG.info('Restored the allocations of the server: Placement had none',
                 instance=instance)

    def reallocate(self, consumer: str, more: allocations.Allocations,
                   less: allocations.Allocations) -> None:
        """Add allocations to a server, and remove others.

        Both in one request: Placement checks the capacity for all allocations
        of the server, and a device to be removed may have no capacity left.

        :raises errors.AssignmentError: if Placement rejects the change
        """
        self._change(consumer, lambda known: self._put(consumer, {
            **known, 'allocations': _form(allocations.changed(
                allocated(known['allocations']), more, less))}), 'try again')

    def adopt(self, consumer: str, more: allocations.Allocations,
              without: collections.abc.Container[str]) -> None:
        """Allocate reserved units to a server, which holds them already.

        It is one request (microversion 1.30, ``POST /reshaper``), so that the
        units are free for nobody in between.

        :param more: what is added to its allocations, if it is not there
        :param without: the providers whose units it does not have any more
        :raises errors.AssignmentError: if Placement rejects the change
        """
        self._change(consumer, lambda known: self._reshape(
            consumer, known, more, without), 'nova-compute tries again')

    def _reshape(self, consumer: str, known, more, without) -> str:
        """Return why Placement rejects the change of :meth:`adopt`, or ''."""
        before = allocated(known['allocations'])
        if not before:
            return 'it has none: it was deleted meanwhile'
        kept = {uuid: amounts for uuid, amounts in before.items()
                if uuid not in without}
        after = {**kept, **more}
        if after == before:
            return ''
        return self._write_with_reserved(
            {uuid: amounts for uuid, amounts in more.items()
             if uuid not in kept}, consumer, {
                'allocations': _form(after),
                **{key: known[key] for key in (
                    'project_id', 'user_id', 'consumer_generation')}})

    def move_classes(self, root: str, changes: class_move.Changes,
                     consumers: collections.abc.Collection[str]) -> None:
        """Change the resource class of providers and of their allocations.

        It is one request, as in :meth:`adopt`.

        :param root: uuid of the compute node's provider
        :param consumers: all consumers of these providers
        :raises errors.AssignmentError: if Placement rejects the change
        """
        try:
            for name in class_move.new_classes(changes):
                # Placement does not know a class until its first use.
                self._client.put(f'/resource_classes/{name}', {},
                                 version='1.7')
            why = self._post_reshaper(lambda: class_move.reshape(
                root, changes, {uuid: self._inventories(uuid) for uuid in (
                    *changes, *class_move.new_class_providers(root,
                                                              changes))},
                {uuid: self._client.get_allocs_for_consumer(
                    context.get_admin_context(), uuid)
                 for uuid in consumers}))
        except (exception.ConsumerAllocationRetrievalFailed,
                keystone.ClientException) as error:
            why = str(error)
        if why:
            raise errors.AssignmentError(
                'Placement', f'rejects the allocations of another class: '
                f'{why}', 'nova-compute tries again')

    def _write_with_reserved(self, new: allocations.Allocations,
                             consumer: str, payload) -> str:
        """Write allocations, for which reserved units are made free.

        :param new: the allocations of providers whose units may be reserved
        :param payload: all allocations of the consumer, in Placement's form
        :returns: why Placement rejects them, or ''
        """
        return self._post_reshaper(lambda: {
            'inventories': {uuid: self._unreserved(uuid, amounts)
                            for uuid, amounts in new.items()},
            'allocations': {consumer: payload}})

    def _post_reshaper(self, payload: collections.abc.Callable[[], dict],
                       ) -> str:
        """Change inventories and allocations in one request.

        :param payload: returns the request; called again after a conflict
        :returns: why Placement rejects it, or ''
        """
        for _try in range(_TRIES):
            answer = self._client.post('/reshaper', payload(), version='1.30')
            if answer.status_code != 409 or (
                    'concurrent_update' not in answer.text):
                break
        # Nova would take the units for reserved for some minutes, and not
        # reserve them again. But it may use its cache at the moment.
        self._is_outdated = True
        return '' if answer.status_code == 204 else answer.text

    def _change(self, consumer: str, send: collections.abc.Callable,
                remedy: str) -> None:
        """Change the allocations of a server.

        :param send: takes its allocations as Placement has them; returns why
            Placement rejects the change, or ''
        :raises errors.AssignmentError: if Placement rejects the change
        """
        try:
            why = send(self._client.get_allocs_for_consumer(
                context.get_admin_context(), consumer))
        except (exception.ConsumerAllocationRetrievalFailed,
                keystone.ClientException) as error:
            why = str(error)
        if why:
            raise errors.AssignmentError(
                f'server {consumer}', 'Placement rejects the allocations of '
                f'its devices: {why}', remedy)

    def _unreserved(self, provider: str, amounts) -> dict:
        """Return a provider's inventories with fewer units reserved."""
        known = self._inventories(provider)
        for name, amount in amounts.items():
            record = known.get('inventories', {}).get(name)
            if record:
                record['reserved'] = max(0, record['reserved'] - amount)
        return known

    def _inventories(self, provider: str) -> dict:
        """Return a provider's inventories, in Placement's form.

        :returns: empty if Placement does not return them
        """
        answer = self._client.get(
            f'/resource_providers/{provider}/inventories')
        # A proxy in front of Placement answers with a page.
        return answer.json() if answer.status_code == 200 else {}

    def move(self, source: str, target: str) -> None:
        """Give a server the allocations of a migration, instead of its own.

        :raises errors.AssignmentError: if Placement rejects the change
        """
        try:
            why = '' if self._client.move_allocations(
                context.get_admin_context(), source, target) else (
                    'its log has the reason')
        except (exception.AllocationMoveFailed,
                exception.ConsumerAllocationRetrievalFailed,
                keystone.ClientException) as error:
            why = str(error)
        if why:
            raise errors.AssignmentError(
                f'server {target}', 'Placement does not give it the '
                f'allocations of its migration: {why}', 'try again')

    def mark_dirty(self, item: inventory.Offered,
                   functions: frozenset[model.PciAddress]) -> None:
        """Store that functions of a Region are dirty.

        If the Region has one unit, it is reserved as well, so that no server
        gets it when this one is gone.

        :raises errors.AssignmentError: if Placement rejects that
        """
        try:
            why = self._mark_dirty(item, functions)
        except keystone.ClientException as error:
            why = str(error)
        if why:
            raise errors.AssignmentError(
                f'resource provider {item.name}', 'is to be cleaned after its '
                f'server, and Placement does not store that: {why}',
                'try again')
        # Nova caches inventories for some minutes.
        self._is_outdated = True
        if item.region.cleaner:
            LOG.info('Resource provider %s has a server now; no other server '
                     'gets its device before it is cleaned', item.name)
        else:
            LOG.info('Resource provider %s is for one-time use, and a server '
                     'has it now: it is reserved until an operator sets its '
                     '"reserved" to 0', item.name)

    def _mark_dirty(self, item, functions) -> str:
        """Return why Placement does not store dirty functions, or ''.

        The traits come first: they are what no drain and no round takes away.
        """
        provider = f'/resource_providers/{item.uuid}'
        traits = dirt.traits(functions, not item.region.cleaner)
        for _try in range(_TRIES):
            answer = self._client.get(f'{provider}/traits', version='1.6')
            if answer.status_code != 200:
                break
            known = answer.json()
            answer = self._client.put(f'{provider}/traits', {
                **known, 'traits': sorted({*known['traits'], *traits})},
                version='1.6')
            if answer.status_code == 200 and item.region.is_single:
                answer = self._reserve(item, answer.json()[
                    'resource_provider_generation'])
            elif answer.status_code == 400:
                # Placement does not know a trait until its first use.
                for trait in traits:
                    self._client.put(f'/traits/{trait}', {}, version='1.6')
                continue
            if answer.status_code != 409:
                break
        return '' if answer.status_code == 200 else (
            f'{answer.status_code} {answer.text}')

    def _reserve(self, item, generation: int):
        """Reserve the units of a Region, and return Placement's answer."""
        units = naming.unit_class(item.region.resource_class)
        record = providers.Provider(
            item.uuid, item.name, '', {units: item.region.size}, frozenset(),
            reserved=item.region.size).inventory[units]
        # Before microversion 1.26, reserved had to be below total.
        return self._client.put(
            f'/resource_providers/{item.uuid}/inventories/{units}',
            {**record, 'resource_provider_generation': generation},
            version='1.26')

    def _put(self, consumer: str, payload) -> str:
        """Return why Placement rejects allocations, or ''."""
        try:
            return '' if self._client.put_allocations(
                context.get_admin_context(), consumer, payload
                ) else 'the log says why'
        except (exception.AllocationUpdateFailed, exception.
                PlacementAPIConnectFailure) as error:
            return str(error)

    def delete(self, consumer: str) -> None:
        """Delete all allocations of a consumer."""
        self._client.delete_allocation_for_instance(
            context.get_admin_context(), consumer, force=True)

    @property
    def _client(self):
        return self._virtapi.reportclient


def allocated(found: collections.abc.Mapping[str, dict] | None,
              ) -> allocations.Allocations:
    """Return allocations in the form that nova_accel.core takes."""
    return {uuid: allocation['resources']
            for uuid, allocation in (found or {}).items()}


def not_ours(found: collections.abc.Mapping[str, dict], node: inventory.Node,
             ) -> dict[str, dict]:
    """Return the allocations that are not of our providers.

    While nova-compute starts, Nova has no tree, and ``node.ours`` is empty.
    """
    ours = {*node.ours, *inventory.counting(node.uuid, {
        name for allocation in found.values()
        for name in allocation['resources']})}
    return {uuid: allocation for uuid, allocation in found.items()
            if uuid not in ours}


def requested_amounts(instance) -> dict[str, int]:
    """Return all that a server's flavor and image request, by class."""
    spec = objects.RequestSpec(
        flavor=moved_flavors.current(instance.flavor),
        image=instance.image_meta,
        is_bfv=compute_utils.is_volume_backed_instance(
            context.get_admin_context(), instance))
    return utils.ResourceRequest.from_request_spec(spec).merged_resources()


def _form(allocated: allocations.Allocations) -> dict[str, dict]:
    return {uuid: {'resources': amounts}
            for uuid, amounts in allocated.items()}

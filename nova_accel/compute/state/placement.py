# SPDX-License-Identifier: Apache-2.0
"""The ledger, Placement's allocations, as a nova-compute asks and tells it.

By Nova's own client, whose sessions, retries and generations serve us too;
and as an administrator, for the context of an operation may have no token, at
a host's boot say.

Seams: ``SchedulerReportClient``: ``get``, ``put``,
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

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.assignment import assign
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)

# Each allocation of a provider gives it a new generation.
_TRIES = 4


class PlacementClient:
    """Placement's allocations.

    :param virtapi: nova.virt.virtapi.VirtAPI, which makes its client of
        Placement when it is asked for it first
    """

    def __init__(self, virtapi):
        self._virtapi = virtapi

    def allocations_of_consumer(self, uuid: str) -> dict[str, dict] | None:
        """What a server or a migration was promised, by provider.

        In Placement's form, as Nova passes it to its drivers; None if
        Placement does not answer, which is not to say that it is nothing.
        """
        try:
            return self._client.get_allocs_for_consumer(
                context.get_admin_context(), uuid)['allocations']
        except (exception.ConsumerAllocationRetrievalFailed,
                keystone.ClientException) as error:
            LOG.warning('Placement does not say what %s was promised: %s',
                        uuid, error)
            return None

    def allocations_of_provider(self, uuid: str) -> dict[str, dict]:
        """Who was promised something of a provider, in Placement's form.

        :raises nova.exception.ResourceProviderAllocationRetrievalFailed: if
            Placement does not know the provider, or does not answer
        """
        return self._client.get_allocations_for_resource_provider(
            context.get_admin_context(), uuid).allocations

    def units_by_class(self, provider: str) -> collections.Counter[str]:
        """How much of a provider is promised, by class."""
        found: collections.Counter[str] = collections.Counter()
        for allocation in self.allocations_of_provider(provider).values():
            found.update(allocation['resources'])
        return found

    def units_by_consumer(self, provider: str, resource_class: str,
                  ) -> dict[str, int]:
        """How many units of a provider are promised, by consumer.

        :param resource_class: its Region's
        :raises errors.AssignmentError: if Placement does not answer
        """
        try:
            try:
                allocations = self.allocations_of_provider(provider)
            except exception.ResourceProviderAllocationRetrievalFailed:
                if not self._is_new(provider):
                    raise
                return {}
        except (exception.ResourceProviderAllocationRetrievalFailed,
                keystone.ClientException) as error:
            raise errors.AssignmentError(
                'Placement', f'does not answer: {error}',
                'try again') from None
        return {consumer: assign.count_units(allocation['resources'],
                                             resource_class)
                for consumer, allocation in allocations.items()}

    def _is_new(self, provider: str) -> bool:
        """Whether Placement does not know a provider, as it says itself."""
        return self._client.get(
            f'/resource_providers/{provider}').status_code == 404

    def allocate(self, instance, allocated: assign.Allocations) -> None:
        """Promise everything again to a server that is promised nothing.

        Nova takes its promises from a server whose rebuild failed, and gives
        none back to it.

        :raises errors.AssignmentError: if Placement does not agree
        """
        why = self._put(instance.uuid, {
            'allocations': _form(allocated),
            'project_id': instance.project_id,
            'user_id': instance.user_id,
            'consumer_generation': None})
        if why:
            raise errors.AssignmentError(
                f'server {instance.uuid}', 'is promised nothing, and '
                f'Placement does not promise it anything again: {why}',
                'make room for it, or write its allocations with `openstack '
                'resource provider allocation set`, and try again')
        LOG.info('Placement had no promise to it any more; it has again',
                 instance=instance)

    def reallocate(self, consumer: str, more: assign.Allocations,
             less: assign.Allocations) -> None:
        """Promise something to a server, and take something from it.

        In one write: Placement checks again all that the server is promised
        then, and of a device that has to go there can be nothing any more.

        :raises errors.AssignmentError: if Placement does not agree
        """
        try:
            known = self._client.get_allocs_for_consumer(
                context.get_admin_context(), consumer)
            why = self._put(consumer, {**known, 'allocations': _form(
                assign.moved(allocated(known['allocations']), more, less))})
        except (exception.ConsumerAllocationRetrievalFailed,
                keystone.ClientException) as error:
            why = str(error)
        if why:
            raise errors.AssignmentError(
                f'server {consumer}', 'Placement does not take down which '
                f'devices it has: {why}', 'try again')

    def reserve(self, item: inventory.Offered) -> None:
        """Let nobody have anything more of a Region, until it is freed.

        :raises errors.AssignmentError: if Placement does not agree
        """
        try:
            why = self._reserve(
                f'/resource_providers/{item.uuid}/inventories/'
                f'{naming.unit_class(item.region.resource_class)}')
        except keystone.ClientException as error:
            why = str(error)
        if why:
            raise errors.AssignmentError(
                f'resource provider {item.name}', 'is for one server only, '
                f'and Placement does not reserve it: {why}', 'try again')
        # Nova remembers inventories for some minutes.
        self._client.clear_provider_cache()
        LOG.info('Resource provider %s is for one server only, which has it '
                 'now: it is reserved until an operator sets its "reserved" '
                 'to 0', item.name)

    def _reserve(self, url: str) -> str:
        """Why Placement does not reserve all of an inventory, or ''."""
        for _try in range(_TRIES):
            answer = self._client.get(url)
            if answer.status_code != 200:
                break
            record = answer.json()
            if record['reserved'] == record['total']:
                return ''
            # As much as the total it can be since microversion 1.26.
            answer = self._client.put(
                url, {**record, 'reserved': record['total']}, version='1.26')
            if answer.status_code != 409:
                break
        return '' if answer.status_code == 200 else (
            f'{answer.status_code} {answer.text}')

    def _put(self, consumer: str, payload) -> str:
        """Why Placement does not take down allocations, or ''."""
        try:
            return '' if self._client.put_allocations(
                context.get_admin_context(), consumer, payload
                ) else 'the log says why'
        except (exception.AllocationUpdateFailed, exception.
                PlacementAPIConnectFailure) as error:
            return str(error)

    def delete(self, consumer: str) -> None:
        """Free all that a consumer was promised."""
        self._client.delete_allocation_for_instance(
            context.get_admin_context(), consumer, force=True)

    @property
    def _client(self):
        return self._virtapi.reportclient


def allocated(allocations: collections.abc.Mapping[str, dict] | None,
             ) -> dict[str, dict[str, int]]:
    """Allocations of a consumer, as the core has them."""
    return {uuid: allocation['resources']
            for uuid, allocation in (allocations or {}).items()}


def asked(instance) -> dict[str, int]:
    """All that a server's flavor and image ask for, by class."""
    spec = objects.RequestSpec(
        flavor=instance.flavor, image=instance.image_meta,
        is_bfv=compute_utils.is_volume_backed_instance(
            context.get_admin_context(), instance))
    return utils.ResourceRequest.from_request_spec(spec).merged_resources()


def _form(allocated: assign.Allocations) -> dict[str, dict]:
    return {uuid: {'resources': amounts}
            for uuid, amounts in allocated.items()}

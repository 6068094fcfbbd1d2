# SPDX-License-Identifier: Apache-2.0
"""Placement's view of devices: resource providers and allocations."""

import collections
import dataclasses
import re

from openstack import exceptions

_DEVICE = re.compile(r'_accel_([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])')
_UNIT = 'CUSTOM_UNIT_OF_'


@dataclasses.dataclass(frozen=True)
class Provider:
    """A resource provider that nova_accel maintains."""

    name: str
    total: int
    reserved: int
    traits: frozenset[str]

    @property
    def card(self) -> str:
        """The address of its device, '' for a provider of a whole class."""
        found = _DEVICE.search(self.name)
        return found.group(1) if found else ''


class PlacementClient:
    """A client of Placement.

    :param connection: openstack.connection.Connection
    """

    def __init__(self, connection):
        self._placement = connection.placement

    def promised(self, server: str, host: str) -> tuple[
            collections.Counter, collections.Counter]:
        """Return a server's device allocations from a host.

        :returns: units by resource class, and units by card
        """
        classes, cards = collections.Counter(), collections.Counter()
        allocations = self._get(f'/allocations/{server}')['allocations']
        for uuid, allocation in allocations.items():
            name = self._get(f'/resource_providers/{uuid}')['name']
            if not name.startswith(f'{host}_accel_'):
                continue
            for resource_class, amount in allocation['resources'].items():
                _count(classes, cards, name, resource_class, amount)
        return classes, cards

    def consumers(self, host: str) -> tuple[
            dict[str, collections.Counter], dict[str, collections.Counter]]:
        """Return all device allocations from a host, by consumer.

        :returns: as of :meth:`promised`
        """
        classes = collections.defaultdict(collections.Counter)
        cards = collections.defaultdict(collections.Counter)
        for uuid, name in self._names(host).items():
            allocations = self._get(
                f'/resource_providers/{uuid}/allocations')['allocations']
            for consumer, allocation in allocations.items():
                for resource_class, amount in allocation['resources'].items():
                    _count(classes[consumer], cards[consumer], name,
                           resource_class, amount)
        return dict(classes), dict(cards)

    def is_disabled(self, host: str) -> bool:
        """Whether the host's resource provider has the disabled trait.

        When a service is enabled again, Nova removes the trait last.
        """
        root = self._root(host)
        return bool(root) and 'COMPUTE_STATUS_DISABLED' in self._get(
            f'/resource_providers/{root}/traits')['traits']

    def providers(self, host: str) -> list[Provider]:
        """Return the device providers of a host."""
        found = [self._provider(uuid, name)
                 for uuid, name in self._names(host).items()]
        return [provider for provider in found if provider]

    def _names(self, host: str) -> dict[str, str]:
        """Return the names of a host's device providers by their UUIDs."""
        root = self._root(host)
        if not root:
            return {}
        tree = self._get(f'/resource_providers?in_tree={root}')
        return {item['uuid']: item['name']
                for item in tree['resource_providers']
                if '_accel_' in item['name']}

    def _root(self, host: str) -> str:
        """Return the UUID of a host's root provider, '' if it has none."""
        found = self._get(f'/resource_providers?name={host}')
        return next((provider['uuid'] for provider
                     in found['resource_providers']), '')

    def can_be_had(self, host: str) -> dict[str, int]:
        """Return the units by class that a host offers, used or not."""
        found = {provider.name.split('_accel_')[1]:
                     provider.total - provider.reserved
                 for provider in self.providers(host) if not provider.card}
        return {name: number for name, number in found.items() if number}

    def device(self, host: str, card: str) -> Provider | None:
        """Return the provider of a card, None if it has none."""
        return next((provider for provider in self.providers(host)
                     if provider.card == card), None)

    def _provider(self, uuid, name) -> Provider | None:
        """Return a provider, None if it was deleted meanwhile."""
        path = f'/resource_providers/{uuid}'
        try:
            records = self._get(f'{path}/inventories')['inventories'].values()
            traits = frozenset(self._get(f'{path}/traits')['traits'])
        except exceptions.NotFoundException:
            return None
        return Provider(
            name, sum(record['total'] for record in records),
            sum(record['reserved'] for record in records), traits)

    def _get(self, path: str) -> dict:
        answer = self._placement.get(path, microversion='1.36')
        exceptions.raise_from_response(answer)
        return answer.json()


def _count(classes, cards, name, resource_class, amount):
    """Count units that are allocated from the provider of this name."""
    found = _DEVICE.search(name)
    if found and resource_class.startswith(_UNIT):
        cards[found.group(1)] += amount
    else:
        classes[resource_class] += amount

# SPDX-License-Identifier: Apache-2.0
"""A real Placement with many hosts, in a process of its own.

Rows are written directly to its database, so that a thousand hosts exist in
seconds. All requests use its API.
"""

import collections.abc
import logging
import uuid

import fixtures
from placement import db_api
from placement.db.sqlalchemy import models
from placement.tests.functional.fixtures import placement as placement_fixture
import requests
import sqlalchemy as sa

from tests.bench import worker

#: Amounts by class.
Amounts = collections.abc.Mapping[str, int]


class Placement(fixtures.TestWithFixtures):
    """Answers the questions of a benchmark (:mod:`tests.bench.worker`)."""

    #: The microversion of all requests.
    VERSION = '1.39'

    def __init__(self, connection):
        super().__init__('serve')
        self._connection = connection

    def setUp(self):
        super().setUp()
        logging.disable(logging.DEBUG)
        self._placement = self.useFixture(placement_fixture.PlacementFixture())

    def serve(self):
        worker.answer(self._connection, self.answer)

    def answer(self, **question) -> dict:
        raise NotImplementedError

    def define(self, kind: str, names: collections.abc.Iterable[str]) -> None:
        """Create resource classes or traits.

        :param kind: ``resource_classes`` or ``traits``
        """
        for name in names:
            self._request('put', f'/{kind}/{name}')

    def ask(self, path: str) -> requests.Response:
        return self._request('get', path)

    def _request(self, method, path) -> requests.Response:
        answer = requests.request(
            method, f'{self._placement.endpoint}{path}', timeout=3600,
            headers={'OpenStack-API-Version': f'placement {self.VERSION}',
                     'X-Auth-Token': 'admin'})
        answer.raise_for_status()
        return answer


class Rows:
    """Rows of resource providers. Their classes and traits must exist."""

    def __init__(self):
        self._engine = db_api.get_placement_engine()
        with self._engine.connect() as connection:
            self._classes, self._traits = (
                dict(connection.execute(sa.select(model.name, model.id)).all())
                for model in (models.ResourceClass, models.Trait))
        self._rows: dict = {model: [] for model in (
            models.ResourceProvider, models.Inventory,
            models.ResourceProviderTrait, models.Allocation)}
        # The root's id and the provider's own id, by uuid.
        self._numbers: dict[str, tuple[int, int]] = {}

    def add(self, provider: str, name: str, totals: Amounts, held: Amounts,
            parent: str | None = None,
            traits: collections.abc.Iterable[str] = ()) -> None:
        """Add a provider.

        :param provider: the uuid of the provider
        :param held: the amounts that a server has allocated
        :param parent: the uuid of a provider that was added before
        """
        number = len(self._numbers) + 1
        root, above = self._numbers[parent] if parent else (number, None)
        self._numbers[provider] = root, number
        self._rows[models.ResourceProvider].append({
            'id': number, 'uuid': provider, 'generation': 1, 'name': name,
            'root_provider_id': root, 'parent_provider_id': above})
        self._rows[models.Inventory].extend({
            'resource_provider_id': number,
            'resource_class_id': self._classes[name], 'total': total,
            'reserved': 0, 'min_unit': 1, 'max_unit': total, 'step_size': 1,
            'allocation_ratio': 1.0}
            for name, total in totals.items() if total)
        self._rows[models.ResourceProviderTrait].extend({
            'resource_provider_id': number, 'trait_id': self._traits[name]}
            for name in traits)
        self._rows[models.Allocation].extend({
            'resource_provider_id': number,
            'resource_class_id': self._classes[name], 'used': amount,
            'consumer_id': str(uuid.uuid4())}
            for name, amount in held.items())

    def write(self) -> None:
        """Replace all providers in the database with these."""
        with self._engine.begin() as connection:
            for model, rows in self._rows.items():
                connection.execute(sa.delete(model))
                if rows:
                    connection.execute(sa.insert(model), rows)

# SPDX-License-Identifier: Apache-2.0
"""A real Placement over many equal hosts, asked for devices.

In a process of its own (:mod:`tests.bench.worker`). The rows of its database
are written as they are, so that a thousand hosts are there in a second; all
questions go through its API.
"""

import logging
import statistics
import time
import uuid

import fixtures
from placement import db_api
from placement.db.sqlalchemy import models
from placement.tests.functional.fixtures import placement as placement_fixture
import requests
import sqlalchemy as sa

from tests.bench import ways
from tests.bench import worker

#: Seconds in which a request is made again for a better figure, and at most
#: how often.
PATIENCE, ROUNDS = 2, 5

_VERSION = {'OpenStack-API-Version': 'placement 1.39', 'X-Auth-Token': 'admin'}
_NODE = {'VCPU': 128, 'MEMORY_MB': 1 << 20}


class PlacementClient(fixtures.TestWithFixtures):
    """:param way: how devices are counted and asked for"""

    def __init__(self, connection, way: ways.Way):
        super().__init__('serve')
        self._connection, self._way = connection, way
        self._there = None

    def setUp(self):
        super().setUp()
        logging.disable(logging.DEBUG)
        self._placement = self.useFixture(placement_fixture.PlacementFixture())
        if self._way.tuned:
            config = self._placement.conf_fixture.config
            config(group='placement', max_allocation_candidates=ways.LIMIT,
                   allocation_candidates_generation_strategy='breadth-first')
            config(group='workarounds', optimize_for_wide_provider_trees=True)
        for name in self._classes():
            requests.put(f'{self._placement.endpoint}/resource_classes/{name}',
                         headers=_VERSION, timeout=60).raise_for_status()

    def serve(self):
        worker.answer(self._connection, self.answer)

    def answer(self, hosts, count, state) -> dict:
        """Ask, again and again while that is quick."""
        if self._there != (hosts, state):
            self._fill(hosts, state)
            self._there = hosts, state
            # Connections, caches of statements.
            self._ask(1)
        times: list[float] = []
        while len(times) < ROUNDS and sum(times) < PATIENCE:
            begin = time.perf_counter()
            found = self._ask(count)
            times.append(time.perf_counter() - begin)
        roots = {summary['root_provider_uuid']
                 for summary in found['provider_summaries'].values()}
        able = set(map(_uuid, (
            range(hosts) if state == ways.FREE or count < ways.DEVICES
            else range(hosts - 1, hosts))))
        return {'seconds': round(statistics.median(times), 6),
                'rounds': len(times),
                'candidates': len(found['allocation_requests']),
                'hosts_found': len(roots), 'fit': len(roots & able),
                'able': len(able)}

    def _ask(self, count) -> dict:
        answer = requests.get(
            f'{self._placement.endpoint}/allocation_candidates?'
            + self._way.query(count), headers=_VERSION, timeout=3600)
        answer.raise_for_status()
        return answer.json()

    def _classes(self) -> set[str]:
        return {name for amounts in self._way.tree(()).values()
                for name in amounts}

    def _fill(self, hosts, state) -> None:
        with db_api.get_placement_engine().begin() as connection:
            numbers = dict(connection.execute(sa.select(
                models.ResourceClass.name, models.ResourceClass.id)).all())
            rows = _Rows(numbers)
            for host in range(hosts):
                servers = (1,) * (state != ways.FREE and host < hosts - 1)
                rows.add_host(
                    host, self._way.tree(
                        () if state == ways.STALE else servers),
                    self._way.held if servers else {})
            for model, new in rows.by_model.items():
                connection.execute(sa.delete(model))
                if new:
                    connection.execute(sa.insert(model), new)


class _Rows:
    """
    :param classes: numbers of resource classes by name
    """

    def __init__(self, classes):
        self._classes = classes
        self.by_model: dict = {model: [] for model in (
            models.ResourceProvider, models.Inventory, models.Allocation)}

    def add_host(self, host: int, tree: ways.Amounts,
                 held: ways.Amounts) -> None:
        providers = self.by_model[models.ResourceProvider]
        root = len(providers) + 1
        for name in (ways.NODE, *(name for name in tree if name)):
            number = len(providers) + 1
            providers.append({
                'id': number, 'uuid': _uuid(host, name), 'generation': 1,
                'name': f'host{host}_{name}', 'root_provider_id': root,
                'parent_provider_id': root if name else None})
            self._add_amounts(
                number, tree.get(name, {}) | ({} if name else _NODE),
                held.get(name, {}))

    def _add_amounts(self, number, totals, used) -> None:
        self.by_model[models.Inventory].extend({
            'resource_provider_id': number,
            'resource_class_id': self._classes[name], 'total': total,
            'reserved': 0, 'min_unit': 1, 'max_unit': total, 'step_size': 1,
            'allocation_ratio': 1.0}
            for name, total in totals.items() if total)
        self.by_model[models.Allocation].extend({
            'resource_provider_id': number,
            'resource_class_id': self._classes[name], 'used': amount,
            'consumer_id': str(uuid.uuid4())}
            for name, amount in used.items())


def _uuid(host: int, name: str = ways.NODE) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f'host{host}_{name}'))

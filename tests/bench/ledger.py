# SPDX-License-Identifier: Apache-2.0
"""Allocation candidates of a real Placement with many equal hosts."""

import statistics
import time
import uuid

from tests.bench import filled
from tests.bench import ways

#: A request is repeated until it took so many seconds in total, or was made
#: so many times.
PATIENCE, ROUNDS = 2, 5

_NODE = {'VCPU': 128, 'MEMORY_MB': 1 << 20}


class PlacementClient(filled.Placement):
    """:param way: how devices are inventoried and requested"""

    def __init__(self, connection, way: ways.Way):
        super().__init__(connection)
        self._way = way
        self._there = None

    def setUp(self):
        super().setUp()
        if self._way.tuned:
            config = self._placement.conf_fixture.config
            config(group='placement', max_allocation_candidates=ways.LIMIT,
                   allocation_candidates_generation_strategy='breadth-first')
            config(group='workarounds', optimize_for_wide_provider_trees=True)
        self.define('resource_classes', {
            name for amounts in self._way.tree(()).values()
            for name in amounts})

    def answer(self, hosts, count, state) -> dict:
        """Request candidates repeatedly, and return the median time.

        The answer also has the numbers of candidates and of hosts.
        """
        if self._there != (hosts, state):
            self._fill(hosts, state)
            self._there = hosts, state
            # Fill connection pools and statement caches.
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
        return self.ask('/allocation_candidates?'
                        + self._way.query(count)).json()

    def _fill(self, hosts, state) -> None:
        rows = filled.Rows()
        for host in range(hosts):
            servers = (1,) * (state != ways.FREE and host < hosts - 1)
            tree = self._way.tree(() if state == ways.STALE else servers)
            held = self._way.held if servers else {}
            for name in (ways.NODE, *(name for name in tree if name)):
                rows.add(_uuid(host, name), f'host{host}_{name}',
                         tree.get(name, {}) | ({} if name else _NODE),
                         held.get(name, {}), _uuid(host) if name else None)
        rows.write()


def _uuid(host: int, name: str = ways.NODE) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f'host{host}_{name}'))

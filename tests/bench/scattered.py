# SPDX-License-Identifier: Apache-2.0
"""Many hosts, of which few have their free GPUs on one NUMA node."""

# First: it monkey-patches threads before any thread exists.
from tests.bench import deployment  # isort: split

import functools
import uuid

from tests.bench import fleet


class Scattered(deployment.Ours):
    """Answers the questions of :mod:`tests.bench.few`."""

    def answer(self, fitting=None, limit=1000, size=0, **question) -> dict:
        """Request four devices on one NUMA node once.

        :param fitting: the numbers of the hosts that have them
        :param limit: the number of candidates that Nova requests
        :param size: the size of the shortlist
        """
        if fitting is None:
            return super().answer(**question)
        self._scatter()
        self.flags(max_placement_results=limit, group='scheduler')
        self.flags(shortlist_size=size, group='nova_accel')
        for number in fitting:
            self._take(number, self._of_node(0))
        found = self._round(fleet.OF_A_NODE, one_node=True)
        for number in fitting:
            self._take(number, self._of_both())
        assert found['outcome'] in ('right', 'no host'), found
        return {'found': found['outcome'] == 'right',
                'seconds': round(found['seconds'], 6)}

    @functools.cache  # noqa: B019 (there is one deployment in a process)
    def _scatter(self):
        for number in range(1, self._hosts + 1):
            self._take(number, self._of_both())

    def _of_node(self, node):
        return [address for address, its in self._nodes.items()
                if its == node]

    def _of_both(self):
        return [address for node in (0, 1)
                for address in self._of_node(node)[:fleet.OF_A_NODE // 2]]

    @functools.cached_property
    def _uuids(self):
        return {provider['name']: provider['uuid'] for provider in
                self.placement.get('/resource_providers').body[
                    'resource_providers']}

    def _take(self, number, addresses):
        """Allocate these devices to the one server of a host."""
        host = f'compute{number}'
        allocations = {}
        for address in addresses:
            for name, resources in self.one_device(host, address).items():
                allocations[self._uuids[name]] = {'resources': {
                    key: len(addresses) if name.endswith(key) else amount
                    for key, amount in resources.items()}}
        consumer = str(uuid.uuid5(uuid.NAMESPACE_DNS, host))
        before = self.placement.get(f'/allocations/{consumer}',
                                    version='1.28').body
        answered = self.placement.put(f'/allocations/{consumer}', {
            'allocations': allocations, 'project_id': 'bench',
            'user_id': 'bench',
            'consumer_generation': before.get('consumer_generation')},
            version='1.28')
        assert answered.status == 204, answered.body

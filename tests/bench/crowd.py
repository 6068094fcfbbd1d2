# SPDX-License-Identifier: Apache-2.0
"""A host with many servers: the cost of a round and of another claim.

It runs in a process of its own (:mod:`tests.bench.worker`), like
:mod:`tests.bench.tracker`.
"""

# First: it monkey-patches threads before any thread exists.
from tests.functional import cloud  # isort: split

import collections
import contextlib
import statistics
import time

import fixtures
from nova import context as nova_context
from nova.compute import resource_tracker
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.bench import tracker

#: The servers that boot at the same time, and the rounds of a measurement.
_AT_ONCE, _ROUNDS = 20, 5


class _Crowd(tracker.Side):
    """A host on which servers accumulate."""

    def serve(self):
        self._plain = self.flavor()
        self._settlers = self.settlers()
        self._servers = 0
        super().serve()

    def settlers(self) -> int:
        """Return the flavor of the servers that stay on the host."""
        return self._plain

    def answer(self, servers) -> dict:
        """Boot servers up to a number, and measure.

        :returns: medians of the seconds of a round and of a claim, and of
            the domain descriptions that each reads from libvirt
        """
        while self._servers < servers:
            self._boot(min(_AT_ONCE, servers - self._servers))
        measured = {'round': self._round, 'claim': self._claim}
        found = {name: [measure() for _time in range(_ROUNDS)]
                 for name, measure in measured.items()}
        return {key: round(statistics.median(values), 5)
                for name, rounds in found.items()
                for key, values in zip((name, f'{name}_reads'),
                                       zip(*rounds, strict=True),
                                       strict=True)}

    def setUp(self):
        super().setUp()
        # Devices are the only limit of servers.
        self.flags(initial_cpu_allocation_ratio=1000.,
                   initial_disk_allocation_ratio=1000.)

    def _boot(self, count) -> None:
        server = self._build_server(image_uuid=cloud.IMAGE, networks='none',
                                    flavor_id=self._settlers)
        self.api.post_server({'server': {
            **server, 'min_count': count, 'max_count': count}})
        self._servers += count
        while (states := collections.Counter(
                server['status'] for server in self.api.get_servers())
               )['ACTIVE'] < self._servers:
            assert not states['ERROR'], states
            time.sleep(0.2)
        assert states['ACTIVE'] == self._servers

    def _round(self) -> tuple[float, int]:
        context = nova_context.get_admin_context()
        return self._measure(lambda: self.computes['compute1'].manager
                             .update_available_resource(context))

    def _claim(self) -> tuple[float, int]:
        found = []
        claim = resource_tracker.ResourceTracker.instance_claim

        def claimed(*args, **kwargs):
            results = []
            found.append(self._measure(
                lambda: results.append(claim(*args, **kwargs))))
            return results[0]
        with fixtures.MockPatchObject(
                resource_tracker.ResourceTracker, 'instance_claim', claimed):
            self._delete_server(self.boot(self._plain))
        return found[0]

    def _measure(self, operation) -> tuple[float, int]:
        with _descriptions() as found:
            begin = time.perf_counter()
            operation()
            return time.perf_counter() - begin, len(found)


@contextlib.contextmanager
def _descriptions():
    """Record the calls of XMLDesc of libvirt's domains."""
    found, describe = [], fakelibvirt.Domain.XMLDesc

    def described(*args):
        found.append(args)
        return describe(*args)
    with fixtures.MockPatchObject(fakelibvirt.Domain, 'XMLDesc', described):
        yield found


class Ours(_Crowd, tracker.Ours):
    """nova_accel: each server has a region."""

    def settlers(self):
        self.write_profile('one', groups=[
            {'resources': {'CUSTOM_REGION': 1}}])
        return self.flavor('one')


class Novas(_Crowd, tracker.Without):
    """Nova's driver: servers have no devices."""


SIDES = {'ours': Ours, 'novas': Novas}

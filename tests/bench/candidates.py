# SPDX-License-Identifier: Apache-2.0
"""The filter alone, over the candidates that Placement gives for n of eight.
"""

import itertools
import statistics
import time
import types

from nova import objects

from nova_accel.core import flavor
from nova_accel.core import profile
from nova_accel.core import providers
from nova_accel.core import summary
from nova_accel.host import reader
from nova_accel.host import tree
from nova_accel.scheduler import filter as filter_
from tests.functional import cloud

ROOT = '6f9e9a1e-5c8c-4a39-8a3c-4a6f6f5d3c11'
ROUNDS = 20


def measure() -> dict:
    """Microseconds per candidate, median of :data:`ROUNDS`."""
    entries, _broken = reader.parse([cloud.GPU_SPEC])
    host = reader.read(tree.open_tree(cloud.EIGHT_GPUS), entries)
    offered = providers.offered(host, ROOT, 'compute1')
    return {f'{count} of 8': _measure(offered, count) for count in (2, 4)}


def _measure(offered, count) -> dict:
    group = profile.Group({cloud.GPU: 1}, {}, profile.REQUIRED)
    specs = flavor.expand(profile.Profile('x', (group,) * count), {})
    candidates = [
        {'allocations': {}, 'mappings': {
            f'_ACCEL{index}': [item.uuid] for index, item in enumerate(chosen)
        }} for chosen in itertools.permutations(offered, count)][:1000]
    spec = objects.RequestSpec(
        flavor=objects.Flavor(extra_specs=specs), numa_topology=None,
        pci_requests=None)
    stats = {summary.KEY: summary.dumps(offered)}
    times, kept = [], 0
    for _round in range(ROUNDS):
        state = types.SimpleNamespace(
            host='compute1', uuid=ROOT, stats=stats, numa_topology=None,
            pci_stats=None, allocation_candidates=list(candidates))
        begin = time.perf_counter()
        filter_.AcceleratorFilter().host_passes(state, spec)
        times.append(time.perf_counter() - begin)
        kept = len(state.allocation_candidates)
    return {'candidates': len(candidates), 'kept': kept,
            'microseconds_per_candidate': round(
                statistics.median(times) / len(candidates) * 1e6, 2)}

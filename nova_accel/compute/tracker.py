# SPDX-License-Identifier: Apache-2.0
"""What Nova's resource tracker claims, it claims near the devices.

The guest is fitted into the host when it is claimed for, before its devices
are; which these are going to be, its allocations say.

Seam: ``nova.compute.resource_tracker.ResourceTracker``: ``instance_claim``,
``rebuild_claim``, ``resize_claim`` and ``live_migration_claim``, wrapped.
"""

import functools
import inspect

from nova.compute import resource_tracker

from nova_accel import numa_fit

#: By the name that each has for allocations.
CLAIMS = {'instance_claim': 'allocations', 'rebuild_claim': 'allocations',
          'resize_claim': 'allocations', 'live_migration_claim': 'allocs'}


def install() -> None:
    """Wrap the methods; once, however often called."""
    numa_fit.install()
    for name, argument in CLAIMS.items():
        original = getattr(resource_tracker.ResourceTracker, name)
        if not hasattr(original, 'nova_accel'):
            setattr(resource_tracker.ResourceTracker, name,
                    _near_devices(original, argument))


def _near_devices(original, argument):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def claim(self, *args, **kwargs):
        said = signature.bind(self, *args, **kwargs).arguments
        # The same process can have other drivers' trackers.
        nodes_for = getattr(self.driver, 'nodes_for', None)
        nodes = nodes_for(
            said.get('flavor') or said['instance'].flavor,
            said.get(argument)) if nodes_for else ()
        with numa_fit.near(nodes):
            return original(self, *args, **kwargs)

    claim.nova_accel = original
    return claim

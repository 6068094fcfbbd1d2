# SPDX-License-Identifier: Apache-2.0
"""What a server takes of a host, as later ones of its request see it.

Seam: ``nova.scheduler.host_manager.HostState.consume_from_request``, wrapped.
"""

import functools

from nova.scheduler import host_manager

from nova_accel import numa_fit
from nova_accel.core import affinity
from nova_accel.core import errors
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choice


def install() -> None:
    """Wrap the method; once, however often called."""
    numa_fit.install()
    original = host_manager.HostState.consume_from_request
    if hasattr(original, 'nova_accel'):
        return

    @functools.wraps(original)
    def consume_from_request(self, spec_obj, *args, **kwargs):
        with numa_fit.near(_nodes(self, spec_obj)):
            return original(self, spec_obj, *args, **kwargs)

    consume_from_request.nova_accel = original
    host_manager.HostState.consume_from_request = consume_from_request


def _nodes(host_state, spec_obj) -> set[int]:
    """Those of the devices that a server is given, if they matter to it."""
    # Nova claims the first.
    [candidate] = (getattr(host_state, 'allocation_candidates', None)
                   or [{}])[:1]
    devices = choice.devices(candidate)
    if not devices:
        return set()
    try:
        if not choice.request(spec_obj.flavor.extra_specs).concerns(
                affinity.GUEST):
            return set()
    except errors.ProfileError:
        return set()
    places = candidates.said(host_state).places
    return {places[uuid].numa_node for uuid in devices
            if uuid in places} - {None}

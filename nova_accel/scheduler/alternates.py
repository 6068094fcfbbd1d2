# SPDX-License-Identifier: Apache-2.0
"""Alternate hosts, of which a server is promised no device in particular.

Nova sends alternates along with the host that it claims, for when the build
fails there. Their candidates are claimed later, by nova-conductor, as they
were sent: devices in them would be the same ones for all servers of a request,
and maybe somebody's by then. So they ask for so many of a class, and
nova-compute chooses and tells Placement, as where filters are skipped.

Seam: ``nova.objects.Selection.from_host_state``, wrapped.
"""

import functools

from nova.objects import selection


def install() -> None:
    """Wrap the method; once, however often called."""
    original = selection.Selection.from_host_state.__func__
    if hasattr(original, 'nova_accel'):
        return

    @functools.wraps(original)
    def from_host_state(cls, host_state, allocation_request=None,
                        *args, **kwargs):
        return original(cls, host_state, _promised(allocation_request),
                        *args, **kwargs)

    from_host_state.nova_accel = original
    selection.Selection.from_host_state = classmethod(from_host_state)


def _promised(candidate):
    """What Placement said of a candidate; all of it, if it was claimed."""
    choice = getattr(candidate, 'choice', None)
    if choice is None or candidate.claimed:
        return candidate
    return {**candidate, 'allocations': choice.without_devices(candidate)}

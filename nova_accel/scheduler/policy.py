# SPDX-License-Identifier: Apache-2.0
"""The ``group_policy`` that Placement wants to hear with several groups.

It is not in the flavor of a profile, where Nova looks for it: its key has no
colon, and to Nova's AggregateInstanceExtraSpecsFilter such a key is metadata
that a host's aggregates must have. A profile's groups are kept apart by rules
of its own, so to Placement the policy is always that there is none.

Seam: ``nova.scheduler.utils.ResourceRequest.from_request_spec``, wrapped.
"""

import functools

from nova.scheduler import utils

from nova_accel.core import flavor as flavors

_NONE = 'none'


def install() -> None:
    """Wrap the function; once, however often called."""
    original = utils.ResourceRequest.from_request_spec
    if hasattr(original, 'nova_accel'):
        return

    @functools.wraps(original)
    def from_request_spec(request_spec, *args, **kwargs):
        request = original(request_spec, *args, **kwargs)
        flavor = request_spec.flavor
        if (request.group_policy is None and 'extra_specs' in flavor
                and flavors.EXPANDED_KEY in flavor.extra_specs
                and request.get_num_of_suffixed_groups() > 1):
            request.group_policy = _NONE
        return request

    from_request_spec.nova_accel = original
    utils.ResourceRequest.from_request_spec = staticmethod(from_request_spec)

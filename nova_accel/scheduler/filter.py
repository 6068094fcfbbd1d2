# SPDX-License-Identifier: Apache-2.0
"""nova-scheduler: which devices of a host, and whether it has them at all.

Seam: ``nova.scheduler.filters.BaseHostFilter`` and
``HostState.allocation_candidates``, of which Nova claims the first.
"""

import nova.conf
from nova.scheduler import filters
from nova.scheduler import utils
from oslo_log import log as logging

from nova_accel import conf
from nova_accel.core import errors
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.scheduler import candidates
from nova_accel.scheduler import host_search
from nova_accel.scheduler import patches
from nova_accel.scheduler import rejections

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class AcceleratorFilter(filters.BaseHostFilter):
    """Choose a server's devices on each host; drop hosts that lack them.

    Placement has found hosts with enough units of each class. Here it is
    decided which they are: such as the profile's affinity says, near the
    guest, and so that large groups of free devices stay whole. They are
    written into the candidate that Nova claims. It calls nothing: what is free
    came with Placement's answer, and where it is with the host's state.

    It belongs last in ``enabled_filters``, so that it sees what the others
    have left.
    """

    # A rebuild keeps its host and its devices, and has no candidates.
    RUN_ON_REBUILD = False

    def __init__(self):
        super().__init__()
        conf.register_opts(CONF)
        patches.install()

    def host_passes(self, host_state, spec_obj):
        """Whether one host passes, and why not."""
        return any(self.filter_all([host_state], spec_obj))

    def filter_all(self, filter_obj_list, spec_obj):
        """Each host that passes; in the end, why none did."""
        # Nova looks at it for each host, in what this is in place of.
        if not self.RUN_ON_REBUILD and utils.request_is_rebuild(spec_obj):
            yield from filter_obj_list
            return
        try:
            wanted = flavor_request.parse(
                spec_obj.flavor.extra_specs, flavor_specs.image_traits(
                    spec_obj.image if 'image' in spec_obj else None)).checked()
        except errors.ProfileError as error:
            LOG.error('No host can be found: %s', error)
            return
        served: set[str] = set()
        searches: dict[int, host_search.HostSearch] = {}
        for number, host_state in enumerate(filter_obj_list):
            served |= candidates.claimed(host_state)
            # Where there is no answer, nova-compute will choose.
            if wanted.classes and candidates.of(host_state):
                searches[number] = host_search.HostSearch(
                    host_state, spec_obj, wanted)
        host_search.search_all(list(searches.values()))
        for number, host_state in enumerate(filter_obj_list):
            if number not in searches or searches[number].settle():
                yield host_state
        self._explain(searches.values(), spec_obj, wanted, served)

    @staticmethod
    def _explain(searches, spec_obj, wanted, served) -> None:
        """Say why there is no host, if there is none."""
        fallen = rejections.Rejections()
        for one in searches:
            fallen.add(one.host_state.host, one.passes, one.arranged)
        uuid = (spec_obj.instance_uuid if spec_obj.obj_attr_is_set(
            'instance_uuid') else 'A server')
        # Nova also looks for alternates of what it has placed already.
        if (text := fallen.text()) and uuid not in served:
            LOG.info('%s has no valid host for %s: %s', uuid, wanted.name,
                     text)

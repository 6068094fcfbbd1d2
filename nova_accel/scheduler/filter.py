# SPDX-License-Identifier: Apache-2.0
"""nova-scheduler: the filter, which chooses the devices on each host.

Seam: ``nova.scheduler.filters.BaseHostFilter``, and
``HostState.allocation_candidates``, the first of which Nova claims.
"""

import nova.conf
from nova.scheduler import filters
from nova.scheduler import utils
from oslo_log import log as logging

from nova_accel import conf
from nova_accel.core import errors
from nova_accel.scheduler import candidates
from nova_accel.scheduler import device_request
from nova_accel.scheduler import host_search
from nova_accel.scheduler import no_valid_host
from nova_accel.scheduler import patches
from nova_accel.scheduler import rejections
from nova_accel.scheduler import same_domain

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class AcceleratorFilter(filters.BaseHostFilter):
    """Choose a server's devices on each host; reject hosts without them.

    Placement has found hosts with enough units of each class. The filter
    chooses the units: they meet the profile's affinity rules, are near the
    guest, and leave large groups of free devices whole. It writes them into
    the candidate that Nova claims. It sends no requests: Placement's answer
    contains the usage, and the host's state the topology.

    The filter must be last in ``enabled_filters``, so that it examines only
    hosts that pass all others.
    """

    # A rebuild keeps its host and its devices. It has no candidates.
    RUN_ON_REBUILD = False

    def __init__(self):
        super().__init__()
        conf.register_opts(CONF)
        conf.log_unknown(CONF, LOG)
        patches.install()

    def host_passes(self, host_state, spec_obj):
        """Whether one host passes; if not, log the reason."""
        return any(self.filter_all([host_state], spec_obj))

    def filter_all(self, filter_obj_list, spec_obj):
        """Yield the hosts that pass; log the reasons if none does."""
        # Nova checks this in the method that this one overrides.
        if not self.RUN_ON_REBUILD and utils.request_is_rebuild(spec_obj):
            yield from filter_obj_list
            return
        try:
            wanted = device_request.of(spec_obj).checked()
        except errors.ProfileError as error:
            LOG.error('No host can be found: %s', error)
            return
        served: set[str] = set()
        searches: dict[int, host_search.HostSearch] = {}
        for number, host_state in enumerate(filter_obj_list):
            served |= candidates.claimed(host_state)
            # Without an answer of Placement, nova-compute chooses.
            answer = candidates.of(host_state)
            if wanted.classes and answer:
                searches[number] = host_search.HostSearch(
                    host_state, answer, spec_obj, wanted)
        host_search.search_all(list(searches.values()))
        yield from same_domain.keep([
            host_state for number, host_state in enumerate(filter_obj_list)
            if number not in searches or searches[number].settle()])
        self._explain(list(searches.values()), spec_obj, wanted, served)

    @staticmethod
    def _explain(searches, spec_obj, wanted, served) -> None:
        """Log why no host passed, if none did."""
        rejected = rejections.Rejections()
        for search in searches:
            rejected.add(search.host_state.host, search.passes,
                         search.arranged)
        uuid = (spec_obj.instance_uuid if spec_obj.obj_attr_is_set(
            'instance_uuid') else 'A server')
        # Nova also filters hosts for alternates, after it has placed a server.
        if (text := rejected.text()) and uuid not in served:
            if searches[0].answer.has_more_hosts:
                LOG.debug('None of the best hosts passes for %s (%s). Nova '
                          'examines the others now: %s', uuid, wanted.name,
                          text)
                return
            no_valid_host.rejected(searches, len(served))
            LOG.info('%s has no valid host for %s: %s', uuid, wanted.name,
                     text)

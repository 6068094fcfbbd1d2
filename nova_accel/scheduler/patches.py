# SPDX-License-Identifier: Apache-2.0
"""What is wrapped in nova-scheduler, beside the filter and the weigher."""

import copy
import random

from nova.objects import selection
from nova.scheduler import host_manager
from nova.scheduler import utils
from nova.scheduler.client import report
from oslo_log import log as logging

from nova_accel import numa_fit
from nova_accel import seams
from nova_accel.core import errors
from nova_accel.core.request import affinity
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices

LOG = logging.getLogger(__name__)

# Each time somebody else got something, so it cannot go on for long: 64
# schedulers that come to 64 devices at the same moment needed 13.
_TIMES = 16

# Workers of one service begin with a copy of any other one's state.
_CHANCE = random.SystemRandom()

_NO_POLICY = 'none'


@seams.wrap(utils.ResourceRequest, 'from_request_spec')
def from_request_spec(original, cls, request_spec, *args, **kwargs):
    """Add the ``group_policy`` that Placement requires of several groups.

    It is not in the flavor of a profile, where Nova looks for it: its key has
    no colon, and Nova's AggregateInstanceExtraSpecsFilter takes such a key for
    metadata that a host's aggregates must have. Rules of the profile keep its
    groups apart, so the policy is always ``none``.
    """
    request = original(cls, request_spec, *args, **kwargs)
    flavor = request_spec.flavor
    if (request.group_policy is None and 'extra_specs' in flavor
            and flavor_specs.EXPANDED_KEY in flavor.extra_specs
            and request.get_num_of_suffixed_groups() > 1):
        request.group_policy = _NO_POLICY
    return request


@seams.wrap(report.SchedulerReportClient, 'get_allocation_candidates')
def get_allocation_candidates(original, self, context, resources, *args,
                              **kwargs):
    """Keep with each candidate what Placement said beside it."""
    answered = original(self, context, resources, *args, **kwargs)
    if not answered:
        # Placement cannot be reached; Nova knows what to do.
        return answered
    found, summaries, *rest = answered
    if found and summaries:
        answer = candidates.Answer(summaries, resources)
        found = [candidates.Candidate(candidate, answer)
                 for candidate in found]
    return (found, summaries, *rest)


@seams.wrap(utils, 'claim_resources')
def claim_resources(original, ctx, client, spec_obj, instance_uuid, alloc_req,
                    *args, **kwargs):
    """Claim other devices of a host where those that were chosen are taken.

    Between Placement's answer and the claim another scheduler can have claimed
    them. The host may have others as good, so it is asked about again before
    Nova goes on to the next one. Which of them are taken is left to chance
    then: the other scheduler tries again as well.
    """
    for _time in range(_TIMES):
        if original(ctx, client, spec_obj, instance_uuid, alloc_req,
                    *args, **kwargs):
            if isinstance(alloc_req, candidates.Candidate):
                alloc_req.claim(instance_uuid)
            return True
        if not _choose_again(ctx, client, instance_uuid, alloc_req):
            break
    return False


def _choose_again(context, client, instance_uuid: str, candidate) -> bool:
    """Have other devices in a candidate, if there are any."""
    choice = getattr(candidate, 'choice', None)
    if choice is None:
        return False
    resources = copy.deepcopy(candidate.answer.resources)
    # Of this host alone, and of that all there is.
    resources.get_request_group(None).in_tree = choice.host_state.uuid
    before = choice.without_devices(candidate)
    answered = client.get_allocation_candidates(context, resources)
    objection = 'Placement has nothing like it there any more'
    for found in answered and answered[0] or ():
        if choice.without_devices(found) != before:
            continue
        objection = choice.fill(candidate, found.answer, found.answer.steps,
                                chance=_CHANCE).objection
        if not objection:
            LOG.debug('Devices of %s were taken meanwhile; others are '
                      'claimed', choice.host_state.host)
            return True
    LOG.info('%s could not claim what was chosen on %s, and there is nothing '
             'else: %s', instance_uuid, choice.host_state.host, objection)
    return False


@seams.wrap(host_manager.HostState, 'consume_from_request')
def consume_from_request(original, self, spec_obj, *args, **kwargs):
    """Count the NUMA nodes of a server's devices as the guest's."""
    with numa_fit.near(_nodes(self, spec_obj)):
        return original(self, spec_obj, *args, **kwargs)


def _nodes(host_state, spec_obj) -> set[int]:
    """Those of the devices that a server is given, if they matter to it."""
    # Nova claims the first.
    [candidate] = (getattr(host_state, 'allocation_candidates', None)
                   or [{}])[:1]
    devices = choose_devices.devices(candidate)
    if not devices:
        return set()
    try:
        if not flavor_request.parse(spec_obj.flavor.extra_specs).concerns(
                affinity.GUEST):
            return set()
    except errors.ProfileError:
        return set()
    places = candidates.summary(host_state).places
    return {places[uuid].numa_node for uuid in devices
            if uuid in places} - {None}


@seams.wrap(selection.Selection, 'from_host_state')
def from_host_state(original, cls, host_state, allocation_request=None,
                    *args, **kwargs):
    """Take the devices out of alternate hosts' candidates.

    Nova sends alternates along with the host that it claims, for when the
    build fails there. nova-conductor claims them later as they were sent:
    devices in them would be the same ones for all servers of a request, and
    may be somebody's by then. So they ask for so many of a class, and
    nova-compute chooses and tells Placement, as where filters are skipped.
    """
    return original(cls, host_state, _without_devices(allocation_request),
                    *args, **kwargs)


def _without_devices(candidate):
    """What Placement said of a candidate; all of it, if it was claimed."""
    choice = getattr(candidate, 'choice', None)
    if choice is None or candidate.claimed:
        return candidate
    return {**candidate, 'allocations': choice.without_devices(candidate)}


def install() -> None:
    """Wrap all of it."""
    for seam in (numa_fit.numa_fit_instance_to_host, from_request_spec,
                 get_allocation_candidates, claim_resources,
                 consume_from_request, from_host_state):
        seam.install()

# SPDX-License-Identifier: Apache-2.0
"""The wrappers of nova-scheduler's functions."""

import copy
import random

from nova import exception
import nova.conf
from nova.objects import selection
from nova.scheduler import host_manager
from nova.scheduler import manager
from nova.scheduler import utils
from nova.scheduler.client import report
from oslo_log import log as logging
from oslo_messaging import rpc

from nova_accel import numa_fit
from nova_accel import seams
from nova_accel.core import errors
from nova_accel.core.request import affinity
from nova_accel.core.request import flavor_specs
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices
from nova_accel.scheduler import device_request
from nova_accel.scheduler import held_alternative
from nova_accel.scheduler import no_valid_host
from nova_accel.scheduler import same_domain
from nova_accel.scheduler import shortlist
from nova_accel.scheduler import taken_over

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# Each time it fails, another server has got its devices, so few attempts are
# enough: 64 schedulers that compete for 64 devices at once needed 13.
_TIMES = 16

# Not random.Random: forked workers would start with the same state.
_CHANCE = random.SystemRandom()

_NO_POLICY = 'none'

# As many times as Nova's limit are asked for where a shortlist is made of the
# hosts: Placement does not know the rules, and returns the same hosts first.
_MORE_HOSTS = 10


@seams.wrap(utils.ResourceRequest, 'from_request_spec')
def from_request_spec(original, cls, request_spec, *args, **kwargs):
    """Complete the request to Placement.

    Add the ``group_policy`` that Placement requires for several groups. Nova
    reads it from the flavor, but an expanded profile does not write it
    there: Nova's AggregateInstanceExtraSpecsFilter matches keys without a
    colon with the metadata of aggregates. The rules of the profile keep its
    groups apart, so the policy is always ``none``.
    """
    taken_over.correct(request_spec)
    request = original(cls, request_spec, *args, **kwargs)
    flavor = request_spec.flavor
    if ('extra_specs' not in flavor
            or flavor_specs.EXPANDED_KEY not in flavor.extra_specs):
        return request
    if (request.group_policy is None
            and request.get_num_of_suffixed_groups() > 1):
        request.group_policy = _NO_POLICY
    if schedule.is_installed and CONF.nova_accel.shortlist_size:
        # Nova resets the limit for a forced host.
        request._limit *= _MORE_HOSTS
    return request


@seams.wrap(report.SchedulerReportClient, 'get_allocation_candidates')
def get_allocation_candidates(original, self, context, resources, *args,
                              **kwargs):
    """Keep Placement's provider summaries with each candidate."""
    answered = original(self, context, resources, *args, **kwargs)
    if not answered:
        # Placement could not be reached. Nova handles that.
        return answered
    found, summaries, *rest = answered
    no_valid_host.answered(self, context, resources, found)
    if found and summaries:
        answer = candidates.Answer(summaries, resources)
        found = [candidates.Candidate(candidate, answer)
                 for candidate in found]
    return (found, summaries, *rest)


@seams.wrap(manager.SchedulerManager, '_schedule')
def schedule(original, self, context, spec_obj, instance_uuids,
             alloc_reqs_by_rp_uuid, provider_summaries, *args, **kwargs):
    """Examine the best hosts first, and the others if none of them passes.

    With ``same_domain``, try one host domain after the other.
    """
    failure = exception.NoValidHost(reason='')
    with same_domain.searching(context, spec_obj, instance_uuids) as search:
        for summaries in (search.rounds(
                alloc_reqs_by_rp_uuid, provider_summaries) if search else
                shortlist.rounds(spec_obj, instance_uuids,
                                 alloc_reqs_by_rp_uuid, provider_summaries)):
            try:
                return original(self, context, spec_obj, instance_uuids,
                                alloc_reqs_by_rp_uuid, summaries, *args,
                                **kwargs)
            except exception.NoValidHost as error:
                failure = error
    raise failure


@seams.wrap(utils, 'claim_resources')
def claim_resources(original, ctx, client, spec_obj, instance_uuid, alloc_req,
                    *args, **kwargs):
    """Claim other devices of the host if the chosen ones are taken.

    Another scheduler can claim them between Placement's answer and our claim.
    The host may have other devices that are as good, so they are chosen again
    before Nova tries the next host. Among equally good devices the choice is
    random, because the other scheduler chooses again as well.
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
    """Choose other devices for a candidate; return whether that worked."""
    choice = getattr(candidate, 'choice', None)
    if choice is None:
        return False
    resources = copy.deepcopy(candidate.answer.resources)
    # Ask for candidates of this host only.
    resources.get_request_group(None).in_tree = choice.host_state.uuid
    before = choice.without_devices(candidate)
    answered = client.get_allocation_candidates(context, resources)
    objection = 'Placement has no such candidate for it any more'
    for found in answered and answered[0] or ():
        if choice.without_devices(found) != before:
            continue
        objection = choice.fill(candidate, found.answer, found.answer.steps,
                                chance=_CHANCE).objection
        if not objection:
            LOG.debug('Devices chosen on %s for server %s were claimed by '
                      'another server; claiming others',
                      choice.host_state.host, instance_uuid)
            return True
    LOG.info('Server %s could not claim the devices chosen on %s, and there '
             'are no others: %s', instance_uuid, choice.host_state.host,
             objection)
    return False


@seams.wrap(host_manager.HostState, 'consume_from_request')
def consume_from_request(original, self, spec_obj, *args, **kwargs):
    """Place the guest on the NUMA nodes of its devices, if it fits there."""
    same_domain.place()
    with numa_fit.preferred_nodes(_nodes(self, spec_obj)):
        return original(self, spec_obj, *args, **kwargs)


def _nodes(host_state, spec_obj) -> set[int]:
    """Return the nodes of a server's devices, if a rule is about the guest."""
    # Nova claims the first candidate.
    [candidate] = (getattr(host_state, 'allocation_candidates', None)
                   or [{}])[:1]
    devices = choose_devices.devices(candidate)
    if not devices:
        return set()
    try:
        if not device_request.of(spec_obj).has_member(affinity.GUEST):
            return set()
    except errors.ProfileError:
        return set()
    places = candidates.summary(host_state).places
    nodes = {places[uuid].numa_node for uuid in devices if uuid in places}
    return {node for node in nodes if node is not None}


@seams.wrap(selection.Selection, 'from_host_state')
def from_host_state(original, cls, host_state, allocation_request=None,
                    *args, **kwargs):
    """Remove the chosen devices from the candidates of alternate hosts.

    Nova sends alternates along with the selected host, in case the build
    fails there. nova-conductor claims an alternate later, unchanged. Its
    devices would be the same for all servers of the request, and another
    server may have them by then. So an alternate allocates units of a class
    only, and nova-compute chooses the devices, as if filters were skipped.
    """
    return original(cls, host_state, _without_devices(allocation_request),
                    *args, **kwargs)


def _without_devices(candidate):
    """Return a candidate without its devices, unless it was claimed."""
    choice = getattr(candidate, 'choice', None)
    if choice is None or candidate.claimed:
        return candidate
    return {**candidate, 'allocations': choice.without_devices(candidate)}


@seams.wrap(manager.SchedulerManager, 'select_destinations')
def select_destinations(original, *args, **kwargs):
    """Tell the owner of a server why there is no host with its devices.

    In a live migration, the server keeps the alternative that it holds.
    """
    # nova-conductor passes all arguments by name.
    spec_obj, uuids = kwargs.get('spec_obj'), kwargs.get('instance_uuids')
    if spec_obj:
        held_alternative.pin(spec_obj)
    if not spec_obj or not CONF.nova_accel.explain_no_valid_host:
        return original(*args, **kwargs)
    with no_valid_host.watching(spec_obj, len(uuids or ())) as attempt:
        try:
            return original(*args, **kwargs)
        except rpc.ExpectedException as error:
            # What messaging.expected_exceptions makes of NoValidHost.
            failure = error.exc_info[1]
    reason = attempt.reason()
    try:
        raise exception.NoValidHost(reason=reason) if reason else failure
    except exception.NoValidHost:
        raise rpc.ExpectedException() from None


def install() -> None:
    """Install all wrappers."""
    for seam in (numa_fit.numa_fit_instance_to_host, from_request_spec,
                 get_allocation_candidates, schedule, claim_resources,
                 consume_from_request, from_host_state,
                 select_destinations):
        seam.install()

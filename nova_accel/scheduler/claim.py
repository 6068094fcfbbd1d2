# SPDX-License-Identifier: Apache-2.0
"""A claim that finds its devices taken, made again with others.

Between Placement's answer and the claim another scheduler can have claimed
the devices that were chosen. The host may have others as good, so it is
asked about again before Nova goes on to the next one. Then it is left to
chance which of them are taken: the other scheduler tries again as well.

Seam: ``nova.scheduler.utils.claim_resources``, wrapped.
"""

import copy
import functools
import random

from nova.scheduler import utils
from oslo_log import log as logging

from nova_accel.scheduler import candidates

LOG = logging.getLogger(__name__)

# Each time somebody else got something, so it cannot go on for long: 64
# schedulers that come to 64 devices at the same moment needed 13.
_TIMES = 16

# Workers of one service begin with a copy of any other one's state.
_CHANCE = random.SystemRandom()


def install() -> None:
    """Wrap the function; once, however often called."""
    original = utils.claim_resources
    if hasattr(original, 'nova_accel'):
        return

    @functools.wraps(original)
    def claim_resources(ctx, client, spec_obj, instance_uuid, alloc_req,
                        *args, **kwargs):
        for _time in range(_TIMES):
            if original(ctx, client, spec_obj, instance_uuid, alloc_req,
                        *args, **kwargs):
                if isinstance(alloc_req, candidates.Candidate):
                    alloc_req.claim(instance_uuid)
                return True
            if not _choose_again(ctx, client, instance_uuid, alloc_req):
                break
        return False

    claim_resources.nova_accel = original
    utils.claim_resources = claim_resources


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

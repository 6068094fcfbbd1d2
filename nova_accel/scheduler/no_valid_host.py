# SPDX-License-Identifier: Apache-2.0
"""Find the reason that the owner of a server without a host may read.

Nova's own reason is '' or that there are not enough hosts. An attempt to find
hosts notes what it learns of devices. If it fails, that is made into a
sentence (:mod:`nova_accel.core.solver.reasons`).

Seam: ``nova.scheduler.utils.ResourceRequest``, for one request to Placement.
"""

import collections
import collections.abc
import contextlib
import contextvars
import functools
import itertools

from nova.scheduler import utils
from oslo_log import log as logging

from nova_accel.core import naming
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import arrange
from nova_accel.core.solver import reasons
from nova_accel.core.solver import search_budget
from nova_accel.scheduler import candidates
from nova_accel.scheduler import device_request
from nova_accel.scheduler import host_search

LOG = logging.getLogger(__name__)

# Nova keeps 255 characters of a fault, "No valid host was found. " included.
_MAX_LENGTH = 225
# Most hosts that Placement is asked for.
_MAX_HOSTS = 256
# The kind of an objection that only operators understand.
_DRIVER = 'driver'
_ELSE = ('Hosts with the devices lack something else that is asked for, such '
         'as vCPUs, memory or disk')
# Most compute nodes in a line of the log.
_EXAMPLES = 5


class Attempt:
    """An attempt to find hosts for the servers of one request.

    :param spec_obj: nova.objects.RequestSpec
    :param servers: their number
    """

    def __init__(self, spec_obj, servers: int) -> None:
        self._spec = spec_obj
        self._servers = servers
        #: Returns the reason, once something is known.
        self.why: collections.abc.Callable[[], str] = lambda: ''
        #: How many servers of the request got a host.
        self.placed = 0
        #: Returns the objections of hosts that Nova does not examine.
        self.skipped: collections.abc.Callable[
            [], collections.abc.Mapping[str, arrange.Arrangement]] = dict

    @property
    def wanted(self) -> flavor_request.Request:
        return device_request.of(self._spec)

    @property
    def has_profile(self) -> bool:
        return flavor_specs.EXPANDED_KEY in self._spec.flavor.extra_specs

    @property
    def server(self) -> str:
        return (self._spec.instance_uuid if self._spec.obj_attr_is_set(
            'instance_uuid') else 'A server')

    def reason(self) -> str:
        """Return the reason; '' if it is not about devices."""
        try:
            text = self.why()
        except Exception:
            # The owner learns as much as without us.
            LOG.exception('Could not find out why server %s has no host',
                          self.server)
            return ''
        if text and 0 < self.placed < self._servers:
            text = (f'{self.placed} of {self._servers} servers would fit. For '
                    f'the next one: {text}')
        return text if len(text) <= _MAX_LENGTH else (
            text[:_MAX_LENGTH - 1] + '…')


_current: contextvars.ContextVar[Attempt | None] = contextvars.ContextVar(
    'attempt', default=None)


@contextlib.contextmanager
def watching(spec_obj, servers: int) -> collections.abc.Iterator[Attempt]:
    """Note what is learnt within the context."""
    attempt = Attempt(spec_obj, servers)
    token = _current.set(attempt)
    try:
        yield attempt
    finally:
        _current.reset(token)


def rejected(searches: collections.abc.Sequence[host_search.HostSearch],
             placed: int) -> None:
    """Note that the filter has rejected all hosts for the next server.

    :param placed: how many servers of the request have got a host
    """
    attempt = _current.get()
    if attempt:
        attempt.why = functools.partial(_of_filter, searches,
                                        attempt.skipped)
        attempt.placed = placed


def refused(reason: str) -> None:
    """Note why the hosts with the devices cannot serve the request."""
    attempt = _current.get()
    if attempt:
        attempt.why = lambda: reason
        attempt.placed = 0


def ranked(objections: collections.abc.Callable[
        [], collections.abc.Mapping[str, arrange.Arrangement]]) -> None:
    """Note the hosts that Nova does not examine.

    :param objections: returns why they cannot serve the request
    """
    attempt = _current.get()
    if attempt:
        attempt.skipped = objections
        attempt.why = functools.partial(_of_filter, (), objections)


def answered(client, context, resources, found) -> None:
    """Note whether Placement has found any host.

    :param client: nova.scheduler.client.report.SchedulerReportClient
    :param resources: nova.scheduler.utils.ResourceRequest
    :param found: allocation candidates; None if it rejects the request, or
        cannot be reached
    """
    attempt = _current.get()
    if not attempt or not attempt.has_profile:
        return
    attempt.why = (lambda: '') if found else functools.partial(
        _of_placement, attempt, client, context, resources,
        is_answer=found is not None)


def _of_filter(searches, skipped) -> str:
    """Return the reason of the hosts that the filter has rejected.

    :param skipped: returns the objections of other hosts
    """
    return _sentence(itertools.chain(skipped().values(), (
        arranged for search in searches for arranged in search.arranged
        if arranged and arranged.kind != _DRIVER)))


def _sentence(found: collections.abc.Iterable[arrange.Arrangement]) -> str:
    """Return the reason of hosts, '' without any."""
    objections = list(found)
    if not objections:
        return ''
    if not all(arranged.objection for arranged in objections):
        return _ELSE
    reason = reasons.no_host(objections)
    return reason[:1].upper() + reason[1:]


def _of_placement(attempt: Attempt, client, context, resources,
                  is_answer: bool) -> str:
    """Return the reason why Placement has no candidates."""
    wanted = attempt.wanted
    if is_answer:
        offered = _offered(client, context, resources)
        # Placement knows nothing of the rules.
        reason = _sentence(arrange.arrange(
            wanted.groups, available, budget=search_budget.Budget())
            for available in set(offered.values()) or {()})
    else:
        offered = {}
        reason = 'No host was found with ' + ' and '.join(
            f'{amount} {name}' for name, amount in _amounts(
                wanted.groups).items())
    LOG.info('%s has no valid host for %s: Placement has no candidates. %s. '
             'Free on compute nodes: %s', attempt.server, wanted.name, reason,
             _free(offered) or 'nothing')
    return reason


def _amounts(groups) -> collections.Counter[str]:
    amounts: collections.Counter[str] = collections.Counter()
    for group in groups.values():
        amounts.update(group.resources)
    return amounts


def _offered(client, context, resources) -> dict[str, tuple]:
    """Return the available units of compute nodes, by uuid of their provider.

    Those compute nodes that the servers may be on: of an availability zone,
    for example.
    """
    of_server = resources.get_request_group(None)
    asked = utils.ResourceRequest()
    group = asked.get_request_group(None)
    group.resources = {naming.HOST_CLASS: 1}
    # Not the required traits: these can be those of devices.
    for field in ('aggregates', 'forbidden_aggregates', 'forbidden_traits',
                  'in_tree'):
        setattr(group, field, getattr(of_server, field))
    asked._root_required = resources._root_required
    asked._root_forbidden = resources._root_forbidden
    asked._limit = _MAX_HOSTS
    found, summaries, *_rest = client.get_allocation_candidates(
        context, asked) or ((), {})
    answer = candidates.Answer(summaries or {}, asked)
    roots = {root for candidate in found or ()
             for root in candidate['allocations']}
    return {root: candidates.units(answer.ours(root)) for root in roots}


def _free(offered) -> str:
    """Return the free units of some compute nodes, for the log."""
    lines = []
    for root, available in itertools.islice(offered.items(), _EXAMPLES):
        free: collections.Counter[str] = collections.Counter()
        for units in available:
            free[units.resource_class] += units.free
        lines.append(f'{root}: ' + ', '.join(
            f'{number} {name}' for name, number in sorted(free.items())))
    return '; '.join(lines)

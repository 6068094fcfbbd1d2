# SPDX-License-Identifier: Apache-2.0
"""The late check that a server is in one host domain with its group.

Two requests for one group can be scheduled at once, in different domains.
Nova has the same problem with the policies of server groups, and checks them
when the server has its host; so this check is done there. It needs the same
access to the API database (an upcall of the cell).

Seams: ``nova.compute.manager.ComputeManager``:
``_validate_instance_group_policy`` and ``prep_resize``, which calls it.
"""

import contextvars
import inspect
import time

from nova import exception
from nova.compute import manager
from nova.compute import task_states
from nova.compute import vm_states
import nova.conf
from oslo_log import log as logging

from nova_accel import group_hosts
from nova_accel import seams
from nova_accel.compute import log_once
from nova_accel.core import host_domain
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# For how long to wait until another server has made its check: it is made as
# soon as the server has its host.
_TIMES, _SECONDS = 20, 0.5

# The states of a server that is being built before its check.
_UNDECIDED = (None, task_states.SCHEDULING)

_NO_UPCALL = (
    'Servers that require one host domain are not checked when they are on '
    'their host: [workarounds] disable_group_policy_check_upcall is set. Two '
    'requests for one server group at the same time can place its servers in '
    'different domains')

# The flavor of a server that is being resized, when it is resized.
_new_flavor: contextvars.ContextVar = contextvars.ContextVar(
    'nova_accel_new_flavor', default=None)

# Repeated findings are not logged for each server.
_unchecked = log_once.LogOnce(LOG)


class DomainViolation(exception.GroupAffinityViolation,
                      exception.RescheduledException):
    """Raised when a server cannot stay on its host.

    Nova raises the first class. It handles it only where servers are built:
    a server that is live-migrated or evacuated would be in ERROR. Everywhere
    else, it handles the second class, which it raised before.
    """


@seams.wrap(manager.ComputeManager, '_validate_instance_group_policy')
def validate(original, self, context, instance, *args, **kwargs):
    original(self, context, instance, *args, **kwargs)
    flavor = _new_flavor.get() or instance.flavor
    if (flavor.extra_specs.get(flavor_specs.SAME_DOMAIN_KEY)
            != device_profile.REQUIRED):
        return
    if CONF.workarounds.disable_group_policy_check_upcall:
        _unchecked.log([(logging.WARNING, _NO_UPCALL)])
    else:
        check(self.host, context, instance)


@seams.wrap(manager.ComputeManager, 'prep_resize')
def prep_resize(original, self, *args, **kwargs):
    """Check a server that is resized by its new flavor."""
    passed = inspect.signature(original).bind(self, *args, **kwargs)
    token = _new_flavor.set(passed.arguments['flavor'])
    try:
        return original(self, *args, **kwargs)
    finally:
        _new_flavor.reset(token)


def check(host: str, context, instance) -> None:
    """Check that a server can stay on this host.

    :param host: the name of this host
    :param instance: nova.objects.Instance
    :raises DomainViolation: if not; Nova then tries another host, if the
        operation allows it
    """
    for _time in range(_TIMES):
        here, others = _places(host, context, instance)
        verdict = host_domain.late_check(here, instance.id, [
            host_domain.Other(domains, other.id,
                              other.vm_state != vm_states.BUILDING
                              or other.task_state not in _UNDECIDED)
            for other, domains in others])
        if verdict is host_domain.Verdict.STAYS:
            return
        if verdict is host_domain.Verdict.LEAVES:
            break
        time.sleep(_SECONDS)
    LOG.warning('Server cannot be here, in host domain %s: the servers that '
                'it is to be together with are on %s',
                ', '.join(sorted(here)) or 'none', ', '.join(sorted(
                    f'{other.host} ({", ".join(sorted(domains))})'
                    for other, domains in others if domains)) or 'none',
                instance=instance)
    raise DomainViolation(
        'The host is not in the host domain of the servers that this one is '
        'to be together with')


def _places(host: str, context, instance):
    """Return the domains of a host, and other servers with those of theirs."""
    others = group_hosts.others(context, instance)
    domains = group_hosts.domains(context)
    return domains.get(host, frozenset()), [
        (other, domains.get(other.host, frozenset())) for other in others]

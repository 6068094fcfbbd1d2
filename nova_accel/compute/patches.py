# SPDX-License-Identifier: Apache-2.0
"""What is wrapped in nova-compute, beside the driver's own methods.

* ``nova.compute.resource_tracker.ResourceTracker``: ``instance_claim``,
  ``rebuild_claim``, ``resize_claim`` and ``live_migration_claim``. The guest
  is fitted into the host when it is claimed for, before its devices are
  chosen; its allocations say which these are going to be.
* ``nova.compute.resource_tracker.ResourceTracker._update_to_placement`` and
  ``nova.scheduler.client.report.SchedulerReportClient.
  get_allocations_for_provider_tree``. In each round, and for each server that
  comes or goes, Nova reads the allocations of every provider of the host. It
  needs them where it reshapes providers, which is when nova-compute starts,
  and for PCI devices in Placement. Otherwise they are not read.
* ``nova.compute.manager.ComputeManager._init_instance``. A reboot that
  nova-compute did not finish is tried again when it starts. An error of that
  would end nova-compute, again and again, because one device has gone. In
  every other case in which the driver's error puts a server into ERROR, Nova
  goes on; so does this, for servers with devices. Where a reboot fails before
  it comes to the driver, say because Neutron cannot be reached, nova-compute
  ends as it does without us.
"""

import contextvars
import functools
import inspect

from nova import exception
from nova.compute import manager
from nova.compute import resource_tracker
from nova.compute import vm_states
import nova.conf
from nova.scheduler.client import report
from oslo_log import log as logging

from nova_accel import numa_fit
from nova_accel import seams
from nova_accel.core import errors
from nova_accel.core.request import flavor_specs

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: Whether the report to Placement that is being made can need allocations.
_needs_allocations: contextvars.ContextVar[bool] = contextvars.ContextVar(
    'needs_allocations', default=True)


def _claim_near_devices(argument, original, self, *args, **kwargs):
    """A claim of the resource tracker.

    :param argument: the name of its parameter for allocations
    """
    passed = inspect.signature(original).bind(
        self, *args, **kwargs).arguments
    # The same process can have other drivers' trackers.
    nodes_for = getattr(self.driver, 'nodes_for', None)
    nodes = nodes_for(
        passed.get('flavor') or passed['instance'].flavor,
        passed.get(argument)) if nodes_for else ()
    with numa_fit.near(nodes):
        return original(self, *args, **kwargs)


CLAIMS = tuple(
    seams.wrap(resource_tracker.ResourceTracker, name)(
        functools.partial(_claim_near_devices, argument))
    for name, argument in {
        'instance_claim': 'allocations', 'rebuild_claim': 'allocations',
        'resize_claim': 'allocations', 'live_migration_claim': 'allocs',
    }.items())


@seams.wrap(resource_tracker.ResourceTracker, '_update_to_placement')
def update_to_placement(original, self, context, compute_node, startup):
    token = _needs_allocations.set(startup or CONF.pci.report_in_placement)
    try:
        return original(self, context, compute_node, startup)
    finally:
        _needs_allocations.reset(token)


@seams.wrap(report.SchedulerReportClient, 'get_allocations_for_provider_tree')
def allocations_for_provider_tree(original, self, context, nodename):
    if not _needs_allocations.get():
        return {}
    return original(self, context, nodename)


@seams.wrap(manager.ComputeManager, '_init_instance')
def init_instance(original, self, context, instance, *args, **kwargs):
    before = instance.vm_state
    try:
        return original(self, context, instance, *args, **kwargs)
    except Exception as error:
        if (before == vm_states.ERROR or instance.vm_state != vm_states.ERROR
                or not flavor_specs.classes(instance.flavor.extra_specs)):
            raise
        expected = isinstance(error, (errors.AccelError,
                                      exception.NovaException))
        (LOG.error if expected else LOG.exception)(
            'nova-compute goes on without server %s, whose reboot failed: %s',
            instance.uuid, error)


def install() -> None:
    """Wrap all of it."""
    for seam in (numa_fit.numa_fit_instance_to_host, *CLAIMS,
                 update_to_placement, allocations_for_provider_tree,
                 init_instance):
        seam.install()
    if CONF.pci.report_in_placement:
        LOG.info('[pci] report_in_placement is set, so Nova reads the '
                 'allocations of each resource provider in each round')

# SPDX-License-Identifier: Apache-2.0
"""Functions of nova-compute that we wrap, besides the driver's own methods.

* ``nova.compute.resource_tracker.ResourceTracker``: ``instance_claim``,
  ``rebuild_claim``, ``resize_claim`` and ``live_migration_claim``. A claim
  fits the guest to NUMA nodes before its devices are chosen. Its allocations
  tell which devices it will get, so prefer the NUMA nodes of these.
* ``nova.compute.resource_tracker.ResourceTracker._update_to_placement`` and
  ``nova.scheduler.client.report.SchedulerReportClient.
  get_allocations_for_provider_tree``. In each periodic run, and for each
  server that is created or deleted, Nova reads the allocations of every
  provider of the host. It needs them only to reshape providers, which happens
  when nova-compute starts, and for PCI devices in Placement. Skip the read
  otherwise. Nova reads providers from its cache. Clear an outdated one before
  a report begins: Nova fails if its cache is cleared during a report.
* ``nova.compute.resource_tracker.ResourceTracker.
  delete_allocation_for_evacuated_instance``. Nova means to delete the
  allocations on the destination of a failed evacuation, and deletes those of
  every server whose rebuild fails. The server stays on this host, so keep
  them if it has devices.
* ``nova.compute.manager.ComputeManager._init_instance``. When nova-compute
  starts, it repeats a reboot that it did not finish. If the reboot fails,
  nova-compute exits, so one missing device would keep it from starting. If
  the failure has put a server with devices into ERROR, continue without the
  server, as Nova does for other operations. If the reboot fails before it
  reaches the driver (Neutron does not answer, for example), nova-compute
  exits as it does without us.
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
from nova_accel.compute import same_domain
from nova_accel.core import errors
from nova_accel.core.request import flavor_specs

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: Whether the current report to Placement may need allocations.
_needs_allocations: contextvars.ContextVar[bool] = contextvars.ContextVar(
    'needs_allocations', default=True)


def _claim_near_devices(argument, original, self, *args, **kwargs):
    """Claim resources for a guest on the NUMA nodes of its devices.

    :param argument: name of the parameter that has the allocations
    """
    passed = inspect.signature(original).bind(
        self, *args, **kwargs).arguments
    # Another driver in the same process has no such method.
    nodes_for = getattr(self.driver, 'nodes_for', None)
    nodes = nodes_for(
        passed.get('flavor') or passed['instance'].flavor,
        passed.get(argument)) if nodes_for else ()
    with numa_fit.preferred_nodes(nodes):
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
    # Another driver in the same process has no such method.
    refresh = getattr(self.driver, 'refresh_providers', None)
    if refresh:
        refresh()
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


@seams.wrap(resource_tracker.ResourceTracker,
            'delete_allocation_for_evacuated_instance')
def delete_allocation(original, self, context, instance, node, *args,
                      **kwargs):
    # An evacuated server has the failed host until its evacuation ends.
    if (instance.host, instance.node) == (self.host, node) and (
            flavor_specs.classes(instance.flavor.extra_specs)):
        LOG.info('The server keeps its allocations: its rebuild on this host '
                 'failed', instance=instance)
        return None
    return original(self, context, instance, node, *args, **kwargs)


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
            'Reboot of server %s failed, nova-compute starts without it: %s',
            instance.uuid, error)


def install() -> None:
    """Install all wrappers."""
    for seam in (numa_fit.numa_fit_instance_to_host, *CLAIMS,
                 update_to_placement, allocations_for_provider_tree,
                 delete_allocation, init_instance, same_domain.validate,
                 same_domain.prep_resize):
        seam.install()
    if CONF.pci.report_in_placement:
        LOG.info('[pci] report_in_placement is set, so Nova reads the '
                 'allocations of each resource provider in each periodic run')

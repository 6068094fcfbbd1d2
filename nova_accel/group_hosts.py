# SPDX-License-Identifier: Apache-2.0
"""Where the servers are that are to be in one host domain with another.

These are the other members of its server group, or, without a group, the
servers that were created by the same request. For nova-scheduler and
nova-compute.

Seams: ``nova.objects.AggregateList``, ``InstanceGroup`` and ``InstanceList``.
"""

import collections.abc
import typing

from nova import context as contexts
from nova import exception
from nova import objects

from nova_accel.core import host_domain

#: ``nova.context.RequestContext``
Context = typing.Any

#: ``nova.objects.Instance``
Instance = typing.Any

_Found = typing.TypeVar('_Found')


def domains(context: Context) -> dict[str, host_domain.Names]:
    """Return the domains of each host that is in any."""
    return host_domain.by_host(
        (aggregate.metadata, aggregate.hosts) for aggregate
        in objects.AggregateList.get_by_metadata_key(
            context.elevated(), host_domain.KEY))


def of_group(context: Context, uuids: collections.abc.Collection[str],
             group: typing.Any) -> list[Instance]:
    """Return the other members of a group in the cell of a context.

    :param uuids: the servers that are not asked about
    :param group: nova.objects.InstanceGroup
    :returns: each that has a host
    """
    return _with_host(context, {
        'uuid': sorted({*group.members}.difference(uuids))})


def of_request(context: Context, uuids: collections.abc.Collection[str],
               ) -> list[Instance]:
    """Return the servers that were created together with others.

    :param uuids, returns: as for :func:`of_group`
    """
    # A server that is being created is in no cell yet.
    reservations = {instance.reservation_id for instance
                    in _found(context, {'uuid': list(uuids)})}
    return [instance for reservation in reservations if reservation
            for instance in _with_host(context,
                                       {'reservation_id': reservation})
            if instance.uuid not in uuids
            and instance.reservation_id == reservation]


def others(context: Context, instance: Instance) -> list[Instance]:
    """Return the servers with a host that belong together with a server.

    :param context: of its cell
    :returns: as :func:`of_group`
    """
    try:
        group = objects.InstanceGroup.get_by_instance_uuid(context,
                                                           instance.uuid)
    except exception.InstanceGroupNotFound:
        return of_request(context, [instance.uuid])
    return of_group(context, [instance.uuid], group)


def in_all_cells(context: Context,
                 find: collections.abc.Callable[[Context], list[_Found]],
                 ) -> list[_Found]:
    """Return what a function finds in the cells that answer.

    :param find: takes the context of a cell
    """
    return [found for result in contexts.scatter_gather_skip_cell0(
        context, find).values()
        if not contexts.is_cell_failure_sentinel(result) for found in result]


def _with_host(context: Context, filters: dict[str, typing.Any],
               ) -> list[Instance]:
    return [instance for instance in _found(context, filters)
            if instance.host]


def _found(context: Context, filters: dict[str, typing.Any],
           ) -> collections.abc.Iterable[Instance]:
    if filters.get('uuid') == []:
        return []
    # A member can belong to another project.
    found: collections.abc.Iterable[Instance] = (
        objects.InstanceList.get_by_filters(
            context.elevated(), {**filters, 'deleted': False},
            expected_attrs=[]))
    return found

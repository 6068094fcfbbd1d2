# SPDX-License-Identifier: Apache-2.0
"""Changes the flavor that a server keeps, while the server runs.

Nova's lock of the server is held meanwhile, which operations of this host
take. Some of them, such as the attachment of a volume, have no task state, and
change the definition of the domain.

Seams: ``nova.objects.Instance``; the lock of ``nova.utils.synchronized`` with
the uuid of a server.
"""

from nova import context
from nova import exception
from nova import objects
from oslo_concurrency import lockutils
from oslo_utils import excutils

#: Errors of a server with an operation that has just started.
BUSY = (lockutils.AcquireLockFailedException,
        exception.InstanceUpdateConflict, exception.InstanceNotFound)


def lock(uuid: str):
    """Return the context manager that holds the lock of a server.

    It does not wait: the caller holds the lock of Nova's resource tracker, for
    which an operation that has the lock may wait.
    """
    return lockutils.lock(uuid, do_log=False, blocking=False)


def find(uuid: str, *attributes: str):
    """Return a server of Nova's database, or None.

    :param attributes: fields to load beside the flavor
    """
    try:
        return objects.Instance.get_by_uuid(
            context.get_admin_context(), uuid,
            expected_attrs=['flavor', *attributes])
    except exception.InstanceNotFound:
        return None


def write(instance, extra_specs) -> None:
    """Write the extra specs of a server's flavor, if no task has started.

    :param instance: nova.objects.Instance
    :raises nova.exception.InstanceUpdateConflict: if one has started
    """
    before = instance.flavor.extra_specs
    _set_extra_specs(instance, extra_specs)
    # Assigned, so that save() compares it.
    instance.task_state = None
    try:
        instance.save(expected_task_state=[None])
    except exception.InstanceUpdateConflict:
        # save() writes the flavor before it compares the state.
        with excutils.save_and_reraise_exception():
            instance.obj_reset_changes()
            _set_extra_specs(instance, before)
            instance.save()


def _set_extra_specs(instance, extra_specs) -> None:
    flavor = instance.flavor
    flavor.extra_specs = dict(extra_specs)
    # Assigned, so that save() writes it.
    instance.flavor = flavor

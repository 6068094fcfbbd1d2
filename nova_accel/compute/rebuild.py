# SPDX-License-Identifier: Apache-2.0
"""Whether a server is being rebuilt, of which no driver is told.

Between the end of its old definition and its new one a claim is all that
keeps its devices, and after a rebuild that failed Placement promises it
nothing that would speak for the claim.

Seam: ``nova.objects.Instance``: ``get_by_uuid``, ``task_state``.
"""

from nova import context
from nova import exception
from nova import objects
from nova.compute import task_states

_STEPS = frozenset({task_states.REBUILDING,
                    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
                    task_states.REBUILD_SPAWNING})


def goes_on(server: str) -> bool:
    """Whether a rebuild of a server goes on, as Nova has it.

    :param server: uuid
    """
    try:
        instance = objects.Instance.get_by_uuid(
            context.get_admin_context(), server)
    except exception.InstanceNotFound:
        return False
    return instance.task_state in _STEPS

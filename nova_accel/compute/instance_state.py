# SPDX-License-Identifier: Apache-2.0
"""Whether a server of Nova is between two of its states."""

from nova.compute import vm_states
import nova.conf

CONF = nova.conf.CONF

#: States in which a server has no second set of devices on another host, and
#: no second definition of its domain. Unrescue defines the domain again from
#: the XML that the guest had before.
_SETTLED = (vm_states.ACTIVE, vm_states.PAUSED, vm_states.STOPPED,
            vm_states.SUSPENDED, vm_states.ERROR)


def is_settled(instance) -> bool:
    """Whether a server is not deleted, and no operation of it is to end.

    :param instance: nova.objects.Instance
    """
    return (not instance.deleted and not instance.task_state
            and instance.vm_state in _SETTLED)


def is_settled_here(instance) -> bool:
    """Whether a server is on this host as well."""
    return instance.host == CONF.host and is_settled(instance)

# SPDX-License-Identifier: Apache-2.0
"""nova-compute starts, whatever becomes of one server's reboot.

A reboot that nova-compute did not see to its end is tried again when it
starts, and what is raised then comes out of ``init_host`` and ends the
process, again and again. A device that has gone is no reason for that.

Nova goes on where it puts a server into ERROR because of what the driver says,
in every other case. So does this, for servers with devices; where a reboot
does not get as far as the driver, since Neutron is not there say, nova-compute
is to be started again, as ever.

Seam: ``nova.compute.manager.ComputeManager._init_instance``, wrapped.
"""

import functools

from nova import exception
from nova.compute import manager
from nova.compute import vm_states
from oslo_log import log as logging

from nova_accel.core import errors
from nova_accel.core import flavor

LOG = logging.getLogger(__name__)


def install() -> None:
    """Wrap the method; once, however often called."""
    original = manager.ComputeManager._init_instance
    if hasattr(original, 'nova_accel'):
        return

    @functools.wraps(original)
    def init_instance(self, context, instance, *args, **kwargs):
        before = instance.vm_state
        try:
            return original(self, context, instance, *args, **kwargs)
        except Exception as error:
            if (before == vm_states.ERROR
                    or instance.vm_state != vm_states.ERROR
                    or not flavor.classes(instance.flavor.extra_specs)):
                raise
            _say(error, instance)

    init_instance.nova_accel = original
    manager.ComputeManager._init_instance = init_instance


def _say(error: Exception, instance) -> None:
    expected = isinstance(error, (errors.AccelError, exception.NovaException))
    (LOG.error if expected else LOG.exception)(
        'nova-compute goes on without server %s, whose reboot failed: %s',
        instance.uuid, error)

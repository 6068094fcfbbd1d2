# SPDX-License-Identifier: Apache-2.0
"""What the owner of a server reads as its fault.

Nova shows the text of an exception to whoever may see the server. The operator
reads in the log which device, path or other server it is about; the owner of
the server is told the reason, and no names.

Seams: ``nova.compute.utils.exception_to_dict``, which takes a NovaException's
text for the fault; ``nova.exception.NovaException.format_message``.
"""

from nova import exception
import nova.conf
from oslo_log import log as logging

from nova_accel.core import errors

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


def told(what: str, error: Exception | str, instance=None) -> str:
    """Log an error; what of it the owner of the server is told.

    :param what: has failed, for the log
    :param error: of one that nobody expected, its class is told
    :param instance: nova.objects.Instance, where it is at hand
    """
    expected = isinstance(error, (errors.AccelError, exception.NovaException,
                                  str))
    more = {'instance': instance} if instance else {}
    LOG.warning('%s: %s', what, error, exc_info=not expected, **more)
    if not expected:
        return type(error).__name__
    text = (f'{error.thing}: {error.reason}'
            if isinstance(error, errors.AccelError) else str(error))
    return errors.public(text, (CONF.host, CONF.my_ip))

# SPDX-License-Identifier: Apache-2.0
"""Texts for the fault of a server, which its owner reads.

Nova shows the text of an exception to everyone who may see the server. The log
names the device, path or other server for the operator. The fault has only
the reason, without names.

Seams: ``nova.compute.utils.exception_to_dict``, which takes a NovaException's
text for the fault; ``nova.exception.NovaException.format_message``.
"""

import contextlib

from nova import exception
import nova.conf
from oslo_log import log as logging

from nova_accel.core import errors

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


def log_and_redact(what: str, error: Exception | str, instance=None) -> str:
    """Log an error, and return the text for the fault of the server.

    :param what: the outcome for the server; first words of the log line
    :param error: of an unexpected one, only the class is returned
    :param instance: nova.objects.Instance, if it is known
    """
    expected = isinstance(error, (errors.AccelError, exception.NovaException,
                                  str))
    more = {'instance': instance} if instance else {}
    LOG.warning('%s: %s', what, error, exc_info=not expected, **more)
    if not expected:
        return type(error).__name__
    text = (error.for_owner or f'{error.thing}: {error.reason}'
            if isinstance(error, errors.AccelError) else str(error))
    return errors.public(text, (CONF.host, CONF.my_ip))


@contextlib.contextmanager
def deploy_failures():
    """Raise our errors as an error of Nova, whose text tenants may see.

    :raises nova.exception.InstanceDeployFailure: for an AccelError
    """
    try:
        yield
    except errors.AccelError as error:
        raise exception.InstanceDeployFailure(reason=log_and_redact(
            'Server does not start', error)) from None

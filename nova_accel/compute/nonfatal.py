# SPDX-License-Identifier: Apache-2.0
"""Steps whose failure is logged and ends nothing else."""

import contextlib

from oslo_log import log as logging

from nova_accel.core import errors

LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def step(what: str, if_true: bool = True):
    """Log any error, so that nova-compute keeps running.

    :param what: what could not be done
    :param if_true: if not, errors are raised
    """
    if not if_true:
        yield
        return
    try:
        yield
    except errors.TreeError as error:
        # LocalHost logged it already, when it changed.
        LOG.debug('Could not %s: %s', what, error)
    except errors.AccelError as error:
        LOG.error('Could not %s: %s', what, error)
    except Exception:
        LOG.exception('Could not %s', what)

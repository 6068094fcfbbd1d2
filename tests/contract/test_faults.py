# SPDX-License-Identifier: Apache-2.0
"""The fault of a server that Nova shows for an error of nova_accel."""

import logging

from nova import exception
from nova.compute import utils
import nova.conf
import pytest

from nova_accel.compute import faults
from nova_accel.core import errors

CONF = nova.conf.CONF

_OTHER = 'aaaaaaaa-0000-4000-8000-0000000000aa'


@pytest.fixture(autouse=True)
def configured():
    CONF([], project='nova', default_config_files=[])
    CONF.set_override('host', 'compute-1')
    yield
    CONF.clear_override('host')


@pytest.mark.parametrize('error, told', [
    (errors.AssignmentError('device 0000:45:00.0 (8086:09c4)',
                            f'is held by {_OTHER}', 'wait'),
     'device … (8086:09c4): is held by …'),
    (exception.GlanceConnectionFailed(server='http://x:9292', reason='down'),
     'Connection to glance host … failed: down'),
    ('Guest runs without it on compute-1', 'Guest runs without it on …'),
    # Nova shows only the class of exceptions that are not its own.
    (OSError(2, 'secret'), 'FileNotFoundError')])
def test_log_has_the_names_that_the_fault_hides(caplog, error, told):
    caplog.set_level(logging.WARNING)
    fault = exception.InstanceDeployFailure(
        reason=faults.log_and_redact('Server does not start', error))
    assert utils.exception_to_dict(fault)['message'] == (
        f'Failed to deploy instance: {told}')
    [record] = caplog.records
    assert f'Server does not start: {error}' in record.getMessage()
    # Only unexpected exceptions are logged with a stack trace.
    assert bool(record.exc_info) == isinstance(error, OSError)

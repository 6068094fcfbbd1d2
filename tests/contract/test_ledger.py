# SPDX-License-Identifier: Apache-2.0
"""What Nova's client of Placement makes of its answers, and we of that."""

from keystoneauth1 import exceptions as keystone
import nova.conf
from nova.scheduler.client import report
import pytest
import requests

from nova_accel.compute import ledger
from nova_accel.core import errors

_PROVIDER = 'a6a12670-7014-4cff-a563-cea949b57fb3'
_SERVER = 'b069d97a-010a-4057-b70d-eca2b337fc9c'


class _Placement:
    """Answers every request alike.

    :param answer: an HTTP status and a body, or an exception
    """

    def __init__(self, answer):
        self._answer = answer

    def get(self, *_args, **_kwargs):
        if isinstance(self._answer, Exception):
            raise self._answer
        response = requests.Response()
        response.status_code, response._content = self._answer
        return response


def _consumers(answer):
    nova.conf.CONF([], project='nova', default_config_files=[])

    class Api:
        reportclient = report.SchedulerReportClient(_Placement(answer))

    return ledger.Ledger(Api).consumers(_PROVIDER, 'CUSTOM_GPU')


@pytest.mark.parametrize('answer, consumers', [
    ((200, b'{"allocations": {"%s": {"resources": {"CUSTOM_UNIT_OF_GPU": 2}}}}'
      % _SERVER.encode()), {_SERVER: 2}),
    # A new device, that Placement does not know yet.
    ((404, b'{"errors": [{"status": 404, "title": "Not Found"}]}'), {})])
def test_who_was_promised_a_device(answer, consumers):
    assert _consumers(answer) == consumers


@pytest.mark.parametrize('answer', [
    (500, b'{"errors": [{"status": 500}]}'), (503, b'<html>404</html>'),
    (401, b''), keystone.ConnectFailure()])
def test_no_answer_is_not_nobody(answer):
    with pytest.raises(errors.AssignmentError, match='^Placement: '):
        _consumers(answer)

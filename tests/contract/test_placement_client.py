# SPDX-License-Identifier: Apache-2.0
"""Answers of Placement to nova_accel's client, which uses Nova's client."""

from keystoneauth1 import exceptions as keystone
import nova.conf
from nova.scheduler.client import report
import pytest
import requests

from nova_accel.compute.state import placement as placement_
from nova_accel.core import errors
from tests.unit import build

_PROVIDER = 'a6a12670-7014-4cff-a563-cea949b57fb3'
_SERVER = 'b069d97a-010a-4057-b70d-eca2b337fc9c'


class _Placement:
    """A fake Placement that gives all GET requests the same answer.

    :param answer: an HTTP status and a body, or an exception
    :param puts: the answer to each PUT request
    """

    def __init__(self, answer, *puts):
        self._answer = answer
        self._puts = list(puts)
        self.written = []

    def get(self, *_args, **_kwargs):
        return _response(self._answer)

    def put(self, url, json, **_kwargs):
        self.written.append((url, json))
        return _response(self._puts.pop(0))


def _response(answer):
    if isinstance(answer, Exception):
        raise answer
    response = requests.Response()
    response.status_code, response._content = answer
    return response


def _placement_client(placement):
    nova.conf.CONF([], project='nova', default_config_files=[])

    class Api:
        reportclient = report.SchedulerReportClient(placement)

    return placement_.PlacementClient(Api)


def _consumers(answer):
    return _placement_client(_Placement(answer)).units_by_consumer(
        _PROVIDER, 'CUSTOM_GPU')


@pytest.mark.parametrize('answer, consumers', [
    ((200, b'{"allocations": {"%s": {"resources": {"CUSTOM_UNIT_OF_GPU": 2}}}}'
      % _SERVER.encode()), {_SERVER: 2}),
    # A new device is not in Placement yet.
    ((404, b'{"errors": [{"status": 404, "title": "Not Found"}]}'), {})])
def test_consumers_of_a_device_are_returned(answer, consumers):
    assert _consumers(answer) == consumers


@pytest.mark.parametrize('answer', [
    (500, b'{"errors": [{"status": 500}]}'), (503, b'<html>404</html>'),
    (401, b''), keystone.ConnectFailure()])
def test_failed_read_raises(answer):
    with pytest.raises(errors.AssignmentError, match='^Placement: '):
        _consumers(answer)


_ITEM = build.offered(build.region('CUSTOM_X'))
_FUNCTIONS = frozenset({build.address('0000:81:00.0')})
_FREE = (200, b'{"traits": ["HW_X"], "resource_provider_generation": 3}')
_DONE = (200, b'{"resource_provider_generation": 4}')
_CONFLICT, _NO_TRAIT = (409, b'{"errors": []}'), (400, b'{"errors": []}')


@pytest.mark.parametrize('puts', [
    [_DONE, _DONE], [_CONFLICT, _DONE, _CONFLICT, _DONE, _DONE],
    # The first device of the cloud that is used.
    [_NO_TRAIT, (201, b''), (201, b''), _DONE, _DONE]])
def test_one_time_use_device_is_reserved(puts):
    """Its trait comes first, and both writes check the generation."""
    placement = _Placement(_FREE, *puts)
    _placement_client(placement).mark_dirty(_ITEM, _FUNCTIONS)
    [(_url, traits), (url, record)] = placement.written[-2:]
    assert traits == {'traits': ['CUSTOM_NOVA_ACCEL_DIRTY_0000_81_00_0',
                                 'CUSTOM_NOVA_ACCEL_USED', 'HW_X'],
                      'resource_provider_generation': 3}
    assert url == (f'/resource_providers/{_ITEM.uuid}/inventories/'
                   'CUSTOM_UNIT_OF_CUSTOM_X')
    assert (record['total'], record['reserved'],
            record['resource_provider_generation']) == (1, 1, 4)


@pytest.mark.parametrize('answers', [
    [(404, b'')], [keystone.ConnectFailure()], [_FREE, (500, b'')],
    [_FREE, keystone.ConnectFailure()], [_FREE] + [_CONFLICT] * 4])
def test_failed_reservation_raises(answers):
    with pytest.raises(errors.AssignmentError, match='does not store that'):
        _placement_client(_Placement(*answers)).mark_dirty(_ITEM, _FUNCTIONS)

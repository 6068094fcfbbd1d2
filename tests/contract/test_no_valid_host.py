# SPDX-License-Identifier: Apache-2.0
"""Nova's NoValidHost exception, whose reason nova_accel replaces."""

import types
from unittest import mock
from urllib import parse

from nova import context
from nova import exception
from nova import objects
import nova.conf
from nova.scheduler import manager
from nova.scheduler import utils
from oslo_messaging import rpc
import pytest

from nova_accel import conf
from nova_accel.scheduler import no_valid_host
from nova_accel.scheduler import patches


@pytest.fixture(autouse=True)
def registered():
    objects.register_all()
    conf.register_opts(nova.conf.CONF)


def _spec(**extra_specs):
    return objects.RequestSpec(
        flavor=objects.Flavor(vcpus=1, memory_mb=1, root_gb=0, ephemeral_gb=0,
                              swap=0, extra_specs={
                                  'nova_accel:profile': 'gpu', **extra_specs}),
        instance_uuid='a6a12670-7014-4cff-a563-cea949b57fb3',
        image=objects.ImageMeta(properties=objects.ImageMetaProps()))


def _select(spec, original=patches.select_destinations.original):
    """Return the error of select_destinations without candidates."""
    scheduler = types.SimpleNamespace(
        _sentinel=object(), host_manager=None, placement_client=mock.Mock(
            get_allocation_candidates=mock.Mock(
                return_value=([], {}, None))))
    with mock.patch.object(manager.request_filter, 'process_reqspec'), \
            mock.patch.object(utils, 'resources_from_request_spec'), \
            pytest.raises(rpc.ExpectedException) as raised:
        patches.select_destinations.wrapper(
            original, scheduler, context.get_admin_context(), spec_obj=spec,
            instance_uuids=['x'])
    return raised.value.exc_info[1]


def test_nova_raises_no_valid_host_as_an_expected_exception():
    error = _select(_spec())
    assert isinstance(error, exception.NoValidHost)
    assert str(error).strip() == 'No valid host was found.'


def _failing(error):
    def original(*_args, **_more):
        no_valid_host.answered(mock.Mock(), None, None, None)
        try:
            raise error
        except exception.NoValidHost:
            raise rpc.ExpectedException() from None
    return original


def test_reason_is_replaced_and_stays_an_expected_exception():
    error = _select(_spec(**{'resources_ACCEL0:CUSTOM_GPU': '2'}), _failing(
        exception.NoValidHost(reason='')))
    assert str(error) == ('No valid host was found. No host was found with 2 '
                          'CUSTOM_GPU')
    # nova-conductor creates the exception again from these arguments.
    assert exception.NoValidHost(*error.args, **error.kwargs).args == (
        error.args)


def test_error_while_the_reason_is_made_keeps_novas_reason():
    given = exception.NoValidHost(reason='x')
    with mock.patch.object(no_valid_host, '_of_placement',
                           side_effect=ValueError):
        assert _select(_spec(), _failing(given)) is given


def test_query_of_compute_nodes_has_the_conditions_of_the_request():
    resources = utils.ResourceRequest()
    group = resources.get_request_group(None)
    group.resources = {'VCPU': 4}
    group.required_traits = {'CUSTOM_OF_A_DEVICE'}
    group.forbidden_traits = {'COMPUTE_STATUS_DISABLED'}
    group.aggregates = [['a', 'b']]
    group.in_tree = 'c'
    resources._root_required, resources._root_forbidden = {'D'}, {'E'}
    client = mock.Mock()
    client.get_allocation_candidates.return_value = None, None, None
    assert no_valid_host._offered(client, None, resources) == {}
    [(_context, asked), _more] = client.get_allocation_candidates.call_args
    assert dict(parse.parse_qsl(asked.to_querystring())) == {
        'resources': 'CUSTOM_NOVA_ACCEL_HOST:1', 'in_tree': 'c',
        'required': '!COMPUTE_STATUS_DISABLED', 'member_of': 'in:a,b',
        'root_required': 'D,!E', 'limit': '256'}

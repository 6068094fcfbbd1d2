# SPDX-License-Identifier: Apache-2.0
"""The ``group_policy`` of requests with several groups."""

import inspect

from nova import objects
from nova.scheduler import utils
import pytest

from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.scheduler import patches

objects.register_all()

_GROUPS = tuple(device_profile.Group({name: 1}, {})
                for name in ('PGPU', 'FPGA'))


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(
        utils.ResourceRequest, 'from_request_spec',
        utils.ResourceRequest.__dict__['from_request_spec'])
    patches.from_request_spec.install()


def _asked(specs):
    """Return the group policies in the query to Placement."""
    spec = objects.RequestSpec(is_bfv=False, flavor=objects.Flavor(
        vcpus=1, memory_mb=64, root_gb=1, ephemeral_gb=0, swap=0,
        extra_specs=specs))
    query = utils.ResourceRequest.from_request_spec(spec).to_querystring()
    return [part.partition('=')[2] for part in query.split('&')
            if part.startswith('group_policy=')]


@pytest.mark.parametrize('count, own, policies', [
    (1, {}, []),
    (2, {}, ['none']),
    (2, {'group_policy': 'none'}, ['none']),
    (2, {'group_policy': 'isolate'}, ['isolate']),
    (1, {'resources1:CUSTOM_X': '1'}, ['none']),
    (1, {'resources1:CUSTOM_X': '1', 'group_policy': 'isolate'},
     ['isolate']),
])
def test_several_groups_add_a_group_policy(count, own, policies):
    wanted = device_profile.Profile('p', _GROUPS[:count])
    assert _asked(flavor_specs.expand(
        wanted, {flavor_specs.PROFILE_KEY: 'p', **own})) == policies


def test_flavor_without_profile_gets_no_policy():
    assert _asked({'resources1:CUSTOM_X': '1', 'resources2:CUSTOM_Y': '1'}
                  ) == []
    bare = objects.RequestSpec(is_bfv=False, flavor=objects.Flavor(
        vcpus=1, memory_mb=64, root_gb=1, ephemeral_gb=0, swap=0))
    assert utils.ResourceRequest.from_request_spec(bare).group_policy is None


def test_nova_builds_requests_with_the_wrapped_method():
    assert 'ResourceRequest.from_request_spec(' in inspect.getsource(
        utils.resources_from_request_spec)

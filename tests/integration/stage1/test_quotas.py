# SPDX-License-Identifier: Apache-2.0
"""Unified limits on the resource classes of devices."""

from openstack import exceptions
import pytest

from tests.integration.cloud import limits as unified_limits
from tests.integration.stage1 import accelerators as views
from tests.integration.stage1 import outer as machines

GPU = machines.GPU

@pytest.fixture(scope='module')
def limits(cloud, outer, tenant):
    """Limit each project to three GPUs and one hundred servers."""
    with unified_limits.unified(cloud, {'servers': 100, f'class:{GPU}': 3}):
        yield


def test_server_over_the_limit_is_refused(limits, accelerators):
    accelerators.boot(accelerators.of_gpus(2))
    with pytest.raises(exceptions.ForbiddenException, match=f'class:{GPU}'):
        accelerators.post(accelerators.of_gpus(2))
    # One GPU is left.
    last = accelerators.boot(accelerators.of_gpus(1))
    accelerators.check(last, GPU)
    with pytest.raises(exceptions.ForbiddenException, match=f'class:{GPU}'):
        accelerators.post(accelerators.of_gpus(1))


def test_delete_frees_the_quota_at_once(limits, accelerators):
    first = accelerators.boot(accelerators.of_gpus(3))
    with pytest.raises(exceptions.ForbiddenException):
        accelerators.post(accelerators.of_gpus(3))
    accelerators.delete(first)
    accelerators.check(accelerators.boot(accelerators.of_gpus(3)),
                       GPU, GPU, GPU)


def test_multi_create_over_the_limit_is_refused(limits, accelerators):
    with pytest.raises(exceptions.ForbiddenException, match=f'class:{GPU}'):
        accelerators.post(accelerators.of_gpus(1), min_count=4, max_count=4)


def test_resize_over_the_limit_is_refused(cloud, limits, accelerators):
    compute = cloud.connection.compute
    server = accelerators.boot(accelerators.of_gpus(2))
    # Until the resize is confirmed, the server would use five GPUs.
    with pytest.raises(exceptions.ForbiddenException, match=f'class:{GPU}'):
        compute.resize_server(server, accelerators.of_gpus(3))
    assert compute.get_server(server).status == 'ACTIVE'
    accelerators.check(server, GPU, GPU)


def test_limit_of_another_project(cloud, limits, tenant, accelerators):
    accelerators.boot(accelerators.of_gpus(3))
    project = tenant.current_project_id
    keystone = cloud.connection.identity
    nova = keystone.find_service('nova')
    limit = keystone.create_limit(
        service_id=nova.id, region_id='RegionOne', project_id=project,
        resource_name=f'class:{GPU}', resource_limit=1)
    image = tenant.image.find_image(views.IMAGE)
    words = {'name': 'theirs', 'image_id': image.id, 'networks': 'none'}
    try:
        with pytest.raises(exceptions.ForbiddenException,
                           match=f'class:{GPU}'):
            tenant.compute.create_server(
                flavor_id=accelerators.of_gpus(2).id, **words)
        server = cloud.wait(tenant.compute.create_server(
            flavor_id=accelerators.of_gpus(1).id, **words))
        accelerators.check(server, GPU)
        accelerators.delete(server)
    finally:
        keystone.delete_limit(limit)

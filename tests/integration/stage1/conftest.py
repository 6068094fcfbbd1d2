# SPDX-License-Identifier: Apache-2.0
"""Fixtures of stage 1."""

import pytest

from tests.integration.cloud import configuration
from tests.integration.stage1 import accelerators as views
from tests.integration.stage1 import outer as outers

TENANT = 'tenant'


@pytest.fixture(scope='session')
def outer(cloud):
    """Run the compute node of stage 1, with eight GPUs."""
    with outers.Outer(cloud).instead() as outer:
        yield outer


@pytest.fixture(scope='session')
def _accelerators(cloud, outer):
    images = cloud.connection.image
    if not images.find_image(views.IMAGE):
        images.create_image(views.IMAGE, data=bytes(1 << 20),
                            disk_format='raw', container_format='bare',
                            visibility='public')
    return views.Accelerators(cloud)


@pytest.fixture
def accelerators(_accelerators):
    """Accelerators that are free before and after the test."""
    yield _accelerators
    _accelerators.delete_all()
    _accelerators.check_nothing_left()


@pytest.fixture(scope='session')
def tenant(cloud):
    """A connection of a user who is not an administrator."""
    keystone = cloud.connection.identity
    project = keystone.find_project(TENANT) or keystone.create_project(
        name=TENANT, domain_id='default')
    user = keystone.find_user(TENANT) or keystone.create_user(
        name=TENANT, password=configuration.PASSWORD, domain_id='default')
    keystone.assign_project_role_to_user(
        project, user, keystone.find_role('member'))
    return cloud.connection.connect_as(
        username=TENANT, password=configuration.PASSWORD,
        project_name=TENANT)

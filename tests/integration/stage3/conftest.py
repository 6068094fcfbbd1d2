# SPDX-License-Identifier: Apache-2.0
"""Fixtures of stage 3: two nested machines and a tenant."""

import pytest

from tests.integration.nested import scene
from tests.integration.nested.fixtures import *  # noqa: F403


@pytest.fixture(scope='package')
def tenant(cloud, machines):
    return scene.enter(cloud, *machines)


@pytest.fixture(scope='package')
def here(machines):
    return machines[0]


@pytest.fixture(scope='package')
def there(machines):
    return machines[1]


@pytest.fixture(scope='module', autouse=True)
def agreement(tenant, machines):
    """Check after each module that hosts, Placement and libvirt agree."""
    yield
    assert [tenant.inside(machine.host).disagreements()
            for machine in machines] == [[], []]

# SPDX-License-Identifier: Apache-2.0
"""Two machines, and somebody whose servers go from one to the other."""

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
    """In the end, each machine, Placement and libvirt say the same."""
    yield
    assert [tenant.inside(machine.host).disagreements()
            for machine in machines] == [[], []]

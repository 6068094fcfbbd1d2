# SPDX-License-Identifier: Apache-2.0
"""One machine, and somebody whose servers are on it."""

import pytest

from tests.integration.nested import inside as insides
from tests.integration.nested import scene
from tests.integration.nested.fixtures import *  # noqa: F403


@pytest.fixture(scope='package')
def tenant(cloud, machine):
    return scene.enter(cloud, machine)


@pytest.fixture(scope='package')
def inside(machine):
    return insides.Inside(machine)


@pytest.fixture(scope='module', autouse=True)
def agreement(tenant, inside):
    """In the end, the machine, Placement and libvirt say the same."""
    yield
    assert inside.disagreements() == []

# SPDX-License-Identifier: Apache-2.0
"""Fixtures of stage 2: one nested machine and a tenant."""

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
    """Check after each module that host, Placement and libvirt agree."""
    yield
    assert inside.disagreements() == []


@pytest.fixture
def offer(tenant, machine):
    """Return a function that offers more devices until the test ends."""
    yield lambda more: scene.offer(tenant, machine, more)
    scene.offer(tenant, machine)


@pytest.fixture
def said(machine):
    """Return a function that searches nova-compute's log of this test."""
    log = machine.log('nova-compute')
    begin = log.stat().st_size

    def said(text):
        with log.open('rb') as file:
            file.seek(begin)
            return text in file.read().decode(errors='replace')
    return said

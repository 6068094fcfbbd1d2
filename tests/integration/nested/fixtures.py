# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures that run nested machines during a session."""

from collections.abc import Iterator
import sys

import pytest

from tests.integration import steps
from tests.integration.machine import machine as machine_
from tests.integration.machine import node
from tests.integration.nested import scene


@pytest.fixture(scope='session')
def machine(cloud) -> Iterator[machine_.Machine]:
    """A nested compute node with emulated devices."""
    with node.nodes(cloud, steps.Steps(sys.stderr), 1, scene.prepare) as [one]:
        yield one


@pytest.fixture(scope='session')
def machines(cloud) -> Iterator[list[machine_.Machine]]:
    """Two nested compute nodes, connected by a network of their own."""
    with node.nodes(cloud, steps.Steps(sys.stderr), 2, scene.prepare) as two:
        yield two

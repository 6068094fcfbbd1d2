# SPDX-License-Identifier: Apache-2.0
"""What the scenarios have: the cloud that is up."""

import pytest

from tests.integration import place
from tests.integration.cloud import cloud as clouds


@pytest.fixture(scope='session')
def cloud() -> clouds.Cloud:
    """The cloud; scenarios are run in its namespaces only."""
    if not (place.STATE / 'up').exists():
        pytest.exit('no cloud is up: run this by "tox -e integration"', 1)
    return clouds.Cloud()

# SPDX-License-Identifier: Apache-2.0
"""What the scenarios have: the cloud that is up."""

import pytest

from tests.integration import namespaces
from tests.integration.cloud import cloud as clouds


@pytest.fixture(scope='session')
def cloud() -> clouds.Cloud:
    """The cloud; scenarios are run in its namespaces only."""
    if not namespaces.inside():
        pytest.fail('this is not in a cloud: run it by "tox -e integration"',
                    pytrace=False)
    return clouds.Cloud()

# SPDX-License-Identifier: Apache-2.0
"""What the scenarios have: the cloud that is up."""

from collections.abc import Iterator

import pytest

from tests.integration import namespaces
from tests.integration.cloud import cloud as clouds
from tests.integration.cloud import leftovers

_FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope='session')
def cloud() -> Iterator[clouds.Cloud]:
    """The cloud; scenarios are run in its namespaces only."""
    if not namespaces.inside():
        pytest.fail('this is not in a cloud: run it by "tox -e integration"',
                    pytrace=False)
    cloud = clouds.Cloud()
    yield cloud
    leftovers.clear(cloud)


def pytest_exception_interact(node):
    """Note which scenarios fail."""
    node.stash[_FAILED] = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Have none of those after a scenario that failed fail because of it.

    What it shares with others ends as well, up to nested machines and the
    cloud's own compute node. The next scenario has it made anew.
    """
    failed = item.stash.get(_FAILED, False)
    try:
        if failed and namespaces.inside():
            leftovers.start(clouds.Cloud())
        return (yield)
    except BaseException:
        failed = True
        raise
    finally:
        if failed:
            # pytest does the same after the last one.
            item.session._setupstate.teardown_exact(None)

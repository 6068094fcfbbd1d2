# SPDX-License-Identifier: Apache-2.0
"""Fixture of the running cloud, and cleanup after failed tests."""

from collections.abc import Iterator

import pytest

from tests.integration import namespaces
from tests.integration.cloud import cloud as clouds
from tests.integration.cloud import leftovers

_FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope='session')
def cloud() -> Iterator[clouds.Cloud]:
    """Return the cloud in whose namespaces pytest runs."""
    if not namespaces.inside():
        pytest.fail('no cloud is running here: use "tox -e integration"',
                    pytrace=False)
    cloud = clouds.Cloud()
    yield cloud
    leftovers.clear(cloud)


def pytest_exception_interact(node):
    """Record that a test has failed."""
    node.stash[_FAILED] = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Clean up after a failed test, so that later tests do not fail too.

    This also tears down the fixtures that it shares with other tests, for
    example nested machines. The next test sets them up again.
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
            # pytest does the same after the last test.
            item.session._setupstate.teardown_exact(None)

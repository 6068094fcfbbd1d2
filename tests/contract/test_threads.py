# SPDX-License-Identifier: Apache-2.0
"""What threads of nova-compute share; since Nova 34 they are native ones.

Each test has another thread's step come where it does harm.
"""

import threading

import nova.conf
import pytest

from nova_accel.compute import beside


@pytest.fixture(autouse=True)
def options():
    nova.conf.CONF([], project='nova', default_config_files=[])


def test_after_a_thread_that_could_not_start_another_can(monkeypatch):
    one = beside.Beside()
    with monkeypatch.context() as full:
        def start(_thread):
            raise RuntimeError("can't start new thread")

        full.setattr(threading.Thread, 'start', start)
        with pytest.raises(RuntimeError, match='new thread'):
            one.do(pytest.fail)
    assert not one.is_busy()
    done = []
    assert one.do(lambda: done.append(True))
    assert done

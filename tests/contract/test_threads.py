# SPDX-License-Identifier: Apache-2.0
"""What threads of nova-compute share; since Nova 34 they are native ones.

Each test has another thread's step come where it does harm.
"""

import logging
import threading

import nova.conf
import pytest

from nova_accel.compute import beside
from nova_accel.compute import said


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


def test_what_two_find_is_said_once():
    line = logging.INFO, 'Offered: 1 GPU'
    told = []

    class Log:
        def log(self, *args):
            told.append(args)
            if len(told) == 1:
                # Another thread has looked as well.
                spoken.say([line])

    spoken = said.Said(Log())
    spoken.say([line])
    assert len(told) == 1

# SPDX-License-Identifier: Apache-2.0
"""Tests of the fixtures in pace.py."""

import gc
import queue
import threading
import unittest

import futurist
from nova import test

from tests.functional import pace


@unittest.skipUnless(hasattr(queue.Queue(), 'mutex'), 'of native threads')
class WorkersTest(test.NoDBTestCase):

    def test_executor_is_collected_while_its_queue_is_locked(self):
        """The garbage collection of an executor does not deadlock.

        It stops the workers, and can run while the queue's lock is held.
        """
        self.useFixture(pace.Workers())
        executor = futurist.ThreadPoolExecutor(max_workers=1)
        executor.submit(int).result()
        [worker] = executor._workers

        def collect(queue=worker.work_queue):
            with queue.mutex:
                nonlocal executor
                del executor
                gc.collect()

        collector = threading.Thread(target=collect, daemon=True)
        collector.start()
        collector.join(10)
        self.assertFalse(collector.is_alive())
        self.assertIsNone(worker.executor_ref())
        worker.join(10)
        self.assertFalse(worker.is_alive())

# SPDX-License-Identifier: Apache-2.0
"""What makes the tests fast does not make them hang."""

import gc
import queue
import threading
import unittest

import futurist
from nova import test

from tests.functional import pace


@unittest.skipUnless(hasattr(queue.Queue(), 'mutex'), 'of native threads')
class WorkersTest(test.NoDBTestCase):

    def test_an_executor_is_garbage_while_its_queue_is_locked(self):
        """Its workers are told to end wherever garbage is collected."""
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

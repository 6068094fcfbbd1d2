# SPDX-License-Identifier: Apache-2.0
"""Steps of other threads at a chosen point of a test."""

import threading
import types


class Meanwhile:
    """Run steps in other threads until they end or wait for a lock.

    :param module: module whose locks are watched; it must create them later
    """

    def __init__(self, monkeypatch, module):
        self._halted = threading.Event()
        self._threads = []
        monkeypatch.setattr(module, 'threading', types.SimpleNamespace(
            Lock=lambda: _Lock(self._halted), Condition=threading.Condition),
            raising=False)

    def do(self, step):
        def run():
            try:
                step()
            finally:
                self._halted.set()

        self._halted.clear()
        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()
        self._halted.wait()

    def end(self):
        for thread in self._threads:
            thread.join()


class _Lock:
    """A lock that sets an event when a thread must wait for it."""

    def __init__(self, waits):
        self._lock = threading.Lock()
        self._waits = waits
        self.release = self._lock.release

    def acquire(self, blocking=True):
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        self._waits.set()
        return self._lock.acquire()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_error):
        self.release()

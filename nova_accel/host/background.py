# SPDX-License-Identifier: Apache-2.0
"""Run slow device work in threads; the caller waits :data:`WAIT` at most.

Nova's resource tracker holds a lock during its periodic run, which every boot
and every deletion needs. The kernel can block for a long time: a minute for
each reset method of a card that does not answer, and, when an mdev is removed,
until no program has it open. No library is used: futurist would queue a second
task, and here it must not be started.
"""

import collections.abc
import logging
import threading
import time

LOG = logging.getLogger(__name__)

#: Seconds.
WAIT = 10


def wait(threads: collections.abc.Iterable[threading.Thread]) -> None:
    """Wait for the end of tasks, :data:`WAIT` seconds at most for all."""
    deadline = time.monotonic() + WAIT
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))


class Runner:
    """Runs one task at a time, in a thread (green, if eventlet is used)."""

    def __init__(self) -> None:
        self._busy = threading.Lock()

    def run(self, what: collections.abc.Callable[[], None]) -> bool:
        """Start a task, and wait for its end :data:`WAIT` seconds at most.

        :returns: whether it was started; not while another task runs
        :raises RuntimeError: if no thread can be started
        """
        if thread := self.start(what):
            wait([thread])
        return thread is not None

    def start(self, what: collections.abc.Callable[[], None],
              ) -> threading.Thread | None:
        """Start a task.

        :returns: its thread, None while another task runs
        :raises RuntimeError: if no thread can be started
        """
        if not self._busy.acquire(blocking=False):
            return None
        thread = threading.Thread(target=self._do, args=(what,), daemon=True)
        try:
            thread.start()
        except Exception:
            # Allow the next try, when the system may have a thread again.
            self._busy.release()
            raise
        return thread

    def is_busy(self) -> bool:
        """Whether a task is still running."""
        return self._busy.locked()

    def _do(self, what: collections.abc.Callable[[], None]) -> None:
        try:
            what()
        except Exception:
            # The caller may have stopped waiting.
            LOG.exception('A background task on devices failed')
        finally:
            self._busy.release()

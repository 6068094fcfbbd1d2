# SPDX-License-Identifier: Apache-2.0
"""Run slow device work in a thread; the caller waits :data:`WAIT` at most.

Nova's resource tracker holds a lock during its periodic run, which every boot
and every deletion needs. The kernel can block for a long time: a minute for
each reset method of a card that does not answer, and, when an mdev is removed,
until no program has it open.
"""

import collections.abc
import threading

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

#: Seconds.
WAIT = 10


class Runner:
    """Runs one task at a time, in a thread (green, if eventlet is used)."""

    def __init__(self) -> None:
        self._busy = threading.Lock()

    def run(self, what: collections.abc.Callable[[], None]) -> bool:
        """Start a task, and wait for its end :data:`WAIT` seconds at most.

        :returns: whether it was started; not while another task runs
        :raises RuntimeError: if no thread can be started
        """
        if not self._busy.acquire(blocking=False):
            return False
        thread = threading.Thread(target=self._do, args=(what,), daemon=True)
        try:
            thread.start()
        except Exception:
            # Allow the next try, when the system may have a thread again.
            self._busy.release()
            raise
        thread.join(WAIT)
        return True

    def is_busy(self) -> bool:
        """Whether a task is still running."""
        return self._busy.locked()

    def _do(self, what):
        try:
            what()
        except Exception:
            # The caller may have stopped waiting.
            LOG.exception('A background task on devices failed')
        finally:
            self._busy.release()

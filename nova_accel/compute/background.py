# SPDX-License-Identifier: Apache-2.0
"""What is waited for only for a while, and then goes on beside.

Nova's resource tracker holds one lock while it looks at the machine, which
every boot and every deletion needs; and the kernel waits for a card that does
not answer a minute for each way to reset it, and to remove an mdev as long as
a program has it open.
"""

import collections.abc
import threading

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

#: Seconds.
WAIT = 10


class Runner:
    """One thing at a time, in a thread: a green one if Nova has such."""

    def __init__(self) -> None:
        self._busy = threading.Lock()

    def run(self, what: collections.abc.Callable[[], None]) -> bool:
        """Do it, and wait for it :data:`WAIT` seconds at most.

        :returns: whether it was begun; it is not while another goes on
        :raises RuntimeError: if no thread can be started
        """
        if not self._busy.acquire(blocking=False):
            return False
        thread = threading.Thread(target=self._do, args=(what,), daemon=True)
        try:
            thread.start()
        except Exception:
            # The system has no room for one; it may have the next time.
            self._busy.release()
            raise
        thread.join(WAIT)
        return True

    def is_busy(self) -> bool:
        """Whether something goes on still."""
        return self._busy.locked()

    def _do(self, what):
        try:
            what()
        except Exception:
            # Nobody else is there to hear of it.
            LOG.exception('What went on beside did not end well')
        finally:
            self._busy.release()

# SPDX-License-Identifier: Apache-2.0
"""What is found again at every round goes into the log once."""

import collections.abc

from oslo_log import log as logging

#: A level of the log's, and what is said.
Line = tuple[int, str]


class LogOnce:
    """What the log has been told the last time.

    :param log: which is told
    """

    def __init__(self, log: logging.KeywordArgumentAdapter) -> None:
        self._log = log
        self._lines: frozenset[Line] = frozenset()

    def log(self, lines: collections.abc.Iterable[Line]) -> None:
        """Log what was not said the last time.

        :param lines: all that there is to say by now, with their levels
        """
        lines = list(lines)
        # First: another thread may find the same.
        before, self._lines = self._lines, frozenset(lines)
        for level, line in lines:
            if (level, line) not in before:
                self._log.log(level, '%s', line)

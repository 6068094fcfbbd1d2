# SPDX-License-Identifier: Apache-2.0
"""Log a recurring finding once, until it changes."""

import collections.abc
import logging
import typing

#: A log level and a message.
Line = tuple[int, str]


class LogOnce:
    """Logs the findings that the previous call did not have.

    :param log: the logger
    """

    def __init__(self, log: logging.LoggerAdapter[typing.Any]) -> None:
        self._log = log
        self._lines: frozenset[Line] = frozenset()

    def log(self, lines: collections.abc.Iterable[Line]) -> None:
        """Log the messages that were not in the previous call.

        :param lines: all current messages, with their levels
        """
        lines = list(lines)
        # Replace before logging: another thread may have the same messages.
        before, self._lines = self._lines, frozenset(lines)
        for level, line in lines:
            if (level, line) not in before:
                self._log.log(level, '%s', line)

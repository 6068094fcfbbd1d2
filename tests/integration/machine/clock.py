# SPDX-License-Identifier: Apache-2.0
"""A clock that counts only time in which nested machines could run.

While a machine's processor waits for a real one, nothing happens in the
machine. Such time does not count for timeouts.
"""

import pathlib
import time

from tests.integration import place
from tests.integration import processes
from tests.integration import steps

#: The prefix of the names of machines.
MACHINE = 'machine-'


class Clock:
    """A callable that returns the machines' seconds since its creation."""

    def __init__(self):
        self._processes = processes.Processes(place.RUN, place.LOG)
        self._seconds = 0.0
        self._time, self._queued = time.monotonic(), self._look()

    def __call__(self) -> float:
        """:raises Final: if a machine has ended by itself"""
        before, queued = self._time, self._queued
        self._time, self._queued = time.monotonic(), self._look()
        lost = max((seconds - queued[thread]
                    for thread, seconds in self._queued.items()
                    if thread in queued), default=0)
        self._seconds += max(self._time - before - lost, 0)
        return self._seconds

    def _look(self):
        """Return how long each thread of the machines was in a run queue."""
        for name in self._processes.lost():
            if name.startswith(MACHINE):
                raise steps.Final(f'{name} ended; {place.LOG / name}.log may '
                                  'have the reason')
        return {file: _queued(file) for name in self._processes.names()
                if name.startswith(MACHINE)
                for file in pathlib.Path('/proc').glob(
                    f'{self._processes.pid(name)}/task/*/schedstat')}


def _queued(schedstat: pathlib.Path) -> float:
    """Return for how many seconds a thread was runnable but did not run."""
    try:
        return int(schedstat.read_text().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0

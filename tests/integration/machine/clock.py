# SPDX-License-Identifier: Apache-2.0
"""Time as the machines in the machine have it.

Where a machine's processor has to stand in line for a real one, nothing goes
on in it. So that time does not count for those who wait for what it does.
"""

import pathlib
import time

from tests.integration import place
from tests.integration import processes
from tests.integration import steps

#: What the names of machines begin with.
MACHINE = 'machine-'


class Clock:
    """Called, it says how many seconds machines have had since it was made."""

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
        """How long each thread of a machine's has stood in line."""
        for name in self._processes.lost():
            if name.startswith(MACHINE):
                raise steps.Final(f'{name} ended; {place.LOG / name}.log may '
                                  'say why')
        return {file: _queued(file) for name in self._processes.names()
                if name.startswith(MACHINE)
                for file in pathlib.Path('/proc').glob(
                    f'{self._processes.pid(name)}/task/*/schedstat')}


def _queued(schedstat: pathlib.Path) -> float:
    """For how many seconds a thread was ready to run, and did not."""
    try:
        return int(schedstat.read_text().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0

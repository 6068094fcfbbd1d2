# SPDX-License-Identifier: Apache-2.0
"""Processes with names, which other processes can stop and start again.

The process that started one may end first. A file for each name has its
process id and its start time in clock ticks. So a process that got the same id
later is never signalled.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import os
import pathlib
import signal
import subprocess
import time


class Processes:
    """:param run: the directory of the files with process ids
    :param log: the directory of the logs, NAME.log each
    """

    def __init__(self, run: pathlib.Path, log: pathlib.Path):
        self._run = run
        self._log = log

    def log(self, name: str) -> pathlib.Path:
        return self._log / f'{name}.log'

    def start(self, name: str, command: Sequence[str],
              environment: Mapping[str, str], cwd: pathlib.Path) -> None:
        """Start a process in its own session, unless it runs."""
        if self.alive(name):
            return
        with self.log(name).open('a') as log:
            process = subprocess.Popen(
                [str(word) for word in command], cwd=cwd, stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **environment})
        # The rename is atomic: no reader gets half of the file.
        new = self._file(name).with_suffix('.new')
        new.write_text(f'{process.pid} {_started(process.pid)}')
        new.rename(self._file(name))
        # Avoid the ResourceWarning: the process may outlive this one.
        process.returncode = 0

    def pid(self, name: str) -> int | None:
        """Return the id of a process, None if it does not run."""
        try:
            pid, started = map(int, self._file(name).read_text().split())
        except FileNotFoundError:
            return None
        return pid if started and _started(pid) == started else None

    def alive(self, name: str) -> bool:
        return self.pid(name) is not None

    def names(self) -> list[str]:
        """Return the names of the running processes, youngest first."""
        files = sorted(self._run.glob('*.pid'), reverse=True,
                       key=lambda file: file.stat().st_mtime)
        return [file.stem for file in files if self.alive(file.stem)]

    def lost(self) -> list[str]:
        """Return the names of processes that ended without stop or kill."""
        return [file.stem for file in self._run.glob('*.pid')
                if not self.alive(file.stem)]

    def stop(self, *names: str, seconds: float = 10) -> None:
        """Send SIGTERM to processes, and SIGKILL after some seconds."""
        pids = self._pids(names)
        for pid in pids.values():
            _signal(pid, signal.SIGTERM)
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(map(self.alive, pids)):
            time.sleep(0.05)
        self._kill(pids)

    def kill(self, *names: str) -> None:
        """Send SIGKILL to processes and their children."""
        self._kill(self._pids(names))
        for name in names:
            self._file(name).unlink(missing_ok=True)

    def _pids(self, names):
        return {name: pid for name in names if (pid := self.pid(name))}

    def _kill(self, pids):
        for name, pid in pids.items():
            # Children may outlive the process and keep the port on which its
            # successor listens.
            _signal(-pid, signal.SIGKILL)
            while _any_left(pid):
                time.sleep(0.01)
            self._file(name).unlink(missing_ok=True)

    def _file(self, name):
        return self._run / f'{name}.pid'


def _signal(pid, number):
    try:
        (os.killpg if pid < 0 else os.kill)(abs(pid), number)
    except ProcessLookupError:
        pass


def _any_left(group):
    """Whether a process group has a process that has not ended."""
    return any(_group(int(name)) == group for name in os.listdir('/proc')
               if name.isdigit())


def _group(pid):
    """Return a process's group, None if it has ended."""
    stat = _stat(pid)
    return int(stat[2]) if stat else None


def _started(pid):
    """Return a process's start time in clock ticks, 0 if it has ended."""
    stat = _stat(pid)
    return int(stat[19]) if stat else 0


def _stat(pid):
    """Return the fields of /proc/PID/stat from the third on.

    Return None if all threads have ended. While the first thread has ended but
    another has not, the process still has its files open. A thread may end
    while this function runs.
    """
    process = _fields(f'/proc/{pid}/stat')
    stats = [_fields(f'/proc/{pid}/task/{thread}/stat')
             for thread in _threads(pid)]
    alive = any(stat and stat[0] not in 'ZX' for stat in stats)
    return process if alive else None


def _threads(pid):
    try:
        return os.listdir(f'/proc/{pid}/task')
    except (FileNotFoundError, ProcessLookupError):
        return ()


def _fields(path):
    """Return the fields after the name, None if the thread has ended."""
    try:
        with open(path) as file:
            return file.read().rpartition(') ')[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None

# SPDX-License-Identifier: Apache-2.0
"""Processes by name, which any other process here can end and start again.

Who started one need not be there any more when it ends: what is known of it
is a file with its process id and when it started, as the kernel counts. So a
number that is somebody else's by now is never signalled.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import os
import pathlib
import signal
import subprocess
import time


class Processes:
    """:param run: the directory of what is known of them
    :param log: the directory of what they say, NAME.log each
    """

    def __init__(self, run: pathlib.Path, log: pathlib.Path):
        self._run = run
        self._log = log

    def log(self, name: str) -> pathlib.Path:
        return self._log / f'{name}.log'

    def start(self, name: str, command: Sequence[str],
              environment: Mapping[str, str], cwd: pathlib.Path) -> None:
        """Start a process in a session of its own, unless it runs."""
        if self.alive(name):
            return
        with self.log(name).open('a') as log:
            process = subprocess.Popen(
                [str(word) for word in command], cwd=cwd, stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **environment})
        # At once: nobody reads half of it.
        new = self._file(name).with_suffix('.new')
        new.write_text(f'{process.pid} {_started(process.pid)}')
        new.rename(self._file(name))
        # It may outlive us, which is no accident.
        process.returncode = 0

    def pid(self, name: str) -> int | None:
        """The id of a process that runs."""
        try:
            pid, started = map(int, self._file(name).read_text().split())
        except FileNotFoundError:
            return None
        return pid if started and _started(pid) == started else None

    def alive(self, name: str) -> bool:
        return self.pid(name) is not None

    def names(self) -> list[str]:
        """Those that run, the youngest first."""
        files = sorted(self._run.glob('*.pid'), reverse=True,
                       key=lambda file: file.stat().st_mtime)
        return [file.stem for file in files if self.alive(file.stem)]

    def lost(self) -> list[str]:
        """Those that have ended though nobody here has ended them."""
        return [file.stem for file in self._run.glob('*.pid')
                if not self.alive(file.stem)]

    def stop(self, *names: str, seconds: float = 10) -> None:
        """Ask processes to end, and kill what is left after some seconds."""
        pids = self._pids(names)
        for pid in pids.values():
            _signal(pid, signal.SIGTERM)
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(map(self.alive, pids)):
            time.sleep(0.05)
        self._kill(pids)

    def kill(self, *names: str) -> None:
        """End processes and their children without a word."""
        self._kill(self._pids(names))
        for name in names:
            self._file(name).unlink(missing_ok=True)

    def _pids(self, names):
        return {name: pid for name in names if (pid := self.pid(name))}

    def _kill(self, pids):
        for name, pid in pids.items():
            # Its children too, which may have outlived it; as long as there
            # is one, it may have the port that the next one listens on.
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
    """Whether there is a process of a group that has not ended."""
    return any(_group(int(name)) == group for name in os.listdir('/proc')
               if name.isdigit())


def _group(pid):
    """Its process group; None if there is no such process any more."""
    stat = _stat(pid)
    return int(stat[2]) if stat else None


def _started(pid):
    """Clock ticks since boot; 0 if there is no such process any more."""
    stat = _stat(pid)
    return int(stat[19]) if stat else 0


def _stat(pid):
    """What /proc/PID/stat has after the name, from its third field on.

    None for a process that has ended: its first thread may have, and not yet
    those that have its files open. Of the others, any may while this looks.
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
    """None for a process, or a thread, that is not there any more."""
    try:
        with open(path) as file:
            return file.read().rpartition(') ')[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None

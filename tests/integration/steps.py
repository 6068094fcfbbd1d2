# SPDX-License-Identifier: Apache-2.0
"""Steps that show their progress and record how long they took."""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import os
import pathlib
import subprocess
import sys
import threading
import time

from keystoneauth1 import exceptions as keystoneauth_exceptions
from openstack import exceptions as sdk_exceptions
import prettytable

#: The interval in seconds in which a long step shows that it still runs.
_PATIENCE = 10
#: How many seconds wait() waits. Usually one or two are enough. Only a busy
#: machine takes longer.
LIMIT = 600


class Failure(Exception):
    """An error that ends a run; its text has a reason and a remedy."""


class Final(Failure):
    """A failure for which waiting does not help."""


class Steps:
    """Shows steps as they run, and records how long each took."""

    def __init__(self, out=None):
        self._out = out or sys.stdout
        #: Name and seconds of each completed step.
        self.taken: list[tuple[str, float]] = []

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show a step, and during a long one that it still runs."""
        self.say(f'{name} ...')
        start = time.monotonic()
        over = threading.Event()
        beat = threading.Thread(target=self._beat, args=(name, start, over))
        beat.daemon = True
        beat.start()
        try:
            yield
        finally:
            over.set()
            beat.join()
            seconds = time.monotonic() - start
            self.taken.append((name, seconds))
            self.say(f'{name}: {seconds:.1f} s')

    def _beat(self, name, start, over):
        while not over.wait(_PATIENCE):
            self.say(f'{name}: {time.monotonic() - start:.0f} s so far')

    def table(self) -> str:
        """Return a text table of the steps and their seconds."""
        table = prettytable.PrettyTable(['step', 'seconds'])
        table.align = {'step': 'l', 'seconds': 'r'}
        table.add_rows([[name, f'{seconds:.1f}']
                        for name, seconds in self.taken])
        return str(table)


def at_once(*calls: Callable[[], object]) -> list:
    """Run calls in parallel and return their results.

    When all have ended, raise the exception of the first that failed.
    """
    with futures.ThreadPoolExecutor(len(calls)) as pool:
        pending = [pool.submit(call) for call in calls]
    return [each.result() for each in pending]


def run(*command: str | os.PathLike, log: pathlib.Path | None = None,
        **keywords) -> str:
    """Run a command and return its stdout.

    :param log: a file to append stdout and stderr to; both are returned then
    :raises Failure: if the command fails; has the end of its output
    """
    words = [str(word) for word in command]
    if log is None:
        done = subprocess.run(words, capture_output=True, text=True,
                              **keywords)
        said = done.stdout + done.stderr
    else:
        with log.open('a') as file:
            begin = file.tell()
            done = subprocess.run(words, stdout=file, stderr=file, **keywords)
        with log.open(errors='replace') as file:
            file.seek(begin)
            said = file.read()
    if done.returncode:
        raise Failure(f'{" ".join(words)} ended with {done.returncode}: '
                      f'{said.strip()[-2000:]}'
                      + (f'\nthe complete output is in {log}' if log else ''))
    return said if log else done.stdout


#: Exceptions from a service that is not ready yet, or from its client.
_NOT_YET = (Failure, OSError, sdk_exceptions.SDKException,
            keystoneauth_exceptions.ClientException)


def wait(what: str, until: Callable[[], object], seconds: float = LIMIT,
         pause: float = 0.2, clock: Callable[[], float] = time.monotonic):
    """Wait until a function returns something true, and return that.

    :param what: the awaited condition, for the failure's text
    :param until: the function
    :param clock: measures the seconds
    :raises Failure: after the time limit, with the last exception of the
        function; at once if it raises Final
    """
    end = clock() + seconds
    while True:
        reason = 'no reason known'
        try:
            result = until()
            if result:
                return result
        except Final:
            raise
        except _NOT_YET as error:
            reason = str(error)
        if clock() > end:
            raise Failure(f'{what} is not there after {seconds:.0f} s: '
                          f'{reason}')
        time.sleep(pause)



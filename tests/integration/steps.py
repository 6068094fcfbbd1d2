# SPDX-License-Identifier: Apache-2.0
"""Steps, with what they say while they run and how long they took."""

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

#: After how many seconds a step that says nothing says that it still runs.
_PATIENCE = 10
#: Seconds until nobody waits any longer for what comes by itself. It would be
#: there within one or two: only a machine with much else to do takes longer,
#: and only who waits for what does not come waits for so long.
LIMIT = 600


class Failure(Exception):
    """What cannot go on: the thing, the reason, the remedy."""


class Final(Failure):
    """What does not get better by waiting."""


class Steps:
    """Shows steps as they come; remembers how long each took."""

    def __init__(self, out=None):
        self._out = out or sys.stdout
        #: Name and seconds of each step that is over.
        self.taken: list[tuple[str, float]] = []

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show a step; while it takes long, that it still runs."""
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
        """How long everything took, for people."""
        table = prettytable.PrettyTable(['step', 'seconds'])
        table.align = {'step': 'l', 'seconds': 'r'}
        table.add_rows([[name, f'{seconds:.1f}']
                        for name, seconds in self.taken])
        return str(table)


def at_once(*calls: Callable[[], object]) -> list:
    """What the calls return; the first failure, once all are over."""
    with futures.ThreadPoolExecutor(len(calls)) as pool:
        pending = [pool.submit(call) for call in calls]
    return [each.result() for each in pending]


def run(*command: str | os.PathLike, log: pathlib.Path | None = None,
        **keywords) -> str:
    """What a command says.

    :param log: a file that its output, errors too, is added to instead
    :raises Failure: with the end of what it said, if it fails
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
                      + (f'\nall of it is in {log}' if log else ''))
    return said if log else done.stdout


#: What is raised for a service that is on its way, or by its client.
_NOT_YET = (Failure, OSError, sdk_exceptions.SDKException,
            keystoneauth_exceptions.ClientException)


def wait(what: str, until: Callable[[], object], seconds: float = LIMIT,
         pause: float = 0.2, clock: Callable[[], float] = time.monotonic):
    """What a function returns, once that is true.

    :param clock: by which the seconds are counted
    :raises Failure: with what it raised last, if it does not come to that;
        at once if it raises Final
    """
    end = clock() + seconds
    while True:
        reason = 'it did not say why'
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



# SPDX-License-Identifier: Apache-2.0
"""A process of its own that is asked, and given up when it takes too long."""

import collections.abc
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import resource
import traceback
import typing
import unittest
import warnings

from tests import quiet

#: Bytes that such a process may have; more is "out of memory", an answer too.
MEMORY = 8 << 30

TIMED_OUT, OUT_OF_MEMORY, DIED = (
    'did not finish', 'out of memory', 'failed')


class Unanswered(Exception):
    """No answer; the text is one of the three reasons."""


class Worker:
    """Somewhere else, ``make(connection, *args)`` and run it.

    :param make: gives a test case of which one method serves: calls
        :func:`answer`
    :param limit: seconds in which it has to be ready
    :raises Unanswered: from here and from :meth:`ask`; the process has gone
        then
    """

    def __init__(self, make: collections.abc.Callable[..., unittest.TestCase],
                 *args, limit: float):
        # A fresh interpreter: Nova keeps much in module globals.
        context = multiprocessing.get_context('spawn')
        self._connection, theirs = context.Pipe()
        # Eventlet's sockets do not block, and a benchmark that ran before in
        # this process may have brought it along with Nova.
        os.set_blocking(theirs.fileno(), True)
        self._process = context.Process(
            target=_run, args=(make, theirs, *args), daemon=True)
        self._process.start()
        theirs.close()
        self._receive(limit)

    def ask(self, question: dict, limit: float) -> typing.Any:
        """:param limit: seconds in which there has to be an answer"""
        self._connection.send(question)
        return self._receive(limit)

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()

    def _receive(self, limit: float) -> typing.Any:
        try:
            if not self._connection.poll(limit):
                raise Unanswered(TIMED_OUT)
            received = self._connection.recv()
            if isinstance(received, Unanswered):
                raise received
        except (EOFError, ConnectionError):
            self.close()
            raise Unanswered(DIED) from None
        except Unanswered:
            self.close()
            raise
        return received


class Lazy:
    """A worker that is started when it is asked, and anew when it had gone.

    :param start: seconds in which it has to be ready; the rest is a worker's
    """

    def __init__(self, start: float, make, *args):
        self._start, self._make, self._args = start, make, args
        self._worker: Worker | None = None

    def ask(self, question: dict, limit: float) -> dict:
        """An answer that is a dictionary, or ``{'failed': reason}``."""
        try:
            if self._worker is None:
                self._worker = Worker(self._make, *self._args,
                                      limit=self._start)
            return self._worker.ask(question, limit)
        except Unanswered as reason:
            self._worker = None
            return {'failed': str(reason)}

    def close(self) -> None:
        if self._worker:
            self._worker.close()


@contextlib.contextmanager
def sides(names: collections.abc.Iterable[str], start: float, make, *args,
          ) -> collections.abc.Iterator[dict[str, Lazy]]:
    """A lazy worker for each side, closed in the end.

    One after the other is asked, so that they find the same machine.

    :param make: as in :class:`Worker`; is given the side's name, then ``args``
    """
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(contextlib.closing(
            Lazy(start, make, name, *args))) for name in names}


def answer(connection: multiprocessing.connection.Connection,
           function: collections.abc.Callable[..., typing.Any]) -> None:
    """Be ready, and answer until nobody asks any more.

    :param function: from a question's items to its answer
    """
    connection.send('ready')
    # Closed at the other end: nobody asks, or waits, any more.
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            question = connection.recv()
            try:
                answered = function(**question)
            except MemoryError:
                answered = Unanswered(OUT_OF_MEMORY)
            connection.send(answered)


def _run(make, connection, *args):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # Libraries that say on import what will not be in the next release.
    warnings.simplefilter('ignore')
    result = unittest.TestResult()
    with quiet.quiet() as (_out, err):
        try:
            unittest.TestSuite([make(connection, *args)]).run(result)
        except Exception:
            traceback.print_exc(file=err)
        for _case, trace in (*result.errors, *result.failures):
            print(trace[-1500:], file=err)

# SPDX-License-Identifier: Apache-2.0
"""Child processes that answer questions within a time limit."""

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

#: The memory limit of a child process in bytes.
MEMORY = 8 << 30

TIMED_OUT, OUT_OF_MEMORY, DIED = (
    'did not finish', 'out of memory', 'failed')


class Unanswered(Exception):
    """There is no answer. The text is one of the three reasons above."""


class Worker:
    """A child process that runs the test case ``make(connection, *args)``.

    :param make: returns a test case whose test method calls :func:`answer`
    :param limit: seconds within which the process has to be ready
    :raises Unanswered: also from :meth:`ask`; the process is killed before
    """

    def __init__(self, make: collections.abc.Callable[..., unittest.TestCase],
                 *args, limit: float):
        # A fresh interpreter, because Nova keeps state in module globals.
        context = multiprocessing.get_context('spawn')
        self._connection, theirs = context.Pipe()
        # Eventlet makes sockets non-blocking. An earlier benchmark in this
        # process may have imported it with Nova.
        os.set_blocking(theirs.fileno(), True)
        self._process = context.Process(
            target=_run, args=(make, theirs, *args), daemon=True)
        self._process.start()
        theirs.close()
        self._receive(limit)

    def ask(self, question: dict, limit: float) -> typing.Any:
        """Return the answer to a question.

        :param limit: seconds to wait for the answer
        """
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
    """A worker that starts at a question, and again after it was killed.

    :param start: seconds within which the worker has to be ready; the other
        parameters are those of :class:`Worker`
    """

    def __init__(self, start: float, make, *args):
        self._start, self._make, self._args = start, make, args
        self._worker: Worker | None = None

    def ask(self, question: dict, limit: float) -> dict:
        """Return the answer, a dictionary, or ``{'failed': reason}``."""
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
    """Yield a lazy worker for each side, and close all at the end.

    Callers ask the sides in turn, so that changes of the machine's speed
    affect all sides.

    :param make: as in :class:`Worker`, but its arguments are the connection,
        the side's name and ``args``
    """
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(contextlib.closing(
            Lazy(start, make, name, *args))) for name in names}


def answer(connection: multiprocessing.connection.Connection,
           function: collections.abc.Callable[..., typing.Any]) -> None:
    """Report that the process is ready, then answer all questions.

    :param function: takes a question's items, returns the answer
    """
    connection.send('ready')
    # These errors mean that the benchmark has closed its end.
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
    # Some libraries warn of deprecations when they are imported.
    warnings.simplefilter('ignore')
    result = unittest.TestResult()
    with quiet.quiet() as (_out, err):
        try:
            unittest.TestSuite([make(connection, *args)]).run(result)
        except Exception:
            traceback.print_exc(file=err)
        for _case, trace in (*result.errors, *result.failures):
            print(trace[-1500:], file=err)

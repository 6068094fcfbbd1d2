# SPDX-License-Identifier: Apache-2.0
"""Run vendors' commands, which may hang and print anything.

processutils of oslo.concurrency has no limit of the output, and does not kill
the children of a command.
"""

import collections.abc
import contextlib
import os
import selectors
import signal
import subprocess  # nosec B404 # this is its only use
import time
import typing

from nova_accel.core import errors

#: How much of a command's output is kept by default: its last bytes.
MAX_OUTPUT = 4096

#: How much of a line a message repeats, in characters: its end.
_MAX_LINE = 300

#: Seconds for which the output may stay open after the command has ended.
_GRACE = 0.5

#: Seconds to wait for the end of a command that was killed.
_KILLED = 5

#: How a command ended: its exit code, None if it was killed; and its standard
#: output and error.
Ended = tuple[int | None, bytes]

_ENVIRONMENT = {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL': 'C'}


def run(words: collections.abc.Sequence[str], timeout: float,
        inherited: collections.abc.Collection[int] = (),
        limit: int = MAX_OUTPUT) -> Ended:
    """Run a command without a shell until it ends or the timeout expires.

    :param timeout: in seconds; then the command and its children are killed
    :param inherited: file descriptors that it and its children keep open
    :param limit: how much of the output is kept, in bytes: its end
    :raises OSError: if it cannot be started
    """
    # Root chose the command, and no shell reads its words.
    process = subprocess.Popen(  # nosec B603
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, cwd='/', env=_ENVIRONMENT,
        start_new_session=True, pass_fds=inherited,
        # The privsep daemon has umask 0.
        umask=0o022)
    pipe = process.stdout
    assert pipe is not None
    try:
        output = _read_output(process, pipe, time.monotonic() + timeout, limit)
        return process.poll(), output
    finally:
        # start_new_session: the group is the command and its children.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        # A process that waits for a device may ignore the signal for hours.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED)
        pipe.close()


def describe(word: str, code: int | None, output: bytes,
             timeout: float) -> str:
    """Return how a command ended, in one line; '' if it ended with 0.

    It has the last line that the command printed.

    :param word: its path
    :param code: and ``output``, as :func:`run` returns them
    :param timeout: in seconds
    """
    if code == 0:
        return ''
    lines = output.decode('utf-8', 'replace').split('\n')
    said = next(filter(None, map(str.strip, reversed(lines))), '')
    return (f'{errors.quote(word)} '
            + (f'ended with {code}' if code is not None else
               'was killed: it was not done after '
               + errors.count(int(timeout), 'second'))
            + (f' and said {said[-_MAX_LINE:]!r}' if said else ''))


def _read_output(process: subprocess.Popen[bytes], pipe: typing.IO[bytes],
                 deadline: float, limit: int) -> bytes:
    """Return the end of a process's output, until it or its time ends."""
    output = b''
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        ended: float | None = None
        while time.monotonic() < min(deadline, ended or deadline):
            if selector.select(0.05):
                chunk = os.read(pipe.fileno(), 65536)
                if not chunk:
                    break
                output = (output + chunk)[-limit:]
            if ended is None and process.poll() is not None:
                ended = time.monotonic() + _GRACE
    try:
        process.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    return output

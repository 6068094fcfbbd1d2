# SPDX-License-Identifier: Apache-2.0
"""Commands of vendors, which may hang, and say whatever they like."""

import collections.abc
import os
import selectors
import signal
import subprocess
import time

#: How much of what a command says is kept: its end, in bytes.
MAX_OUTPUT = 4096

#: How long a command may leave its output open when it has ended, in seconds.
_GRACE = 0.5

_ENVIRONMENT = {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL': 'C'}


def run(words: collections.abc.Sequence[str], timeout: float,
        ) -> tuple[int | None, bytes]:
    """Run a command, without a shell, to its end or to its time limit.

    :param timeout: in seconds; then it is killed, with all that it started
    :returns: its exit code, None if it was killed; and the last
        :data:`MAX_OUTPUT` bytes of what it said on both channels
    :raises OSError: if it cannot be started
    """
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, cwd='/', env=_ENVIRONMENT,
        start_new_session=True,
        # The helper that runs as root has none.
        umask=0o022)
    try:
        said = _listen(process, time.monotonic() + timeout)
        return process.poll(), said
    finally:
        # Its children too, whose process group is its own.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        process.stdout.close()


def _listen(process, deadline: float) -> bytes:
    """What a process says until it ends or its time is over."""
    said = b''
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        ended = None
        while time.monotonic() < min(deadline, ended or deadline):
            if selector.select(0.05):
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    break
                said = (said + chunk)[-MAX_OUTPUT:]
            if ended is None and process.poll() is not None:
                ended = time.monotonic() + _GRACE
    try:
        process.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    return said

# SPDX-License-Identifier: Apache-2.0
"""Fuzz one harness: start workers, and again after an input ended one."""

import dataclasses
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from tests import fuzz as harnesses
from tests.fuzz import harness
from tests.fuzz import worker

#: Where failing inputs are written.
FOLDER = harness.ROOT / '.fuzz'

# Inputs of one worker: then another starts, with fresh memory.
_BATCH = 100_000
# After so many failures at different places, a harness ends.
_MAX_FAILURES = 20

# The number in the file of a worker that has run no input yet.
_NONE = -1

_BOUNDS = {
    signal.SIGPROF: f'It took more than {worker.SECONDS} seconds.',
    signal.SIGALRM: f'It took more than {worker.PATIENCE} seconds.'}


@dataclasses.dataclass
class Failure:
    """The first input that failed at some place.

    :param why: the traceback, or which bound it exceeded
    :param others: how many other inputs failed there
    """

    number: int
    why: str
    others: int = -1


@dataclasses.dataclass
class Result:
    """What the inputs of a harness gave.

    :param failures: by place
    """

    counts: worker.Counts = dataclasses.field(default_factory=worker.Counts)
    failures: dict[str, Failure] = dataclasses.field(default_factory=dict)
    seconds: float = 0

    def fail(self, number: int, why: str) -> None:
        self.failures.setdefault(_place(why), Failure(number, why)).others += 1


def fuzz(place: str, seed: int = 1, inputs: int | None = None,
         seconds: float = math.inf) -> Result:
    """Give inputs to a harness until there are so many, or the time is over.

    :param place: name of the harness, or ``module:class``
    """
    result, began, first = Result(), time.monotonic(), 0
    last = sys.maxsize if inputs is None else inputs
    while first < last and len(result.failures) < _MAX_FAILURES:
        left = began + seconds - time.monotonic()
        if left <= 0:
            break
        first = _run(result, place, first, '--seed', seed, '--first', first,
                     '--last', min(last, first + _BATCH), '--seconds', left)
    result.seconds = time.monotonic() - began
    return result


def again(place: str, path: str | os.PathLike) -> Result:
    """Give a harness one input, from a file."""
    result = Result()
    _run(result, place, 0, '--input', os.fspath(path))
    return result


def write(place: str, seed: int, number: int) -> pathlib.Path:
    """Write an input to a file, and return its path."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f'{place}-{seed}-{number}'
    inputs = harness.Inputs(place, harnesses.load(place), seed)
    path.write_bytes(inputs[number])
    return path


def _run(result: Result, place: str, first: int, *arguments: object) -> int:
    """Run a worker; return the number of the next input."""
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(worker.NUMBER.pack(_NONE))
        progress.flush()
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-m', 'tests.fuzz.worker', place,
             '--progress', progress.name, *map(str, arguments)],
            cwd=harness.ROOT, capture_output=True,
            # An input has to go the same way when it is given again, and must
            # not wait for a disk.
            env={**os.environ, 'PYTHONHASHSEED': '0', 'TMPDIR': '/dev/shm'})
        [number] = worker.NUMBER.unpack(pathlib.Path(
            progress.name).read_bytes())
    if number == _NONE:
        raise RuntimeError(f'The harness {place} does not start.\n'
                           + done.stderr.decode(errors='replace'))
    *failures, end = [json.loads(line) for line in (
        done.stdout.splitlines() or [b'{}'])]
    if 'counts' not in end:
        failures += [end] if end else []
        end = {'counts': {'inputs': number + 1 - first}}
        result.fail(number, _death(done))
    for failure in failures:
        result.fail(**failure)
    result.counts.add(worker.Counts(**end['counts']))
    return number + 1


def _death(done: subprocess.CompletedProcess) -> str:
    """Return why a worker ended before its last input."""
    why = (_BOUNDS.get(-done.returncode) or
           f'The process ended with {done.returncode}.')
    return f'{why}\n{done.stderr.decode(errors="replace")}'


def _place(why: str) -> str:
    """Return what failures at the same place have in common."""
    lines = why.strip().splitlines()
    frames = re.findall(r'/nova_accel/[^"]*", line \d+', why)
    if 'most recent call first' in why:
        return f'{lines[0]} {frames[:1]}'
    return f'{frames[-1:]} {lines[-1].partition(":")[0]}'

# SPDX-License-Identifier: Apache-2.0
"""Gives inputs to one harness, in a process of its own, within the bounds.

It prints a JSON object for each input that failed, and one at the end. An
input that takes too long, or crashes the interpreter, ends the process; its
number is then in the file ``--progress``.
"""

import argparse
import dataclasses
import faulthandler
import json
import mmap
import os
import pathlib
import re
import resource
import signal
import struct
import time
import traceback

from tests import fuzz
from tests.fuzz import harness

#: Most seconds that an input may take, without those for which it had to wait
#: for a processor.
SECONDS = 2
#: Most bytes by which an input may increase the memory of the process.
MEMORY = 512 << 20

#: Seconds after which an input is ended that waits for something else.
PATIENCE = 60

NUMBER = struct.Struct('q')

_PEAK = re.compile(rb'VmHWM:\s*(\d+) kB')
_SIZE = re.compile(rb'VmSize:\s*(\d+) kB')


@dataclasses.dataclass
class Counts:
    """What inputs have needed.

    :param accepted: how many the code accepted
    :param slowest: most seconds for one
    :param largest: largest increase of memory by one, in bytes
    """

    inputs: int = 0
    accepted: int = 0
    slowest: float = 0
    largest: int = 0

    def add(self, other: 'Counts') -> None:
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.slowest = max(self.slowest, other.slowest)
        self.largest = max(self.largest, other.largest)


class Worker:
    """Gives inputs to a harness.

    :param inputs: by number
    :param progress: a file into which the number of each input is written
    """

    def __init__(self, own: harness.Harness, inputs, progress: str):
        self._own, self._inputs = own, inputs
        self.counts = Counts()
        with open(progress, 'r+b') as file:
            self._progress = mmap.mmap(file.fileno(), NUMBER.size)
        self._status = os.open('/proc/self/status', os.O_RDONLY)
        self._reset = os.open('/proc/self/clear_refs', os.O_WRONLY)
        self._waits = os.open('/proc/self/schedstat', os.O_RDONLY)
        _bound()

    def run(self, first: int, last: int, seconds: float) -> None:
        """Run the inputs from first to last, or until the time is over."""
        end = time.monotonic() + seconds
        for number in range(first, last):
            if time.monotonic() >= end:
                break
            NUMBER.pack_into(self._progress, 0, number)
            self._give(number)
        _set_clocks(0, 0)

    def _give(self, number: int) -> None:
        content = self._inputs[number]
        before, began = self._memory(), self._time()
        why, accepted = '', False
        _set_clocks(SECONDS, PATIENCE)
        try:
            accepted = self._own.run(content)
        except Exception:
            _set_clocks(0, 0)
            why = traceback.format_exc()
        took, grown = self._time() - began, self._memory(peak=True) - before
        if not why and took > SECONDS:
            why = f'It took more than {SECONDS} seconds: {took:.1f}'
        if not why and grown > MEMORY:
            why = f'It took more than {MEMORY >> 20} MB: {grown >> 20}'
        if why:
            _say({'number': number, 'why': why})
        self.counts.add(Counts(1, int(accepted), took, grown))

    def _time(self) -> float:
        """Return seconds that pass only while this process has a processor,
        or waits for something else.

        Source: Documentation/scheduler/sched-stats.rst (``schedstat``).
        """
        return time.monotonic() - int(
            os.pread(self._waits, 64, 0).split()[1]) / 1e9

    def _memory(self, peak: bool = False) -> int:
        """Return the memory that this process has, in bytes.

        Source: Documentation/filesystems/proc.rst (``VmHWM`` is the most that
        it has had; writing 5 to ``clear_refs`` resets that).

        :param peak: the most that it has had since the last call
        """
        if not peak:
            os.write(self._reset, b'5')
        text = os.pread(self._status, 4096, 0)
        return int(_PEAK.search(text)[1]) << 10


def _bound() -> None:
    # In C code, Python runs no handler: print the stack, and end.
    for number in (signal.SIGPROF, signal.SIGALRM):
        faulthandler.register(number, chain=True)
    faulthandler.enable()
    # Memory that is allocated but not used does not count as grown.
    size = int(_SIZE.search(pathlib.Path('/proc/self/status').read_bytes())[1])
    resource.setrlimit(resource.RLIMIT_AS, (
        (size << 10) + 2 * MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _set_clocks(processor: float, wall: float) -> None:
    """Start the clocks that end this process; 0 stops one."""
    signal.setitimer(signal.ITIMER_PROF, processor)
    signal.setitimer(signal.ITIMER_REAL, wall)


def _say(what: dict) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('place')
    parser.add_argument('--progress', required=True)
    parser.add_argument('--input')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--first', type=int, default=0)
    parser.add_argument('--last', type=int, default=1)
    parser.add_argument('--seconds', type=float, default=float('inf'))
    arguments = parser.parse_args()
    own = fuzz.load(arguments.place)
    inputs = ([pathlib.Path(arguments.input).read_bytes()] if arguments.input
              else harness.Inputs(arguments.place, own, arguments.seed))
    worker = Worker(own, inputs, arguments.progress)
    worker.run(arguments.first, arguments.last, arguments.seconds)
    _say({'counts': dataclasses.asdict(worker.counts)})


if __name__ == '__main__':
    main()

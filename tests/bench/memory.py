# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the threads with which QEMU allocates a guest's memory.

It needs ``qemu-system-x86_64``, but no KVM: the guest does not run. Its memory
is in huge pages if enough of them are free (``vm.nr_hugepages``), otherwise in
small ones.
"""

import collections.abc
import pathlib
import re
import shutil
import statistics
import subprocess
import time

from tests.bench import frame
from tests.bench import report as report_

#: How the number of threads is given, by side.
ONE, ALL, DEFAULT, LATER = (
    'one thread', 'one for each CPU', 'no number', 'allocated later')

# Size of the guest's memory in MiB, and rounds, by scale.
_SCALES = {frame.QUICK: (256, 1), frame.MEDIUM: (1024, 9),
           frame.FULL: (6144, 15)}
_HUGE_PAGES = pathlib.Path('/sys/kernel/mm/hugepages/hugepages-2048kB')
_QEMU = 'qemu-system-x86_64'
#: Timeout in seconds for one start.
_LIMIT = 600


def measure(scale: str, say: collections.abc.Callable[[str], None]) -> dict:
    """Start QEMU with each number of threads in turn.

    :raises RuntimeError: if there is no QEMU
    """
    if not shutil.which(_QEMU):
        raise RuntimeError(f'no {_QEMU} on the PATH')
    size, rounds = _SCALES[scale]
    cpus = frame.machine()['cores']
    huge = 2 * int((_HUGE_PAGES / 'free_hugepages').read_text()) >= size
    memory = f'size={size}M,share=on' + (
        ',hugetlb=on,hugetlbsize=2M' if huge else '')
    options = {ONE: ',prealloc=on,prealloc-threads=1',
               ALL: f',prealloc=on,prealloc-threads={cpus}',
               DEFAULT: ',prealloc=on', LATER: ''}
    seconds = {side: [] for side in options}
    # A virtual machine gets memory from its host when it first uses it.
    _start(size, cpus, memory + options[ALL])
    for _round in range(rounds):
        for side, took in seconds.items():
            took.append(_start(size, cpus, memory + options[side]))
            say(f'{side}: {took[-1]:.2f} s')
    return {'qemu': _version(), 'cpus': cpus, 'mib': size, 'huge': huge,
            'seconds': seconds}


def _start(size: int, cpus: int, memory: str) -> float:
    begin = time.perf_counter()
    subprocess.run(
        [_QEMU, '-accel', 'tcg', '-machine', 'q35,memory-backend=m', '-S',
         '-smp', str(cpus), '-m', f'{size}M', '-object',
         f'memory-backend-memfd,id=m,{memory}',
         '-nodefaults', '-display', 'none', '-monitor', 'stdio'],
        input=b'quit\n', capture_output=True, check=True, timeout=_LIMIT)
    return time.perf_counter() - begin


def _version() -> str:
    said = subprocess.run([_QEMU, '--version'], capture_output=True, text=True,
                          check=True).stdout
    return re.search(r'version ([\d.]+)', said)[1]


def report(figures: collections.abc.Mapping) -> report_.Report:
    seconds, cpus = figures['seconds'], figures['cpus']
    number = report_.significant

    def ratio(side: str) -> str:
        return number(statistics.median(
            ours / other for ours, other in zip(
                seconds[side], seconds[ONE], strict=True)))

    return report_.Report(
        'Allocating the memory of a guest',
        (f'QEMU {figures["qemu"]} starts with {figures["mib"]:,} MiB of '
         f'allocated memory and {cpus} threads in **{ratio(ALL)} times** the '
         'time with one thread, and without a number in '
         f'**{ratio(DEFAULT)} times** that time.',
         'One thread is what QEMU before 7.1 uses if libvirt gives no number. '
         'Later versions use as many as the guest has CPUs, which is also '
         'what ``[nova_accel] memory_allocation_threads`` sets. Each round '
         'starts QEMU in each way in turn, with memory in '
         f'{"huge" if figures["huge"] else "small"} pages and {cpus} CPUs for '
         'the guest, and ends it before the guest runs. Each ratio is the '
         'median of those of the rounds.'),
        (report_.Table(
            'Starts of QEMU',
            ('Threads', 'Rounds', 'Median, s', 'Least, s', 'Most, s'),
            tuple((side, str(len(took)), number(statistics.median(took)),
                   number(min(took)), number(max(took)))
                  for side, took in seconds.items())),))

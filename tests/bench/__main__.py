# SPDX-License-Identifier: Apache-2.0
"""Run the benchmarks: ``python -m tests.bench [names] [--quick | --full]``.

It prints the results, and writes them where the documentation includes them. A
quick run only checks that the benchmarks work, and writes nothing. No
benchmark fails because of a duration.
"""

import argparse
import functools
import pathlib
import sys
import time

from tests.bench import frame
from tests.bench import summary

#: The benchmarks that need Python only, the shortest first.
NAMES = ('filtering', 'unlike', 'plan', 'packing', 'quality', 'listing',
         'ways', 'updates', 'domains', 'crowded', 'few', 'scheduling')
#: Those that need other programs, and are only run by name.
OTHERS = ('memory',)


def main() -> int:
    arguments = _parse()
    directory = arguments.directory or (
        None if arguments.scale == frame.QUICK else frame.DIRECTORY)
    for name in arguments.names or NAMES:
        if arguments.again:
            result = frame.read(name, directory or frame.DIRECTORY)
        else:
            result = frame.measure(
                name, arguments.scale,
                functools.partial(_say, time.monotonic(), name))
        print(frame.section(result), flush=True)
        if arguments.again:
            frame.write_report(result, directory or frame.DIRECTORY)
        elif directory:
            frame.write(result, directory)
    if directory == frame.DIRECTORY:
        (directory / summary.FILE).write_text(summary.section())
    return 0


def _say(begin, name, text) -> None:
    print(f'{time.monotonic() - begin:7.1f} s  {name}: {text}',
          file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m tests.bench')
    parser.add_argument('names', nargs='*', metavar='name',
                        help=f'some of: {", ".join(NAMES)} (default: all); '
                             f'{", ".join(OTHERS)}')
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument('--quick', action='store_const', dest='scale',
                       const=frame.QUICK, help='the smallest scale, a '
                       'minute or two; writes nothing')
    scale.add_argument('--full', action='store_const', dest='scale',
                       const=frame.FULL, help='the scale of the '
                       'documentation, more than an hour')
    scale.add_argument('--again', action='store_true', help='measure '
                       'nothing, write tables and plots of the stored figures')
    parser.add_argument('--directory', type=pathlib.Path,
                        help='where to write')
    parser.set_defaults(scale=frame.MEDIUM)
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {*NAMES, *OTHERS}:
        parser.error(f'no such benchmark: {", ".join(sorted(unknown))}')
    return arguments


if __name__ == '__main__':
    sys.exit(main())

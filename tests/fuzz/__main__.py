# SPDX-License-Identifier: Apache-2.0
"""Fuzz what others write: ``python -m tests.fuzz --seconds 600 profiles``."""

import argparse
from concurrent import futures
import sys

from tests import fuzz
from tests.fuzz import campaign
from tests.fuzz import worker


def main() -> int:
    arguments = _arguments()
    if arguments.input:
        [name] = arguments.harness
        return _report(name, campaign.again(name, arguments.input))
    names = arguments.harness or [*fuzz.HARNESSES]
    amount = {'inputs': arguments.inputs} if arguments.seconds is None else {
        'seconds': arguments.seconds * arguments.jobs / len(names)}
    print(f'{"harness":16}{"inputs":>10}{"accepted":>10}{"inputs/s":>10}'
          f'{"slowest":>10}{"largest":>10}{"failures":>10}', flush=True)
    total, failures = campaign.Result(), 0
    with futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for name, result in zip(names, pool.map(
                lambda name: campaign.fuzz(name, arguments.seed, **amount),
                names), strict=True):
            _show(name, result)
            failures += _report(name, result, arguments.seed)
            total.counts.add(result.counts)
            total.seconds += result.seconds
    _show('all', total)
    return int(failures > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        'tests.fuzz', description=__doc__, epilog='The bounds of one input: '
        f'{worker.SECONDS} seconds, {worker.MEMORY >> 20} MB.')
    parser.add_argument('harness', nargs='*', metavar='HARNESS',
                        help=f'{", ".join(fuzz.HARNESSES)} (default: all)')
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument('--seconds', type=float, metavar='N',
                        help='seconds for all harnesses together')
    amount.add_argument('--inputs', type=int, default=1000, metavar='N',
                        help='inputs for each harness (%(default)s)')
    amount.add_argument('--input', metavar='FILE',
                        help='give a harness only this input')
    parser.add_argument('--seed', type=int, default=1, metavar='N',
                        help='of the random changes (%(default)s)')
    parser.add_argument('--jobs', type=int, default=1, metavar='N',
                        help='harnesses at the same time (%(default)s)')
    arguments = parser.parse_args()
    unknown = {*arguments.harness} - {*fuzz.HARNESSES}
    if unknown:
        parser.error(f'there is no harness {min(unknown)}')
    if arguments.input and len(arguments.harness) != 1:
        parser.error('--input needs the name of one harness')
    return arguments


def _show(name: str, result: campaign.Result) -> None:
    counts = result.counts
    print(f'{name:16}{counts.inputs:10}'
          f'{counts.accepted / max(1, counts.inputs):10.0%}'
          f'{counts.inputs / max(0.01, result.seconds):10.0f}'
          f'{counts.slowest:8.2f} s{counts.largest >> 20:7} MB'
          f'{len(result.failures):10}', flush=True)


def _report(name: str, result: campaign.Result, seed: int | None = None,
            ) -> int:
    """Print the failures, and return how many there are.

    :param seed: None if the input was read from a file
    """
    for failure in result.failures.values():
        print(f'\n{failure.why.strip()}')
        if seed is not None:
            path = campaign.write(name, seed, failure.number)
            print(f'{failure.others} other inputs failed there. Once more:\n'
                  f'    python -m tests.fuzz {name} --input {path}\n',
                  flush=True)
    return len(result.failures)


if __name__ == '__main__':
    sys.exit(main())

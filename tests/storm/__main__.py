# SPDX-License-Identifier: Apache-2.0
"""Run storms: ``python -m tests.storm --seeds 20 --steps 200``."""

import argparse
from concurrent import futures
import json
import subprocess
import sys


def main() -> int:
    arguments = _arguments()
    seeds = arguments.seed or range(1, arguments.seeds + 1)
    results = []
    with futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for done in futures.as_completed(
                [pool.submit(_blow, seed, arguments)
                 for seed in seeds]):
            results.append(done.result())
            if not arguments.json:
                _show(done.result())
    calm = not any(result['problems'] for result in results)
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        print(f'{len(results)} seeds, '
              f'{sum(result["steps"] for result in results)} steps, '
              f'{sum(bool(result["problems"]) for result in results)} '
              'violated')
    return 0 if calm else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser('storm', description=__doc__)
    parser.add_argument('--seeds', type=int, default=20, metavar='N',
                        help='run the seeds from 1 to N (%(default)s)')
    parser.add_argument('--seed', type=int, action='append', metavar='SEED',
                        help='run only this seed; can be repeated')
    parser.add_argument('--steps', type=int, default=200,
                        help='number of steps of each seed (%(default)s)')
    parser.add_argument('--jobs', type=int, default=1,
                        help='number of seeds to run at the same time '
                        '(%(default)s)')
    parser.add_argument('--entries', action='store_true',
                        help='also change device_spec, reboot hosts and kill '
                        'nova-compute')
    parser.add_argument('--clean', action='store_true',
                        help='with --entries: devices have cleaners')
    parser.add_argument('--domains', action='store_true',
                        help='server groups have to be in one host domain')
    parser.add_argument('--fabric', action='store_true',
                        help='GPUs are behind NVSwitches, and fabric managers '
                        'fail')
    parser.add_argument('--json', action='store_true',
                        help='print one JSON document at the end')
    return parser.parse_args()


def _blow(seed: int, arguments: argparse.Namespace) -> dict:
    # Each seed has its own process, so that seeds do not affect each other.
    finished = subprocess.run(
        [sys.executable, '-W', 'ignore', '-m', 'tests.storm.seed', str(seed),
         str(arguments.steps),
         *(f'--{kind}' for kind in ('entries', 'clean', 'domains', 'fabric')
           if getattr(arguments, kind))],
        stdout=subprocess.PIPE, text=True)
    if finished.returncode:
        return {'seed': seed, 'steps': 0, 'counts': {}, 'seconds': 0,
                'history': [],
                'problems': [f'exit code {finished.returncode}']}
    return json.loads(finished.stdout)


def _show(result: dict) -> None:
    counts = '; '.join(
        f'{name} ' + ', '.join(f'{count} {outcome}' for outcome, count
                               in sorted(outcomes.items()))
        for name, outcomes in sorted(result['counts'].items()))
    verdict = 'violated' if result['problems'] else 'ok'
    print(f'seed {result["seed"]}: {verdict}, {result["steps"]} steps, '
          f'{result["seconds"]} s: {counts}', flush=True)
    if result['problems']:
        print('\n'.join([*result['history'], *result['problems']]), flush=True)


if __name__ == '__main__':
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Run Nova's libvirt tests with Nova's and with nova_accel's driver:
``python -m tests.suite [--json] [--concurrency N] [TESTS]``.

The exit code is 0 if each test has the same outcome with both drivers, 1 if an
outcome differs, and 2 if no test was run.
"""

import argparse
import json
import sys

from tests.suite import comparison
from tests.suite import side


def main() -> int:
    parser = argparse.ArgumentParser('suite', description=__doc__)
    parser.add_argument('tests', nargs='?', default='',
                        help='regular expression that selects the tests')
    parser.add_argument('--json', action='store_true',
                        help='print the result as JSON')
    parser.add_argument('--concurrency', type=int, default=0,
                        help='processes; one per processor if left out')
    arguments = parser.parse_args()
    outcomes = [side.run(name, arguments.tests, arguments.concurrency)
                for name in (side.STOCK, side.OURS)]
    if not any(outcomes):
        parser.exit(2, 'No test was run\n')
    compared = comparison.Comparison(*outcomes)
    if arguments.json:
        print(json.dumps(compared.facts(), indent=2))
    else:
        print(compared.text())
    return 1 if compared.differences else 0


if __name__ == '__main__':
    sys.exit(main())

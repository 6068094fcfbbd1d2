# SPDX-License-Identifier: Apache-2.0
"""Run Nova's own libvirt tests with its driver and with ours, and compare:
``python -m tests.suite [--json] [--concurrency N] [TESTS]``.

Ends with 0 if each test has the same outcome with both, with 1 if one has
not, and with 2 if there was no test.
"""

import argparse
import json
import sys

from tests.suite import comparison
from tests.suite import side


def main() -> int:
    parser = argparse.ArgumentParser('suite', description=__doc__)
    parser.add_argument('tests', nargs='?', default='',
                        help='regular expression that names the tests')
    parser.add_argument('--json', action='store_true',
                        help='one JSON document, for programs')
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

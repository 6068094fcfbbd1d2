# SPDX-License-Identifier: Apache-2.0
"""Run the demo: ``python -m tests.demo [--json]``."""

import argparse
import sys
import unittest

from tests import quiet
from tests.demo import screen


def main() -> int:
    parser = argparse.ArgumentParser('demo', description=__doc__)
    parser.add_argument('--json', action='store_true',
                        help='one JSON document at the end, for programs')
    as_json = parser.parse_args().json
    with quiet.quiet() as (out, err):
        shown = screen.Screen(out, as_json)
        result = _tell(shown)
        for _case, trace in (*result.errors, *result.failures):
            print(trace[-4000:], file=err)
        shown.close(result.wasSuccessful())
    return 0 if result.wasSuccessful() else 1


def _tell(shown: screen.Screen) -> unittest.TestResult:
    with shown.step('Nova is loaded'):
        from tests.demo import story
    result = unittest.TestResult()
    story.Story('tell', shown).run(result)
    return result


if __name__ == '__main__':
    sys.exit(main())

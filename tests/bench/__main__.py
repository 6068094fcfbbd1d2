# SPDX-License-Identifier: Apache-2.0
"""Run the benchmarks: ``python -m tests.bench``. JSON on standard output."""

import json
import sys
import unittest

from tests import quiet


def main() -> int:
    figures: dict = {}
    with quiet.quiet() as (out, err):
        result = _measure(figures)
        for _case, trace in (*result.errors, *result.failures):
            print(trace[-4000:], file=err)
        print(json.dumps(figures, indent=2), file=out)
    return 0 if result.wasSuccessful() else 1


def _measure(figures: dict) -> unittest.TestResult:
    from tests.bench import candidates
    from tests.bench import updates
    figures['filter'] = candidates.measure()
    result = unittest.TestResult()
    unittest.TestSuite(updates.cases(
        figures.setdefault('update', {}))).run(result)
    return result


if __name__ == '__main__':
    sys.exit(main())

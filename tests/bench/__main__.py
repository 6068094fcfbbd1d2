# SPDX-License-Identifier: Apache-2.0
"""Run the benchmarks: ``python -m tests.bench``. JSON on standard output."""

import json
import os
import sys
import tempfile
import unittest


def main() -> int:
    figures: dict = {}
    with (os.fdopen(os.dup(1), 'w') as out, os.fdopen(os.dup(2), 'w') as err,
          tempfile.TemporaryFile() as noise):
        # Nova logs and warns on both.
        os.dup2(noise.fileno(), 1)
        os.dup2(noise.fileno(), 2)
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

# SPDX-License-Identifier: Apache-2.0
"""Run one storm: ``python -m tests.storm.seed 7 200``.

The arguments are the seed and the number of steps. The result is JSON on
standard output.
"""

import json
import sys
import time
import traceback
import unittest

from tests import quiet


def main() -> int:
    seed, steps = map(int, sys.argv[1:3])
    kind = next((kind for kind in ('clean', 'domains', 'entries', 'fabric')
                 if f'--{kind}' in sys.argv[3:]), '')
    with quiet.quiet() as (out, err):
        try:
            print(json.dumps(_blow(seed, steps, kind)), file=out)
        except Exception:
            # The storm returns its own errors, so this is another error.
            traceback.print_exc(file=err)
            raise
    return 0


def _blow(seed: int, steps: int, kind: str) -> dict:
    from tests.storm import cleaning
    from tests.storm import domains
    from tests.storm import entries
    from tests.storm import fabric
    from tests.storm import storm

    class Seed({'clean': cleaning.CleaningStorm,
                'domains': domains.DomainStorm,
                'entries': entries.EntryStorm,
                'fabric': fabric.FabricStorm}.get(kind, storm.Storm)):
        def runTest(self):
            self.blow(seed, steps, log)

    log = storm.Log()
    result = unittest.TestResult()
    began = time.monotonic()
    Seed().run(result)
    problems = [trace for _case, trace in (*result.errors, *result.failures)]
    return {'seed': seed, 'steps': log.step, 'counts': log.counts,
            'seconds': round(time.monotonic() - began),
            'history': log.lines, 'problems': problems}


if __name__ == '__main__':
    sys.exit(main())

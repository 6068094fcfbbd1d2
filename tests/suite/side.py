# SPDX-License-Identifier: Apache-2.0
"""One side of the comparison: the suite, run by stestr in other processes."""

import dataclasses
import io
import os
import pathlib
import subprocess
import sys
import tempfile

import subunit
import testtools

#: Environment variable by which tests.suite.cases knows its side.
VARIABLE = 'NOVA_ACCEL_SUITE'

STOCK = 'stock'
OURS = 'ours'

_ROOT = pathlib.Path(__file__).parent.parent.parent


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a test ended: success, fail, skip, xfail, ...; and why."""

    status: str
    reason: str = ''


def run(name: str, tests: str, concurrency: int) -> dict[str, Outcome]:
    """Run a side.

    :param tests: regular expression; empty for all
    :param concurrency: how many processes; 0 for one per processor
    :return: outcomes by the id of the test
    """
    with tempfile.TemporaryDirectory() as repository:
        stestr = [sys.executable, '-m', 'stestr', '--repo-url', repository,
                  '--test-path', 'tests/suite/cases', '--top-dir', '.']
        environment = {
            'OS_STDOUT_CAPTURE': '1', 'OS_STDERR_CAPTURE': '1',
            'OS_TEST_TIMEOUT': '600', 'PYTHONWARNINGS': 'ignore',
            **os.environ, VARIABLE: name}
        # It takes long, so it is seen; standard output is for the result.
        # What stestr has for standard error is what tests log after their end.
        subprocess.run(
            [*stestr, 'run', '--suppress-attachments', '--concurrency',
             str(concurrency), tests],
            cwd=_ROOT, env=environment, stdout=sys.stderr,
            stderr=subprocess.DEVNULL)
        stream = subprocess.run(
            [*stestr, 'last', '--subunit'], cwd=_ROOT, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return _read(stream)


def _read(stream: bytes) -> dict[str, Outcome]:
    outcomes = {}

    def note(test):
        outcomes[test['id']] = Outcome(test['status'],
                                       _reason(test['details']))

    result = testtools.StreamToDict(note)
    result.startTestRun()
    subunit.ByteStreamToStreamResult(
        io.BytesIO(stream), non_subunit_name='noise').run(result)
    result.stopTestRun()
    outcomes.pop('noise', None)
    return outcomes


def _reason(details) -> str:
    """The last line of what a test says of its end."""
    text = ''.join(details[name].as_text() for name in
                   ('traceback', 'reason') if name in details)
    return text.strip().rpartition('\n')[2]

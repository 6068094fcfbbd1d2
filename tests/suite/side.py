# SPDX-License-Identifier: Apache-2.0
"""One side of the comparison: run the tests with stestr in child processes."""

import dataclasses
import io
import os
import pathlib
import subprocess
import sys
import tempfile

import subunit
import testtools

#: The environment variable that tells tests.suite.cases its side.
VARIABLE = 'NOVA_ACCEL_SUITE'

STOCK = 'stock'
OURS = 'ours'

_ROOT = pathlib.Path(__file__).parent.parent.parent


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The status of a test: success, fail, skip, xfail, ...; and why."""

    status: str
    reason: str = ''


def run(name: str, tests: str, concurrency: int) -> dict[str, Outcome]:
    """Run a side.

    :param tests: a regular expression; empty for all tests
    :param concurrency: the number of processes; 0 for one per processor
    :return: outcomes by test id
    """
    with tempfile.TemporaryDirectory() as repository:
        stestr = [sys.executable, '-m', 'stestr', '--repo-url', repository,
                  '--test-path', 'tests/suite/cases', '--top-dir', '.']
        environment = {
            'OS_STDOUT_CAPTURE': '1', 'OS_STDERR_CAPTURE': '1',
            'OS_TEST_TIMEOUT': '600', 'PYTHONWARNINGS': 'ignore',
            **os.environ, VARIABLE: name}
        # Show the progress on standard error. Standard output is for the
        # result. stestr's standard error has only late logs of tests.
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
    """Return the last line of a test's traceback or skip reason."""
    text = ''.join(details[name].as_text() for name in
                   ('traceback', 'reason') if name in details)
    return text.strip().rpartition('\n')[2]

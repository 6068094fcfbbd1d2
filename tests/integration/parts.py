# SPDX-License-Identifier: Apache-2.0
"""The parts of the integration test, and how each is prepared and run."""

from collections.abc import Callable
import dataclasses
import pathlib
import pkgutil
import subprocess
import sys
import time
from xml.etree import ElementTree

from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import cloud

_HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Part:
    """A folder of tests, or a module to run.

    :param about: one line for the command line's help
    :param install: functions, as ``module:function``, to call with the steps
        before the cloud starts: outside of its namespaces they can download
        and build
    :param words: arguments for pytest or the module
    :param machines: how many nested machines run at the same time
    """

    about: str
    folder: str | None = None
    module: str | None = None
    install: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    machines: int = 0

    def prepare(self, shown: steps.Steps) -> None:
        for name in self.install:
            pkgutil.resolve_name(f'{__package__}.{name}')(shown)


_MACHINE = ('machine.built:install',)

#: By the names that the command line accepts.
PARTS = {
    '1': Part('a cloud with the devices of a recorded machine', 'stage1'),
    '2': Part('a nested compute node with emulated devices', 'stage2',
              install=_MACHINE, machines=1),
    '3': Part('servers that move between two nested compute nodes', 'stage3',
              install=_MACHINE, machines=2),
    '4': Part('the page "Get started", to a guest that lists its devices',
              'stage4', install=_MACHINE, machines=1),
    'smoke': Part('one test of 2: two servers get the same device in turn',
                  'stage2', install=_MACHINE, words=('-m', 'smoke'),
                  machines=1),
    'storm': Part('random operations and kills on two nested compute nodes',
                  module='storm.command', install=_MACHINE, machines=2),
    'bench': Part('boots and deletes, compared with Cyborg',
                  module='versus.command'),
    'plain': Part("boots without a device, compared with Nova's own devices",
                  module='versus.plain_command'),
    'tempest': Part("Tempest with Cyborg's tests, on nova_accel's devices",
                    module='tempest.command',
                    install=('tempest.environment:install',)),
}


@dataclasses.dataclass
class Result:
    """The result of a part.

    :param outcomes: the outcome of each test: 'passed', 'failed', 'error' or
        'skipped'
    """

    seconds: float
    outcomes: dict[str, str]

    @property
    def good(self) -> bool:
        """Whether tests ran and none of them failed."""
        return bool(self.outcomes) and not any(
            outcome in ('failed', 'error')
            for outcome in self.outcomes.values())


def run(name: str, say: Callable[[str], None], *words: str) -> Result:
    """Run a part in the namespaces of the running cloud.

    :param say: called with each line of its output
    :param words: more arguments for pytest or the module
    """
    part = PARTS[name]
    words = (*part.words, *words)
    if part.module:
        start = time.monotonic()
        code = _say(say, f'{__package__}.{part.module}', *words)
        return Result(time.monotonic() - start,
                      {part.module: 'failed' if code else 'passed'})
    report = place.LOG / f'scenarios-{name}.xml'
    report.unlink(missing_ok=True)
    _say(say, 'pytest', '-v', '-p', 'no:cacheprovider',
         f'--junitxml={report}', _HERE / part.folder, *words)
    return read(report)


def _say(say, *words):
    with subprocess.Popen(
            [sys.executable, '-u', '-m', *map(str, words)], cwd=place.ROOT,
            env=cloud.environment(), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            say(line.rstrip('\n'))
    return process.returncode


def read(report: pathlib.Path) -> Result:
    """Return the results in pytest's report, none if pytest wrote none."""
    if not report.exists():
        return Result(0, {})
    suite = ElementTree.parse(report).find('testsuite')
    return Result(float(suite.get('time')), {
        f'{case.get("classname")}.{case.get("name")}': _outcome(case)
        for case in suite.iterfind('testcase')})


def _outcome(case):
    for child in case:
        if child.tag in _OUTCOMES:
            return _OUTCOMES[child.tag]
    return 'passed'


_OUTCOMES = {'failure': 'failed', 'error': 'error', 'skipped': 'skipped'}

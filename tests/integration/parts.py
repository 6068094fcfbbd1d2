# SPDX-License-Identifier: Apache-2.0
"""The parts of the test: which scenarios, and what is made ready for them."""

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
    """Scenarios of a folder, or a module that is run instead.

    ``install`` are functions, as ``module:function``, that are called with the
    steps before there is a cloud: on the machine itself, where they can
    download and build. ``words`` are pytest's, or the module's. ``machines``
    is how many nested machines there are at a time.
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

#: By what they are asked for by on the command line.
PARTS = {
    '1': Part('the cloud, with accelerators of a recorded machine', 'stage1'),
    '2': Part('a compute node whose devices a kernel really drives', 'stage2',
              install=_MACHINE, machines=1),
    '3': Part('servers that move between two such', 'stage3',
              install=_MACHINE, machines=2),
    '4': Part('the page "Get started", to a guest that lists its devices',
              'stage4', install=_MACHINE, machines=1),
    'smoke': Part('one device of 2, and the next server that has it',
                  'stage2', install=_MACHINE, words=('-m', 'smoke'),
                  machines=1),
    'bench': Part('boots and deletes beside Cyborg',
                  module='versus.command'),
    'plain': Part("boots without a device beside Nova's own PCI devices",
                  module='versus.plain_command'),
    'tempest': Part("Cyborg's scenarios of tempest with our devices",
                    module='tempest.command',
                    install=('tempest.environment:install',)),
}


@dataclasses.dataclass
class Result:
    """What came of a part: seconds, and the outcome of each scenario."""

    seconds: float
    outcomes: dict[str, str]

    @property
    def good(self) -> bool:
        """Whether there are scenarios and none of them failed."""
        return bool(self.outcomes) and not any(
            outcome in ('failed', 'error')
            for outcome in self.outcomes.values())


def run(name: str, say: Callable[[str], None], *words: str) -> Result:
    """Run a part, in the namespaces of a cloud that is up.

    :param say: is called with each line that it says
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
    """What pytest reported; nothing at all if it could not even begin."""
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

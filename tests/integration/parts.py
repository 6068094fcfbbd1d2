# SPDX-License-Identifier: Apache-2.0
"""The parts of the test: which scenarios, and what is made ready for them."""

from collections.abc import Callable
import dataclasses
import importlib
import pathlib
import subprocess
import sys
from xml.etree import ElementTree

from tests.integration import place
from tests.integration import steps

_HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Part:
    """Scenarios of a folder.

    ``needs`` are modules whose ``prepare(steps)`` is called before there is a
    cloud, on the machine itself: there it can download and install.
    """

    folder: str
    about: str
    needs: tuple[str, ...] = ()

    def prepare(self, shown: steps.Steps) -> None:
        for name in self.needs:
            importlib.import_module(name).prepare(shown)


#: By what they are asked for by on the command line.
PARTS = {
    '1': Part('stage1', 'the cloud, accelerators from a recorded machine'),
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


def run(name: str, say: Callable[[str], None], *arguments: str) -> Result:
    """Run a part's scenarios, in the namespaces of a cloud that is up."""
    report = place.LOG / f'scenarios-{name}.xml'
    report.unlink(missing_ok=True)
    pytest = subprocess.Popen(
        [sys.executable, '-m', 'pytest', '-v', '-p', 'no:cacheprovider',
         f'--junitxml={report}', _HERE / PARTS[name].folder, *arguments],
        cwd=place.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True)
    with pytest:
        for line in pytest.stdout:
            say(line.rstrip('\n'))
    return read(report)


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

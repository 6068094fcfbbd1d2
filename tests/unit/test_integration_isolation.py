# SPDX-License-Identifier: Apache-2.0
"""A failing scenario affects no other, and a busy machine fails none."""

import types

import pytest

from tests.integration import place
from tests.integration import processes
from tests.integration import steps
from tests.integration.cloud import bringing
from tests.integration.cloud import configuration
from tests.integration.cloud import leftovers
from tests.integration.machine import clock

pytest_plugins = ['pytester']

#: Scenarios that share fixtures. The fixtures log their use to a file.
_SCENARIOS = """
import pathlib
import pytest

def note(word):
    with open('noted', 'a') as file:
        file.write(word + ' ')

@pytest.fixture(scope='session')
def session():
    note('up')
    yield
    note('down')

@pytest.fixture(scope='module')
def shared(session):
    yield []
    note('ended')

@pytest.fixture
def last(shared):
    yield
    assert 'left' not in shared

def test_one(shared):
    pass

def test_two(shared):
    pass

{}

def test_three(shared):
    assert not shared

def test_four(shared):
    assert not shared
"""


@pytest.mark.parametrize('failing', [
    'def test_fails(shared):\n    shared.append(1)\n    assert False',
    'def test_fails(shared, last):\n    shared.append("left")',
    '@pytest.fixture\ndef broken(shared):\n    shared.append(1)\n    1 / 0\n'
    'def test_fails(broken):\n    pass'], ids=['test', 'end', 'begin'])
def test_shared_fixtures_are_rebuilt_after_a_failure(pytester, failing):
    pytester.makeconftest('from tests.integration.conftest import *')
    pytester.makepyfile(_SCENARIOS.format(failing))
    outcomes = pytester.runpytest().parseoutcomes()
    assert outcomes.pop('failed', 0) + outcomes.pop('errors', 0) == 1
    assert outcomes['passed'] >= 4
    assert (pytester.path / 'noted').read_text().split() == [
        'up', 'ended', 'down'] * 2


class Cloud:
    """A fake cloud that records the calls of its methods."""

    def __init__(self, running):
        self.asked = []
        self.processes = types.SimpleNamespace(names=lambda: running)

    def __getattr__(self, name):
        return lambda *words: self.asked.append((name, *words))


@pytest.fixture
def added(tmp_path, monkeypatch):
    """The directory of added configuration, with its permanent file."""
    monkeypatch.setattr(configuration, '_added', lambda _program: tmp_path)
    (tmp_path / '00-install-guide.conf').touch()
    return tmp_path


def restored(running):
    cloud = Cloud(running)
    leftovers.restore(cloud)
    return cloud.asked


def test_exited_services_are_started_and_extra_ones_stopped(added):
    running = [name for name in bringing.SERVICES if name != 'rabbitmq']
    assert restored([*running, 'nova-api-2', 'machine-1']) == [
        ('stop', 'nova-api-2'), ('start', 'rabbitmq'), ('recovered',)]


def test_added_configuration_is_removed(added):
    (added / 'limits.conf').touch()
    [_start, restart, recovered] = restored(bringing.SERVICES)
    assert restart[0] == 'restart'
    assert recovered == ('recovered',)
    assert [file.name for file in added.iterdir()] == ['00-install-guide.conf']


def test_nothing_is_restarted_without_leftovers(added):
    assert restored(bringing.SERVICES) == [('start',)]


class Time:
    """Fake time, and fake time that a machine waited for a CPU."""

    def __init__(self, monkeypatch, tmp_path):
        self.now = self.queued = 0
        monkeypatch.setattr(place, 'RUN', tmp_path)
        monkeypatch.setattr(clock, 'time', types.SimpleNamespace(
            monotonic=lambda: self.now))
        monkeypatch.setattr(clock, '_queued', lambda _file: self.queued)
        self.processes = processes.Processes(tmp_path, tmp_path)

    def passes(self, seconds, queued=0):
        self.now += seconds
        self.queued += queued


@pytest.fixture
def passing(monkeypatch, tmp_path):
    passing = Time(monkeypatch, tmp_path)
    passing.processes.start('machine-1', ['sleep', '60'], {}, tmp_path)
    yield passing
    passing.processes.kill('machine-1')


def test_queued_time_does_not_count(passing):
    passed = clock.Clock()
    passing.passes(10)
    assert passed() == 10
    passing.passes(10, queued=8)
    assert passed() == 12
    passing.passes(1)
    assert passed() == 13


def test_exited_machine_ends_the_wait(passing, tmp_path):
    passed = clock.Clock()
    passing.processes.start('machine-2', ['true'], {}, tmp_path)
    with pytest.raises(steps.Final, match='machine-2 ended'):
        steps.wait('its end', passed, 20)
    # A machine that was stopped on purpose does not count.
    passing.processes.kill('machine-2')
    assert passed() == 0

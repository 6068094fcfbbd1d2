# SPDX-License-Identifier: Apache-2.0
"""The contract tests: fmpm passes them, managers that break it do not."""

import tempfile
import unittest

import pytest

from nova_accel import testing
from nova_accel.core.fabric import fmpm as command
from nova_accel.core.fabric import manager
from nova_accel.host import loader
from tests import fmpm

_PARTITIONS = {0: (1, 2, 3), 1: (1, 3), 2: (2,)}
_Failure = manager.Failure


class FmpmTest(testing.FabricTests, unittest.TestCase):
    manager = 'fmpm'
    restart_mode = False

    def start(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self._manager = fmpm.FabricManager(
            folder.name, partitions=_PARTITIONS,
            restart_mode=self.restart_mode)
        return self._manager.option()

    def stop(self):
        self._manager.stop()

    def restart(self):
        self._manager.restart()


class FmpmInRestartModeTest(FmpmTest):
    restart_mode = True


class _Right:
    """A manager that keeps the contract; its state outlives the object."""

    state: dict

    def __init__(self, _settings, _operations):
        pass

    def partitions(self):
        self._answer()
        return [manager.Partition(
            number, tuple(map(manager.Member, modules)),
            number in self.state['active'])
            for number, modules in _PARTITIONS.items()]

    def activate(self, partition, functions=()):
        self._answer(partition)
        if functions and len(functions) != len(_PARTITIONS[partition]):
            raise self._error(_Failure.OTHER)
        if self._conflicts(partition):
            raise self._error(_Failure.IN_USE)
        self.state['active'].add(partition)

    def deactivate(self, partition):
        self._answer(partition)
        if partition not in self.state['active']:
            raise self._error(_Failure.NOT_ACTIVE)
        self.state['active'].remove(partition)

    def restore(self, active):
        self._answer(waits=True)
        self.state.update(active=set(active), waits=False)

    def failed_links(self):
        self._answer()
        return []

    def _answer(self, *numbers, waits=False):
        if not self.state['running']:
            raise self._error(_Failure.UNREACHABLE)
        if self.state['waits'] and not waits:
            raise self._error(_Failure.NOT_READY)
        if not _PARTITIONS.keys() >= set(numbers):
            raise self._error(_Failure.UNKNOWN_PARTITION)

    def _conflicts(self, partition):
        return any(set(_PARTITIONS[partition]) & set(_PARTITIONS[other])
                   for other in self.state['active'])

    def _error(self, failure):
        return manager.FabricError(failure, 'thing', 'reason')


class _SameNumbers(_Right):
    def partitions(self):
        return [*super().partitions(), super().partitions()[0]]


class _OtherOrder(_Right):
    turns = 0

    def partitions(self):
        type(self).turns += 1
        return [manager.Partition(one.id, one.members[::(-1) ** self.turns],
                                  one.is_active)
                for one in super().partitions()]


class _InMemory(_Right):
    def __init__(self, *arguments):
        self.state = {'active': set(), **{
            key: value for key, value in self.state.items()
            if key != 'active'}}


class _ActivatesTwice(_Right):
    def _conflicts(self, partition):
        return partition not in self.state['active'] and (
            super()._conflicts(partition))


class _SharesCards(_Right):
    def _conflicts(self, partition):
        return partition in self.state['active']


class _DeactivatesAll(_Right):
    def deactivate(self, partition):
        super().deactivate(partition)
        self.state['active'].clear()


class _DeactivatesAlways(_Right):
    def deactivate(self, partition):
        self._answer(partition)
        self.state['active'].discard(partition)


class _KnowsAll(_Right):
    def deactivate(self, partition):
        if partition in _PARTITIONS:
            super().deactivate(partition)


class _IgnoresFunctions(_Right):
    def activate(self, partition, functions=()):
        super().activate(partition)


class _SilentIsEmpty(_Right):
    def partitions(self):
        return super().partitions() if self.state['running'] else []


class _ForgetsRestored(_Right):
    def restore(self, active):
        super().restore(())


class _CountsLinksByTrying(_Right):
    def failed_links(self):
        found = super().failed_links()
        self.state['active'].clear()
        return found


class _Traces(_Right):
    def _error(self, failure):
        return manager.FabricError(failure, 'thing', 'Trace\n  line 1')


def _run(fabric, monkeypatch):
    """Return the tests that a manager fails."""
    class Tests(testing.FabricTests, unittest.TestCase):
        manager = 'right'
        takes_functions = True

        def start(self):
            fabric.state = {'active': set(), 'running': True, 'waits': False}
            return '{"manager": "right", "modules": {"1": "0000:1b:00.0"}}'

        def stop(self):
            fabric.state['running'] = False

        def restart(self):
            fabric.state.update(waits=True, active=set())

    monkeypatch.setattr(loader, 'load_fabric_managers', lambda: {
        'right': manager.FabricManager(open=fabric)})
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
    assert result.testsRun > 10
    return {test.id().split('.test_')[-1]
            for test, _trace in (*result.failures, *result.errors)}


def test_manager_that_keeps_the_contract_passes(monkeypatch):
    assert _run(_Right, monkeypatch) == set()


@pytest.mark.parametrize('fabric, broken', [
    (_SameNumbers, 'partitions_have_numbers_and_members'),
    (_OtherOrder, 'listing_changes_nothing'),
    (_InMemory, 'active_partition_is_listed_whoever_activated_it'),
    (_ActivatesTwice, 'active_partition_cannot_be_activated'),
    (_SharesCards, 'partition_with_a_card_in_use_cannot_be_activated'),
    (_DeactivatesAll, 'only_the_deactivated_partition_becomes_inactive'),
    (_DeactivatesAlways, 'inactive_partition_cannot_be_deactivated'),
    (_KnowsAll, 'unknown_partition_is_refused'),
    (_IgnoresFunctions, 'virtual_functions'),
    (_SilentIsEmpty, 'manager_that_does_not_answer'),
    (_ForgetsRestored, 'restart'),
    (_CountsLinksByTrying, 'failed_links_change_nothing'),
    (_Traces, 'active_partition_cannot_be_activated')])
def test_manager_that_breaks_a_promise_fails(monkeypatch, fabric, broken):
    """Most fail only the test of their promise."""
    failed = _run(fabric, monkeypatch)
    assert broken in failed
    assert len(failed) == 1 or fabric in (_InMemory, _Traces)


def test_stand_in_has_the_limit_of_the_header():
    assert fmpm.MAX_PARTITIONS == command.MAX_PARTITIONS

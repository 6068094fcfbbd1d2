# SPDX-License-Identifier: Apache-2.0
"""The searches for one request end, however many hosts there are.

The tests count steps themselves and do not trust the module's count.
"""

import random
import threading

import pytest

from nova_accel.core import model
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.solver import arrange
from nova_accel.core.solver import explain
from nova_accel.core.solver import search
from nova_accel.core.solver import search_budget

_MOST = 2_000
# Steps that a request of 16 groups gets even without a budget.
_LEAST = 32


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """Return a list that gets an item for every step."""
    steps = []
    original = search._Search._descend

    def descend(self, position, cost):
        if position < len(self.order) and self.steps > 0:
            steps.append(position)
        return original(self, position, cost)

    monkeypatch.setattr(search._Search, '_descend', descend)
    monkeypatch.setattr(search_budget, 'MAX_STEPS', _MOST)
    search.cached.memory.clear()
    explain._explain.memory.clear()
    yield steps
    search.cached.memory.clear()


def _groups(count):
    return {f'ACCEL{index}': device_profile.Group({'GPU': 1}, {})
            for index in range(count)}


def _available(count):
    return [arrange.AvailableUnits(
        str(index), 'GPU', frozenset(), 1,
        model.Place(0, 'r', 's', f'd{index:02d}'), 1)
        for index in range(count)]


def _hard(seed, budget=None):
    """Arrange 16 groups in a chain that no host can serve.

    Each group must be linked to the next, but one side of the links has too
    few devices. Only a search finds this out. Each seed is a new problem.
    """
    pairs = [frozenset({f'd{one:02d}', f'd{other:02d}'})
             for one in range(9) for other in range(9, 16)]
    rules = [affinity.Rule('link_domain', True, (f'ACCEL{index}',
                                                 f'ACCEL{index + 1}'))
             for index in range(15)]
    rules.append(affinity.Rule('device', False, tuple(_groups(16))))
    return arrange.arrange(
        _groups(16), _available(16), rules, arrange.HostContext(
            links=model.Links(islands=tuple(
                random.Random(seed).sample(pairs, 50)))), budget=budget)


def test_hosts_of_a_request_share_its_steps(made):
    budget = search_budget.Budget(2 * _MOST)
    taken = []
    for seed in range(20):
        before = len(made)
        found = _hard(seed, budget)
        assert found.kind == 'limit'
        taken.append(len(made) - before)
    assert taken == [pytest.approx(_MOST, rel=0.1)] * 2 + [_LEAST] * 18


def test_objection_says_that_the_search_gave_up():
    budget = search_budget.Budget(_MOST + 100)
    assert [_hard(seed, budget).objection for seed in range(2)] == [
        'the search for devices that keep its rules gave up after 2000 steps',
        'the search for devices that keep its rules gave up after 100 steps; '
        "other hosts used the rest of the request's steps"]


def test_easy_host_is_answered_after_any_number_of_hard_ones():
    budget = search_budget.Budget(2 * _MOST)
    for seed in range(12):
        _hard(seed, budget)
    rules = [affinity.Rule('device', False, tuple(_groups(16)))]
    for count in range(16, 20):
        found = arrange.arrange(_groups(16), _available(count), rules,
                                budget=budget)
        assert len(set(found.chosen.values())) == 16
    found = arrange.arrange(_groups(16), _available(15), rules,
                            budget=budget)
    assert found.kind == 'units'


def test_single_host_may_take_all_steps(made):
    for seed in range(3):
        before = len(made)
        assert _hard(seed).kind == 'limit'
        assert len(made) - before == pytest.approx(_MOST, rel=0.1)


def test_cached_answer_is_free_and_is_searched_again_with_more_steps(made):
    for steps in 0, 0, 2 * _MOST, 0, 2 * _MOST:
        before = len(made)
        budget = search_budget.Budget(steps)
        assert _hard(1, budget).kind == 'limit'
        if before == 0:
            assert 0 < len(made) <= _LEAST
        elif steps == 2 * _MOST and before <= _LEAST:
            assert len(made) - before > _MOST / 2
        else:
            assert len(made) == before


def test_most_groups_get_enough_steps_without_a_budget(monkeypatch):
    monkeypatch.undo()
    found = arrange.arrange(_groups(search.MAX_DEMANDS), _available(
        search.MAX_DEMANDS), budget=search_budget.Budget(0))
    assert len(set(found.chosen.values())) == search.MAX_DEMANDS


def test_explanation_is_searched_within_the_same_steps(made):
    """Explaining searches once for each rule."""
    budget = search_budget.Budget(0)
    names = tuple(_groups(6))
    rules = [affinity.Rule('link_domain', True, names[index:index + 3])
             for index in range(4)]
    rules.append(affinity.Rule('device', False, names))
    found = arrange.arrange(
        _groups(6), _available(6), rules, arrange.HostContext(
            links=model.Links(partitions=(frozenset({'d00', 'd01', 'd02'}),
                                          frozenset({'d03', 'd04', 'd05'})))),
        budget=budget)
    assert found.kind == 'together'
    assert len(made) <= 6 * 2 * 6


def test_fleet_larger_than_the_cache_is_cached_in_part(
        monkeypatch):
    """The hosts come in the same order each time."""
    monkeypatch.setattr(search_budget, '_MEMORY', 200)
    asked = []
    ask = search_budget.Remembered(
        lambda question, _steps: asked.append(question) or question)
    fleet = [f'{number:09d}' for number in range(30)]
    for _request in range(10):
        for host in fleet:
            ask(host, search_budget.Budget())
    assert len(asked) < 8 * len(fleet)


def test_late_incomplete_answer_of_a_thread_keeps_its_own_steps():
    """The other thread's answer arrives late, and its steps ran out."""
    began, go_on = threading.Event(), threading.Event()

    def answer(_question, steps):
        if steps.limit > 1:
            return 'whole'
        began.set()
        go_on.wait()
        steps.left = 0
        return 'cut short'

    class Steps(search_budget.Steps):
        @property
        def are_spent(self):
            go_on.set()
            late.join()
            return super().are_spent

    class Budget(search_budget.Budget):
        def share(self):
            return Steps(int(self._left))

    ask = search_budget.Remembered(answer)
    late = threading.Thread(target=ask, args=('question', Budget(1)))
    late.start()
    began.wait()
    assert ask('question', Budget(5)) == 'whole'
    assert ask('question', Budget(9)) == 'whole'

# SPDX-License-Identifier: Apache-2.0
"""One request has an end, however many hosts it takes to look at.

Steps are counted where they are made, and not as the module says.
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
# What 16 groups get in any case.
_LEAST = 32


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """The steps that were made, one by one."""
    steps = []
    original = search._Search._go

    def go(self, position, cost):
        if position < len(self.order) and self.steps > 0:
            steps.append(position)
        return original(self, position, cost)

    monkeypatch.setattr(search._Search, '_go', go)
    monkeypatch.setattr(search_budget, 'MAX_STEPS', _MOST)
    search.cached.memory.clear()
    explain._explain.memory.clear()
    yield steps
    search.cached.memory.clear()


def _groups(count):
    return {f'ACCEL{index}': device_profile.Group({'GPU': 1}, {})
            for index in range(count)}


def _stocks(count):
    return [arrange.AvailableUnits(
        str(index), 'GPU', frozenset(), 1,
        model.Place(0, 'r', 's', f'd{index:02d}'), 1)
        for index in range(count)]


def _hard(seed, budget=None):
    """Sixteen in a row, each joined to the next; but the odd ones are fewer.

    Nothing but trying tells, and no two seeds look alike.
    """
    pairs = [frozenset({f'd{one:02d}', f'd{other:02d}'})
             for one in range(9) for other in range(9, 16)]
    rules = [affinity.Rule('link_domain', True, (f'ACCEL{index}',
                                                 f'ACCEL{index + 1}'))
             for index in range(15)]
    rules.append(affinity.Rule('device', False, tuple(_groups(16))))
    return arrange.arrange(
        _groups(16), _stocks(16), rules, arrange.HostContext(
            links=model.Links(islands=tuple(
                random.Random(seed).sample(pairs, 50)))), budget=budget)


def test_the_hosts_of_a_request_share_its_steps(made):
    budget = search_budget.Budget(2 * _MOST)
    taken = []
    for seed in range(20):
        before = len(made)
        found = _hard(seed, budget)
        assert found.kind == 'limit'
        taken.append(len(made) - before)
    assert taken == [pytest.approx(_MOST, rel=0.1)] * 2 + [_LEAST] * 18


def test_it_is_said_that_a_host_was_not_searched_to_its_end():
    budget = search_budget.Budget(_MOST + 100)
    assert [_hard(seed, budget).objection for seed in range(2)] == [
        'no way to keep its rules was found in 2000 steps',
        'no way to keep its rules was found in 100 steps; other hosts took '
        'the rest of what a request has']


def test_a_host_that_is_easy_is_found_after_any_number_that_are_not():
    budget = search_budget.Budget(2 * _MOST)
    for seed in range(12):
        _hard(seed, budget)
    rules = [affinity.Rule('device', False, tuple(_groups(16)))]
    for count in range(16, 20):
        found = arrange.arrange(_groups(16), _stocks(count), rules,
                                budget=budget)
        assert len(set(found.chosen.values())) == 16
    found = arrange.arrange(_groups(16), _stocks(15), rules,
                            budget=budget)
    assert found.kind == 'units'


def test_a_host_that_is_alone_takes_as_many_as_there_are(made):
    for seed in range(3):
        before = len(made)
        assert _hard(seed).kind == 'limit'
        assert len(made) - before == pytest.approx(_MOST, rel=0.1)


def test_what_is_known_costs_nothing_and_more_steps_go_on(made):
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


def test_the_most_groups_get_what_they_need(monkeypatch):
    monkeypatch.undo()
    found = arrange.arrange(_groups(search.MAX_DEMANDS), _stocks(
        search.MAX_DEMANDS), budget=search_budget.Budget(0))
    assert len(set(found.chosen.values())) == search.MAX_DEMANDS


def test_why_nothing_fits_is_asked_within_the_same_steps(made):
    """Each rule alone is a search of its own."""
    budget = search_budget.Budget(0)
    names = tuple(_groups(6))
    rules = [affinity.Rule('link_domain', True, names[index:index + 3])
             for index in range(4)]
    rules.append(affinity.Rule('device', False, names))
    found = arrange.arrange(
        _groups(6), _stocks(6), rules, arrange.HostContext(
            links=model.Links(partitions=(frozenset({'d00', 'd01', 'd02'}),
                                          frozenset({'d03', 'd04', 'd05'})))),
        budget=budget)
    assert found.kind == 'together'
    assert len(made) <= 6 * 2 * 6


def test_a_fleet_that_is_too_large_for_the_memory_is_remembered_in_part(
        monkeypatch):
    """It comes in the same order each time: the oldest is wanted next."""
    monkeypatch.setattr(search_budget, '_MEMORY', 200)
    asked = []
    ask = search_budget.remembered(
        lambda question, _steps: asked.append(question) or question)
    fleet = [f'{number:09d}' for number in range(30)]
    for _request in range(10):
        for host in fleet:
            ask(host, search_budget.Budget())
    assert len(asked) < 8 * len(fleet)


def test_an_answer_goes_with_the_steps_that_it_took():
    """Another thread's comes late, and was cut short."""
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
        def are_over(self):
            go_on.set()
            late.join()
            return super().are_over

    class Budget(search_budget.Budget):
        def share(self):
            return Steps(int(self._left))

    ask = search_budget.remembered(answer)
    late = threading.Thread(target=ask, args=('question', Budget(1)))
    late.start()
    began.wait()
    assert ask('question', Budget(5)) == 'whole'
    assert ask('question', Budget(9)) == 'whole'

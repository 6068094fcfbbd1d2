# SPDX-License-Identifier: Apache-2.0
"""Which functions are dirty, by Placement and by what it does not know."""

import pytest

from nova_accel.compute.state import dirt
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.placement import dirt as traits
from nova_accel.core.placement import inventory
from tests.unit import build

_CARD, _VF, _OTHER = map(build.address, (
    '0000:85:00.0', '0000:85:00.1', '0000:86:00.0'))
_FUNCTIONS = [build.function(str(_CARD)),
              build.function(str(_VF), physfn=str(_CARD)),
              build.function(str(_OTHER))]
_NAME = f'host1_accel_{_CARD}'


def _node(*functions, name=_NAME):
    dirty = {'provider': frozenset(functions)} if functions else {}
    return inventory.Node(build.ROOT, 'host1', {'provider': name}, dirty)


def _states(state, functions=_FUNCTIONS):
    return {address: why.state
            for address, why in state.withheld(functions).items()}


@pytest.mark.parametrize('dirty, there, withheld', [
    ([_CARD], _FUNCTIONS, {_CARD, _VF}),
    ([_VF], _FUNCTIONS, {_VF}),
    # The VFs were disabled.
    ([_VF], _FUNCTIONS[::2], {_CARD}),
    ([], _FUNCTIONS, set())])
def test_functions_of_a_card(dirty, there, withheld):
    state = dirt.Dirt()
    assert state.update(_node(*dirty)) == bool(dirty)
    assert set(state.withheld(there)) == withheld


@pytest.mark.parametrize('dirty, there, cleaned', [
    # Its virtual function cannot be cleaned in its place.
    ([_CARD], _FUNCTIONS, {_CARD: {_CARD}}),
    ([_CARD, _VF], _FUNCTIONS, {_CARD: {_CARD}, _VF: {_VF}}),
    ([_VF], _FUNCTIONS[::2], {_CARD: {_CARD, _VF}}),
    # The card is missing.
    ([_VF], _FUNCTIONS[2:], {})])
def test_cleanable_functions(dirty, there, cleaned):
    state = dirt.Dirt()
    state.update(_node(*dirty))
    assert state.cleanable(there) == cleaned
    for functions in cleaned.values():
        assert state.begin(functions)
        state.end(functions, 'broken')
        state.update(_node(*dirty))
        assert state.failures() == functions
        state.use(functions)
        assert state.begin(functions)
        assert not state.begin(functions)
        state.end(functions, '')
    assert (cleaned == {}) == bool(state)


def test_held_function_is_not_withheld():
    state = dirt.Dirt(lambda: {'server': (hostdev.Hostdev(_VF, ''),)})
    state.use([_VF, _OTHER])
    assert _states(state) == {_OTHER: model.WithheldState.DIRTY}


def test_from_use_to_the_next_server():
    states = model.WithheldState
    state = dirt.Dirt()
    state.use([_OTHER], is_stored=True)
    # Nova has not read the providers again.
    state.update(_node())
    assert _states(state) == {_OTHER: states.DIRTY}
    state.update(_node(_OTHER))
    assert state.in_placement('provider') == {_OTHER}
    state.begin((_OTHER,))
    assert _states(state) == {_OTHER: states.CLEANING}
    state.end((_OTHER,), 'broken')
    assert _states(state) == {_OTHER: states.CLEANING_FAILED}
    assert state.failures() == {_OTHER}
    state.use([_OTHER])
    assert state.failures() == set()
    state.begin((_OTHER,))
    state.end((_OTHER,), '')
    assert _states(state) == {}
    assert (state.cleaned(), state.in_placement('provider')) == (
        {_OTHER}, set())
    # A server gets it before Placement knows that it was clean.
    state.use([_OTHER], is_stored=True)
    assert state.cleaned() == set()
    assert _states(state) == {_OTHER: states.DIRTY}


def test_operator_frees_what_was_stored():
    state = dirt.Dirt()
    state.use([_OTHER], is_stored=True)
    for _round in range(2):
        state.update(_node())
    assert _states(state) == {}


def test_use_that_was_not_stored_lasts():
    state = dirt.Dirt()
    state.use([_OTHER])
    for _round in range(3):
        state.update(_node())
    assert state.unstored() == {_OTHER}
    state.update(_node(_OTHER))
    assert state.unstored() == set()


@pytest.mark.parametrize('reserved, names, dirty', [
    (1, traits.traits([_VF], True), {_VF}),
    # An operator has freed it.
    (0, traits.traits([_VF], True), set()),
    (0, traits.traits([_VF, _OTHER], False), {_VF, _OTHER}),
    (1, {'CUSTOM_NOVA_ACCEL_DIRTY'}, set())])
def test_traits_of_dirty_functions(reserved, names, dirty):
    existing = inventory.Existing(
        'uuid', _NAME, build.ROOT,
        {'CUSTOM_UNIT_OF_X': {'total': 1, 'reserved': reserved}},
        frozenset(names))
    assert traits.read([existing]) == ({'uuid': dirty} if dirty else {})
    assert traits.read([existing], frozenset(dirty)) == {}

# SPDX-License-Identifier: Apache-2.0
"""Changes between two snapshots. Each change is reported once."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from nova_accel.core import changes
from nova_accel.core import model
from nova_accel.core.placement import inventory
from nova_accel.core.placement import providers
from tests.unit import build

_FAILED, _DRAINED = (model.WithheldState.RESET_FAILED,
                     model.WithheldState.DRAINED)
_SNAPSHOTS = st.dictionaries(st.sampled_from('abc'), st.frozensets(
    st.integers(0, 3)), max_size=3)


def _offering(*withheld, told=(), count=2):
    """Return a compute node with one card of two units.

    :param withheld: number of a unit and a state, of each unit withheld
    :param told: the states of its provider in Placement
    """
    region = build.region(count=count)
    region = dataclasses.replace(region, withheld=tuple(
        (region.units[number], state) for number, state in withheld))
    here = build.inventory(model.Host(devices=(build.device(region),)))
    return inventory.NodeInventory(here.host, dataclasses.replace(
        here.node, withheld=frozenset(
            (here.offered[0].uuid, state) for state in told)))


def _unit(number):
    return build.region(count=2).units[number]


@given(_SNAPSHOTS, _SNAPSHOTS)
def test_changes_lead_from_one_snapshot_to_the_next(before, now):
    found = changes.between(before, now)
    reached = {}
    for key in before.keys() | found.begun.keys():
        items = (before.get(key, frozenset()) - found.ended.get(
            key, frozenset())) | found.begun.get(key, frozenset())
        if items or key in now:
            reached[key] = items
    assert reached == now
    for key, items in found.begun.items():
        assert not items & before.get(key, frozenset())
    for key, items in found.ended.items():
        assert not items & now.get(key, frozenset())


@given(_SNAPSHOTS)
def test_equal_snapshots_have_no_changes(snapshot):
    assert not changes.between(snapshot, dict(snapshot))


def test_key_without_items_begins_and_ends():
    one = {'a': frozenset()}
    assert changes.between({}, one).begun == one
    assert changes.between(one, {}).ended == one


def test_second_unit_of_a_card_is_a_change_of_its_own():
    before = changes.withheld(_offering((0, _FAILED)))
    now = changes.withheld(_offering((0, _FAILED), (1, _FAILED)))
    found = changes.between(before, now)
    assert list(found.begun.values()) == [frozenset({_unit(1)})]
    assert not found.ended


def test_two_states_of_one_unit_are_two_changes():
    before = changes.withheld(_offering((0, _FAILED)))
    found = changes.between(before, changes.withheld(
        _offering((0, _DRAINED))))
    assert {state for _uuid, state in found.begun} == {_DRAINED}
    assert {state for _uuid, state in found.ended} == {_FAILED}


def test_after_a_restart_only_differences_to_placement_are_reported():
    here = _offering((0, _FAILED), told=[_FAILED])
    assert not changes.between(changes.told(here), changes.withheld(here))
    here = _offering((0, _FAILED))
    assert changes.between(changes.told(here), changes.withheld(here)).begun
    here = _offering(told=[_FAILED])
    found = changes.between(changes.told(here), changes.withheld(here))
    assert list(found.ended.values()) == [frozenset()]


def test_device_that_is_not_offered_has_not_recovered():
    before = changes.withheld(_offering((0, _FAILED)))
    gone = build.inventory(model.Host())
    kept = changes.still(before, changes.withheld(gone), gone)
    assert kept == before
    here = _offering()
    assert changes.still(kept, changes.withheld(here), here) == {}


def test_placement_has_the_states_of_a_provider():
    existing = inventory.Existing('u', 'n', 'p', {}, frozenset(
        {'CUSTOM_NOVA_ACCEL', 'CUSTOM_NOVA_ACCEL_UNHEALTHY',
         'CUSTOM_NOVA_ACCEL_DRAINED'}))
    assert providers.withheld([existing]) == {
        ('u', model.WithheldState.UNHEALTHY), ('u', _DRAINED)}

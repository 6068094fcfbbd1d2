# SPDX-License-Identifier: Apache-2.0
"""Locations as the string that travels to the scheduler."""

import json
import uuid

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.core import providers
from nova_accel.core import summary
from tests.unit import build


def _offered(count, node=7, root='pci10000:e0', switch='10000:e1:00.0'):
    """So many regions, whose facts are as long as they get."""
    region = build.region()
    device = build.device(region, location=model.Location(
        node, root, ('port',), switch))
    return [providers.Offered(str(uuid.UUID(int=number)), 'name', device,
                              region) for number in range(count)]


def test_the_string_is_what_the_design_says():
    [item] = _offered(1)
    assert summary.dumps([item]) == (
        f'{{"v":1,"at":{{"{item.uuid}":'
        '[7,"pci10000:e0","10000:e1:00.0",1,1]}}')


def test_a_location_survives_the_journey_but_for_its_ports():
    items = _offered(3, node=None, root='', switch=None)
    assert summary.loads(summary.dumps(items)) == {
        item.uuid: model.Location(None, '') for item in items}
    items = _offered(3)
    assert summary.loads(summary.dumps(items)) == {
        item.uuid: model.Location(7, 'pci10000:e0', (), '10000:e1:00.0')
        for item in items}


def test_nothing_offered_is_nothing_said():
    assert summary.loads(summary.dumps([])) == {}


def test_64_regions_fit_whole():
    items = _offered(64)
    text = summary.dumps(items)
    assert len(text.encode()) <= summary.MAX_BYTES
    locations = summary.loads(text)
    assert len(locations) == 64
    assert all(place.switch and place.root for place in locations.values())


def test_of_more_the_lesser_facts_go_first():
    locations = summary.loads(summary.dumps(_offered(150)))
    assert len(locations) == 150
    assert set(locations.values()) == {model.Location(7)}


@pytest.mark.parametrize('count', [180, 200, 500, 2000])
def test_no_number_of_regions_is_too_large(count):
    items = _offered(count)
    text = summary.dumps(items)
    assert len(text.encode()) <= summary.MAX_BYTES
    locations = summary.loads(text)
    # The first ones stay, and no more is left out than has to be.
    assert list(locations) == [item.uuid for item in items[:len(locations)]]
    assert len(locations) > 170


@given(st.text() | st.binary() | st.none() | st.integers())
def test_whatever_the_stats_hold_can_be_loaded(text):
    summary.loads(text)


_plain = (st.none() | st.booleans() | st.integers() | st.floats()
          | st.text(max_size=8))
_json = _plain | st.lists(_plain, max_size=4) | st.dictionaries(
    st.text(max_size=8), _plain | st.lists(_plain, max_size=4), max_size=4)


@given(st.dictionaries(st.sampled_from(['v', 'at', 'x']), _json))
def test_whatever_the_json_says_it_is_locations_or_nothing(loaded):
    for place in summary.loads(json.dumps(loaded)).values():
        assert place.numa_node is None or type(place.numa_node) is int
        assert isinstance(place.root, str)
        assert place.switch is None or isinstance(place.switch, str)


def test_deep_nesting_is_nothing():
    assert summary.loads('{"at":' + '[' * 100_000) == {}


@pytest.mark.parametrize('row, place', [
    ([1, 'pci0000:40', 's'], model.Location(1, 'pci0000:40', (), 's')),
    ([1, 'pci0000:40', 's', 'later', {}],
     model.Location(1, 'pci0000:40', (), 's')),
    ([1, 'pci0000:40'], model.Location(1, 'pci0000:40')),
    ([1], model.Location(1)),
    ([None, 3, []], model.Location(None)),
])
def test_longer_and_shorter_rows_are_read(row, place):
    text = json.dumps({'v': 1, 'at': {'u': row}, 'new': 1})
    assert summary.loads(text) == {'u': place}


@pytest.mark.parametrize('row', [
    [], None, {}, 'row', ['1'], [True], [1.5], [[]]])
def test_a_row_that_makes_no_sense_is_left_out(row):
    text = json.dumps({'v': 1, 'at': {'bad': row, 'good': [0]}})
    assert summary.loads(text) == {'good': model.Location(0)}


@pytest.mark.parametrize('version', [2, 99, None, 'x', {}])
def test_another_version_is_no_error(version):
    assert summary.loads(json.dumps({'v': version, 'at': []})) == {}
    assert summary.loads(json.dumps({'v': version, 'rows': {}})) == {}

# SPDX-License-Identifier: Apache-2.0
"""Places and links that are read back from traits."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from nova_accel.core import model
from nova_accel.core.placement import device_traits
from nova_accel.core.placement import rebuilt
from tests.unit import build

_ADDRESSES = [f'0000:{bus}:00.0' for bus in range(81, 89)]
_LOCATIONS = st.builds(
    model.Location, st.sampled_from([None, 0, 1, 12]),
    st.sampled_from(['', 'pci0000:80', 'pci10000:00']), st.just(()),
    st.sampled_from([None, '0000:7f:00.0', '10000:01:00.0']))
_SETS = st.lists(st.frozensets(st.sampled_from(_ADDRESSES), min_size=1),
                 max_size=4, unique=True).map(tuple)


def _read(locations, links):
    """Return the places and links read from traits of these locations."""
    return {address: device_traits.loads(device_traits.dumps(
        build.device(at=address, location=location), links))
        for address, location in locations.items()}


@given(st.fixed_dictionaries(dict.fromkeys(_ADDRESSES, _LOCATIONS)),
       _SETS, _SETS, st.frozensets(st.sampled_from(_ADDRESSES)))
def test_places_and_links_are_those_of_the_machine(
        locations, partitions, islands, faulty):
    links = model.Links(partitions, islands, faulty)
    devices = _read(locations, links)
    assert {address: rebuilt.place(properties, address)
            for address, properties in devices.items()} == {
        address: model.Place.at(location, address)
        for address, location in locations.items()}
    assert rebuilt.links(devices) == links


def test_partition_with_a_device_that_placement_does_not_show_stays_partial():
    pair = frozenset(_ADDRESSES[:2])
    links = model.Links((pair,), (pair,))
    seen = _read({_ADDRESSES[0]: model.Location()}, links)
    [partition] = rebuilt.links(seen).partitions
    assert len(partition) == 2
    assert partition & set(_ADDRESSES) == {_ADDRESSES[0]}
    assert rebuilt.links(seen).islands == ({_ADDRESSES[0]},)


def test_properties_without_a_trait_are_unknown():
    assert rebuilt.place(device_traits.Properties(), 'x') == model.Place(
        None, None, None, 'x')
    assert dataclasses.astuple(rebuilt.links({'x': device_traits.Properties()})
                               ) == ((), (), frozenset())

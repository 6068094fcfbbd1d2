# SPDX-License-Identifier: Apache-2.0
"""Views of hosts from provider summaries."""

import random
import uuid

from hypothesis import given
from hypothesis import strategies as st

from nova_accel.core import model
from nova_accel.core.capacity import summaries
from nova_accel.core.capacity import view
from nova_accel.core.placement import inventory
from nova_accel.core.placement import listing
from nova_accel.core.placement import providers
from tests.unit import build

GPU, NIC, OTHER = 'CUSTOM_GPU', 'CUSTOM_NIC', 'CUSTOM_OTHER'
TRAIT = 'CUSTOM_X'
ASKED = summaries.Asked(frozenset({GPU, NIC}), frozenset({TRAIT}))


def card(number, *regions):
    """Return a card; two of them share a switch, and four a NUMA node."""
    return build.device(
        *(regions or [build.region(GPU, bus=number)]),
        at=f'0000:{number:02x}:00.0', location=model.Location(
            number // 4, f'pci0000:{number // 4:02x}', (),
            f'0000:{number // 2:02x}:00.0'))


#: GPUs, one with two Regions; a NIC; and a card of another class.
CARDS = (*map(card, range(5)), card(
    5, build.region('a', 2, 5, [TRAIT], resource_class=GPU),
    build.region('b', 3, 5, resource_class=GPU)),
    card(6, build.region(NIC, 8, 6)), card(7, build.region(OTHER, 1, 7)))
LINKS = model.Links(
    (frozenset({'0000:00:00.0', '0000:01:00.0'}),),
    (frozenset({'0000:02:00.0', '0000:03:00.0', '0000:07:00.0'}),
     frozenset({'0000:04:00.0', '0000:07:00.0'})))


class Host:
    """A compute node in Placement.

    :param free: free units of each provider that has units, in their order
    :param chance: orders its providers
    """

    def __init__(self, name, free, chance, cards=CARDS, links=LINKS):
        self.name, free = name, iter(free)
        self.root = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        found = inventory.NodeInventory(model.Host((), cards, links=links),
                                        inventory.Node(self.root, name))
        self.providers = [*providers.desired(found),
                          *providers.classes(found)]
        self.summaries = {
            provider.uuid: self._summary(provider, free)
            for provider in self.providers}
        chance.shuffle(self.providers)

    def _summary(self, provider, free):
        return {'traits': sorted(provider.traits),
                'parent_provider_uuid': provider.parent,
                'root_provider_uuid': self.root,
                'resources': {name: {
                    'capacity': total,
                    'used': max(0, total - next(free, total))}
                    for name, total in provider.totals.items()}}

    @property
    def shape(self):
        return summaries.shape({
            provider.uuid: self.summaries[provider.uuid]
            for provider in self.providers}, self.root, ASKED)

    @property
    def view(self):
        return summaries.view_of(self.shape)

    @property
    def of_listing(self):
        """The view that ``openstack accel`` computes."""
        [shown] = listing.hosts([{
            'uuid': provider.uuid, 'name': provider.name,
            'parent_provider_uuid': provider.parent,
            'root_provider_uuid': self.root} for provider in self.providers],
            [{'uuid': self.root, 'name': self.name}], self.summaries)
        return view.of_classes(view.of(shown), ASKED.classes)


FREE = st.lists(st.integers(0, 3), min_size=9, max_size=9)


@given(FREE, st.randoms())
def test_view_is_the_same_as_from_a_listing(free, chance):
    host = Host('one', free, chance)
    assert view.canonical(host.view.units,
                          host.view.links) == host.of_listing


@given(FREE, st.randoms())
def test_hosts_that_look_alike_have_one_shape(free, chance):
    one, other = (Host(name, free, chance) for name in ('one', 'other'))
    assert one.shape == other.shape


def test_units_of_classes_that_are_not_requested_are_left_out():
    assert {units.resource_class
            for units in Host('one', [], random).view.units} == {
                GPU, NIC}


def test_devices_without_requested_units_still_link_others():
    """The islands of 2 and 3, and of 4, have a card of another class."""
    first, second = Host('one', [], random).view.links.islands
    assert {len(first), len(second), len(first & second)} == {1, 2, 3}


def test_only_named_traits_distinguish_hosts():
    plain, tagged = (Host(name, [], random, [
        card(0, build.region(GPU, traits=traits))], model.Links())
        for name, traits in (('one', ()), ('other', ['CUSTOM_Y'])))
    assert plain.shape == tagged.shape
    named = Host('third', [], random, [
        card(0, build.region(GPU, traits=[TRAIT]))], model.Links())
    assert named.shape != plain.shape

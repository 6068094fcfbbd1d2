# SPDX-License-Identifier: Apache-2.0
"""The desired provider tree, and the changes that lead to it."""

from hypothesis import given
from hypothesis import strategies as st
import os_traits
import pytest

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import device_traits
from nova_accel.core.placement import inventory
from nova_accel.core.placement import providers
from tests.unit import build

_GPU = build.device(build.region('CUSTOM_GPU', traits=['CUSTOM_X']))
_QAT = build.device(build.region('CUSTOM_A', 3, bus=0x85),
                    build.region('CUSTOM_B', 2, bus=0x85),
                    at='0000:85:00.0')


def _card_uuid():
    return naming.provider_uuid(build.ROOT, _QAT.address)


def _desired(*devices):
    return providers.desired(build.inventory(model.Host(devices=devices)))


def test_a_device_of_one_region_is_one_provider():
    [provider] = _desired(_GPU)
    assert provider == providers.Provider(
        naming.provider_uuid(build.ROOT, _GPU.address),
        'host1_accel_0000:81:00.0', build.ROOT,
        {'CUSTOM_UNIT_OF_CUSTOM_GPU': 1},
        frozenset({'CUSTOM_X', 'CUSTOM_NOVA_ACCEL', os_traits.OWNER_NOVA,
                   *device_traits.dumps(_GPU, model.Links())}))


def test_a_device_of_two_regions_is_a_provider_with_two_below_it():
    card, *regions = _desired(_QAT)
    assert (card.parent, card.totals) == (build.ROOT, {})
    assert card.traits == naming.OUR_TRAITS | device_traits.dumps(
        _QAT, model.Links())
    assert all(region.traits == naming.OUR_TRAITS for region in regions)
    assert [(region.name, region.parent, region.totals)
            for region in regions] == [
        ('host1_accel_0000:85:00.0_CUSTOM_A', card.uuid,
         {'CUSTOM_UNIT_OF_CUSTOM_A': 3}),
        ('host1_accel_0000:85:00.0_CUSTOM_B', card.uuid,
         {'CUSTOM_UNIT_OF_CUSTOM_B': 2})]


def test_inventory_has_whole_units_without_overcommit():
    assert _desired(_QAT)[1].inventory == {'CUSTOM_UNIT_OF_CUSTOM_A': {
        'total': 3, 'reserved': 0, 'min_unit': 1, 'max_unit': 3,
        'step_size': 1, 'allocation_ratio': 1.0}}


def test_offered_regions_have_their_provider():
    host = model.Host(devices=(_GPU, _QAT))
    offered = build.inventory(host).offered
    wanted = {provider.uuid: provider
              for provider in _desired(_GPU, _QAT)}
    assert [item.region.name for item in offered] == [
        'CUSTOM_GPU', 'CUSTOM_A', 'CUSTOM_B']
    for item in offered:
        assert wanted[item.uuid].name == item.name
        assert wanted[item.uuid].totals == {
            naming.unit_class(item.region.resource_class):
                len(item.region.units)}


def test_refused_function_withholds_the_provider_of_its_card():
    host = build.host(build.card('0000:85:00.0', 2),
                      {'product_id': '37c8'})
    assert build.inventory(host).withheld == {
        naming.provider_uuid(build.ROOT, build.address('0000:85:00.0')):
        host.refusals[0]}


def test_refused_vf_withholds_the_provider_of_its_card():
    functions = [build.function('0000:85:00.0', '8086:37c8', num_vfs=1),
                 build.function('0000:85:00.1', '8086:37c9', use='x',
                                physfn='0000:85:00.0')]
    host = build.host(functions, {'product_id': '37c9'})
    assert list(build.inventory(host).withheld) == [
        naming.provider_uuid(build.ROOT, build.address('0000:85:00.0'))]


def _classes(*devices, **more):
    return {provider.name: provider
            for provider in providers.classes(
                build.inventory(model.Host(devices=devices)), **more)}


def test_each_class_is_counted_once_for_the_host():
    other = build.device(build.region('CUSTOM_GPU', 2, 0x82,
                                      traits=['CUSTOM_Y']),
                         at='0000:82:00.0')
    found = _classes(_GPU, _QAT, other)
    assert {name: provider.totals for name, provider in found.items()} == {
        'host1_accel_CUSTOM_GPU': {'CUSTOM_GPU': 3},
        'host1_accel_CUSTOM_A': {'CUSTOM_A': 3},
        'host1_accel_CUSTOM_B': {'CUSTOM_B': 2}}
    # It has the traits of all its devices.
    assert found['host1_accel_CUSTOM_GPU'].traits == {
        *naming.OUR_TRAITS, 'CUSTOM_X', 'CUSTOM_Y'}
    assert {provider.parent for provider in found.values()} == {build.ROOT}
    assert len({provider.uuid for provider in found.values()}) == 3


def test_disputed_units_are_reserved_in_the_class():
    [found] = _classes(_GPU, disputed={_uuid(_GPU): 1}).values()
    assert found.inventory['CUSTOM_GPU']['reserved'] == 1


def test_held_units_of_a_missing_device_are_counted_in_the_class():
    gone = {'some uuid': {'CUSTOM_UNIT_OF_CUSTOM_GPU': 2}}
    [found] = _classes(_GPU, stuck=gone).values()
    assert found.totals == {'CUSTOM_GPU': 3}


def test_units_held_as_another_class_are_not_counted():
    stuck = {_uuid(_GPU): {'CUSTOM_UNIT_OF_CUSTOM_OLD': 1}}
    [found] = _classes(_GPU, stuck=stuck).values()
    assert found.inventory == {}


@pytest.mark.parametrize('reasons, reason', [
    ([providers.MISSING], providers.MISSING),
    ([providers.REFUSED], providers.REFUSED),
    ([providers.NOT_NAMED, providers.REFUSED], providers.REFUSED),
    ([providers.NOT_NAMED], providers.NOT_NAMED),
    ([], providers.NOT_NAMED)])
def test_reason_of_a_class_is_that_of_its_held_devices(reasons, reason):
    devices = [inventory.Existing(name, name, build.ROOT, {}, frozenset())
               for name in [*reasons, providers.MISSING + ' of another class']]
    held = {name: {'CUSTOM_UNIT_OF_CUSTOM_GPU': 1} for name in reasons}
    why = providers.reason_class_not_offered(lambda device: device.name,
                                             devices, held)
    assert why(inventory.Existing(
        'some uuid', 'host1_accel_CUSTOM_GPU', build.ROOT, {},
        frozenset())) == reason


class _Tree:
    """A tree of providers that refuses what Placement refuses."""

    def __init__(self, existing=()):
        self.providers = {item.uuid: item for item in existing}
        self.allocated = set()

    def diff(self, wanted):
        there = list(self.providers.values())
        return providers.diff(wanted, there, providers.stuck(
            wanted, there, self.held), lambda provider: providers.NOT_NAMED)

    def held(self, uuid):
        """Amounts by class; an allocated provider is allocated completely."""
        return {name: values['total'] for name, values
                in self.providers[uuid].inventory.items()
                } if uuid in self.allocated else {}

    def apply(self, changes):
        for change in changes:
            match change:
                case providers.Put(provider):
                    self._put(provider)
                case providers.Reserve(uuid, _name, reserved, traits):
                    old = self.providers[uuid]
                    self._set(uuid, old.name, old.parent, reserved, traits)
                case providers.Remove(uuid, _name):
                    assert uuid not in self.allocated
                    assert not any(item.parent == uuid for item
                                   in self.providers.values())
                    del self.providers[uuid]

    def _put(self, provider):
        assert provider.parent in {build.ROOT, *self.providers}
        old = self.providers.get(provider.uuid)
        if old and provider.uuid in self.allocated:
            assert set(old.inventory) <= set(provider.inventory)
            assert all(values['max_unit'] >= old.inventory[name]['max_unit']
                       for name, values in provider.inventory.items()
                       if name in old.inventory)
        # Placement's answers have more fields than were put.
        self._set(provider.uuid, provider.name, provider.parent, {
            name: dict(values, resource_provider_generation=7)
            for name, values in provider.inventory.items()}, provider.traits)

    def _set(self, uuid, name, parent, inventories, traits):
        self.providers[uuid] = inventory.Existing(
            uuid, name, parent, inventories, traits)

    def has(self, wanted):
        """Return whether the tree has exactly the wanted providers."""
        return {(p.uuid, p.parent, tuple(sorted(p.inventory)), p.traits)
                for p in self.providers.values()} == {
            (p.uuid, p.parent, tuple(sorted(p.totals)), p.traits)
            for p in wanted}


def _tree(*devices, allocated=()):
    tree = _Tree()
    tree.apply(tree.diff(_desired(*devices)))
    tree.allocated.update(allocated)
    return tree


def _uuid(device, region=None):
    return naming.provider_uuid(build.ROOT, device.address, region)


def test_empty_tree_gets_all_providers_parents_first():
    changes = _Tree().diff(_desired(_GPU, _QAT))
    assert changes == tuple(map(providers.Put, _desired(_GPU, _QAT)))


def test_no_changes_and_no_reads_if_nothing_changed():
    tree = _tree(_GPU, _QAT)

    def ask(uuid):
        raise AssertionError(f'asked about {uuid}')

    wanted, there = _desired(_GPU, _QAT), tree.providers.values()
    assert providers.diff(wanted, there, providers.stuck(wanted, there, ask),
                          lambda provider: providers.NOT_NAMED) == ()


@pytest.mark.parametrize('changed', [
    build.device(build.region('CUSTOM_GPU', 2, traits=['CUSTOM_X'])),
    build.device(build.region('CUSTOM_GPU', traits=['CUSTOM_Y'])),
    build.device(build.region('CUSTOM_GPU2', traits=['CUSTOM_X'])),
])
def test_a_change_of_units_traits_or_class_is_put(changed):
    assert _tree(_GPU).diff(_desired(changed)) == tuple(
        map(providers.Put, _desired(changed)))


def test_max_unit_is_never_lowered():
    """Otherwise a server that has all units could not move any more."""
    tree = _tree(_gpus(3))
    for total, most in ((1, 3), (2, 3), (4, 4), (3, 4)):
        tree.apply(tree.diff(_desired(_gpus(total))))
        [values] = tree.providers[_uuid(_GPU)].inventory.values()
        assert (values['total'], values['max_unit']) == (total, most)
        assert tree.diff(_desired(_gpus(total))) == ()


def _gpus(number):
    return build.device(build.region('CUSTOM_GPU', number))


def test_max_unit_of_a_new_class_is_its_total():
    tree = _tree(_gpus(3))
    tree.apply(tree.diff(_desired(build.device(
        build.region('CUSTOM_GPU2', 1)))))
    [values] = tree.providers[_uuid(_GPU)].inventory.values()
    assert values['max_unit'] == 1


def test_reserved_provider_is_offered_again_when_wanted():
    tree = _tree(_GPU, allocated=[_uuid(_GPU)])
    tree.apply(tree.diff([]))
    assert tree.diff(_desired(_GPU)) == (providers.Put(_desired(_GPU)[0]),)


def test_unwanted_providers_are_removed_children_first():
    tree = _tree(_QAT)
    removed = [change.uuid for change in tree.diff([])]
    assert removed[-1] == _uuid(_QAT)
    assert set(removed) == set(tree.providers)


def test_unwanted_provider_with_allocations_is_reserved_once():
    tree = _tree(_GPU, allocated=[_uuid(_GPU)])
    [change] = tree.diff([])
    assert isinstance(change, providers.Reserve)
    assert change.name == 'host1_accel_0000:81:00.0'
    assert change.inventory['CUSTOM_UNIT_OF_CUSTOM_GPU']['reserved'] == 1
    assert change.traits >= {providers.NOT_NAMED}
    tree.apply([change])
    assert tree.diff([]) == ()


def test_parent_stays_while_a_child_has_allocations():
    tree = _tree(_QAT, allocated=[_uuid(_QAT, 'CUSTOM_B')])
    tree.apply(tree.diff([]))
    assert set(tree.providers) == {_uuid(_QAT), _uuid(_QAT, 'CUSTOM_B')}


def test_a_class_in_use_is_reserved_and_the_new_one_waits():
    tree = _tree(_GPU, allocated=[_uuid(_GPU)])
    renamed = build.device(build.region('CUSTOM_GPU2'))
    tree.apply(tree.diff(_desired(renamed)))
    inventory = tree.providers[_uuid(_GPU)].inventory
    assert {name: values['reserved'] for name, values in inventory.items()
            } == {'CUSTOM_UNIT_OF_CUSTOM_GPU': 1}
    tree.allocated.clear()
    tree.apply(tree.diff(_desired(renamed)))
    assert tree.has(_desired(renamed))


_ADDRESSES = [f'0000:{bus:02x}:00.0' for bus in (0x81, 0x82, 0x83)]


@st.composite
def _hosts(draw):
    devices = []
    for at in draw(st.lists(st.sampled_from(_ADDRESSES), unique=True)):
        names = draw(st.lists(st.sampled_from(
            ['CUSTOM_A', 'CUSTOM_B', 'CUSTOM_C']), min_size=1, unique=True))
        devices.append(build.device(*(
            build.region(name, draw(st.integers(1, 4)), traits=draw(
                st.sets(st.sampled_from(['CUSTOM_X', 'CUSTOM_Y']))))
            for name in names), at=at))
    return _desired(*devices)


@given(st.lists(_hosts(), min_size=2, max_size=4), st.data())
def test_any_sequence_of_changes_leads_to_the_wanted_tree(hosts, data):
    tree = _Tree()
    for wanted in hosts:
        held = [uuid for uuid, item in tree.providers.items()
                if item.inventory]
        tree.allocated = data.draw(st.sets(st.sampled_from(held))
                                   if held else st.just(set()))
        # _Tree refuses to remove what is allocated.
        tree.apply(tree.diff(wanted))
        assert tree.diff(wanted) == ()
        assert tree.allocated <= set(tree.providers)
        kept = {provider.uuid for provider in wanted}
        for uuid in tree.allocated - kept:
            assert all(values['reserved'] == values['total'] for values in
                       tree.providers[uuid].inventory.values())
    tree.allocated = set()
    tree.apply(tree.diff(hosts[-1]))
    assert tree.has(hosts[-1])

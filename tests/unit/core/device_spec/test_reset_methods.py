# SPDX-License-Identifier: Apache-2.0
"""How a unit is reset, and whether it is offered if it cannot be."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.core.device_spec import reset_methods
from tests.unit import build


def _bridge(how=None):
    return build.function('0000:80:01.0', '8086:1', resets_below=how,
                          class_code=build.PCI_BRIDGE)


_BRIDGE = _bridge(model.BusReset.SUBORDINATE)
_BEHIND = model.Location(ports=('0000:80:01.0',))


def _card(*methods, **facts):
    """A card of several functions behind a bridge, in one IOMMU group."""
    return [build.function(
        f'0000:81:00.{number}', iommu_group='7', location=_BEHIND,
        reset_methods=ways, **facts) for number, ways in enumerate(methods)]


def _ways(unit, functions):
    found = reset_methods.ways(tuple(function.address for function in unit),
                               {function.address: function
                                for function in functions})
    return found and [(str(way.address), bool(way.behind)) for way in found]


def _methods(unit, functions, wanted=reset_methods.REQUIRED):
    """The methods by function or bridge; None without a way to reset."""
    found = reset_methods.ways(tuple(function.address for function in unit), {
        function.address: function for function in functions}, wanted)
    return found and [(str(way.address).rpartition(':')[2],
                       ' '.join(way.methods)) for way in found]


@pytest.mark.parametrize('methods, by_default, flr, bus', [
    # The bus is reset too if nothing else is behind the bridge.
    (('flr',), [('00.0', '')], [('00.0', 'flr')], None),
    (('flr', 'bus'), [('00.0', ''), ('00.0', 'bus')], [('00.0', 'flr')],
     [('00.0', 'bus')]),
    (('flr', 'pm', 'bus'), [('00.0', 'flr bus'), ('00.0', 'bus')],
     [('00.0', 'flr')], [('00.0', 'bus')]),
    (('acpi', 'pm'), [('00.0', 'acpi')], None, None),
    (('af_flr',), [('00.0', '')], [('00.0', 'af_flr')], None),
    (('pm', 'bus'), [('00.0', 'bus')], None, [('00.0', 'bus')]),
    (('cxl_bus',), [('00.0', 'cxl_bus')], None, [('00.0', 'cxl_bus')]),
    (('pm',), None, None, None), ((), None, None, None),
    (None, [('00.0', '')], None, None)])
def test_methods_for_a_card_of_one_function(methods, by_default, flr,
                                            bus):
    plain = build.function('0000:80:01.0', class_code=build.PCI_BRIDGE)
    [card] = _card(methods)
    assert [_methods([card], [plain, card], wanted)
            for wanted in (reset_methods.REQUIRED, reset_methods.FLR,
                           reset_methods.BUS)] == [
        by_default, flr, bus]


def test_methods_for_a_card_of_several_functions():
    """The kernel lists "bus" only for the function that it found first."""
    card = _card(('flr', 'pm', 'bus'), ('flr', 'pm'))
    machine = [_BRIDGE, *card]
    assert _methods(card[:1], machine) == [('00.0', 'flr')]
    assert _methods(card, machine) == [
        ('00.0', 'flr'), ('00.1', 'flr')]
    assert _methods(card, machine, reset_methods.FLR) == [
        ('00.0', 'flr'), ('00.1', 'flr')]
    assert _methods(card[:1], machine, reset_methods.BUS) is None
    assert _methods(card, machine, reset_methods.BUS) == [('01.0', '')]


@pytest.mark.parametrize('methods', [('flr',), ('flr', 'bus'), None])
def test_functions_are_reset_one_by_one(methods):
    card = _card(methods, ('flr',))
    assert _ways(card, card) == [('0000:81:00.0', False),
                                 ('0000:81:00.1', False)]


def test_bus_is_reset_if_a_function_cannot_be_reset_alone():
    card = _card(('flr',), ())
    assert _ways(card, [_BRIDGE, *card]) == [('0000:80:01.0', True)]


def test_bus_with_functions_of_other_units_is_not_reset():
    card = _card((), ())
    other = build.function('0000:81:01.0', location=_BEHIND,
                           iommu_group='8')
    assert _ways(card, [_BRIDGE, *card, other]) is None
    assert _ways(card[:1], [_BRIDGE, *card]) is None


def test_no_reset_without_a_bridge_that_can_reset_the_bus():
    card = _card(())
    plain = build.function('0000:80:01.0', class_code=build.PCI_BRIDGE)
    assert _ways(card, card) is None
    assert _ways(card, [plain, *card]) is None


def _described(unit, functions):
    functions = {function.address: function for function in functions}
    return reset_methods.describe(reset_methods.ways(
        tuple(function.address for function in unit), functions) or (),
        functions)


@pytest.mark.parametrize('methods, how, described', [
    ((('flr',), ('flr', 'pm')), model.BusReset.HOT_RESET, 'flr'),
    ((('flr',), ('pm',)), model.BusReset.HOT_RESET, 'vfio hot reset'),
    ((('flr',), ('pm',)), model.BusReset.SUBORDINATE, 'reset_subordinate'),
    ((('flr',), ('pm',)), model.BusReset.NO_VFIO, ''),
    ((('flr',), ('pm',)), model.BusReset.NO_FILES, ''),
    ((('flr',), ('pm',)), None, ''),
    # The kernel, which vfio asks, has no reset for this bus.
    (((),), model.BusReset.HOT_RESET, ''),
    ((('flr', 'bus'),), model.BusReset.HOT_RESET, 'flr, then bus'),
    ((None,), model.BusReset.HOT_RESET, "the kernel's choice")])
def test_reset_is_described(methods, how, described):
    card = _card(*methods)
    assert _described(card, [_bridge(how), *card]) == described


def test_each_bus_of_a_unit_is_reset():
    """A GPU and its audio device behind two ports of the card's switch."""
    functions = []
    for number, methods in enumerate([('flr', 'bus'), ('pm', 'bus')]):
        port = f'0000:82:0{number}.0'
        functions += [
            build.function(port, '8086:1', class_code=build.PCI_BRIDGE),
            build.function(f'0000:8{number + 3}:00.0', iommu_group='7',
                           location=model.Location(ports=(port,)),
                           reset_methods=methods)]
    assert _described(functions[1::2], functions) == 'flr, then bus'


def test_card_on_a_root_bus_is_not_reset_by_vfio():
    card = [build.function(f'0000:00:02.{number}', reset_methods=('pm',),
                           iommu_group='7') for number in range(2)]
    assert _described(card, card) == ''


@given(st.lists(st.sampled_from([None, (), ('flr',), ('bus',)]), min_size=1,
                max_size=5), st.sets(st.integers(0, 4), min_size=1),
       st.sampled_from(model.BusReset))
def test_resets_cover_exactly_the_unit(methods, members, resets_below):
    card = _card(*methods)
    unit = [function for number, function in enumerate(card)
            if number in members]
    bridge = build.function('0000:80:01.0', class_code=build.PCI_BRIDGE,
                            resets_below=resets_below)
    found = _ways(unit, [bridge, *card]) if unit else None
    reached = []
    for address, behind in found or ():
        reached += [str(function.address) for function in (
            card if behind else [f for f in card
                                 if str(f.address) == address])]
    assert reached == [str(f.address) for f in unit] * bool(found)


def test_possible_resets_of_a_unit_that_cannot_be_reset_wholly():
    card = _card((), ('flr',), None)
    functions = {function.address: function for function in card}
    assert reset_methods.partial_resets(tuple(functions), functions) == tuple(
        reset_methods.Way(function.address, (function.address,))
        for function in card[1:])


_NAMED = {'vendor_id': '10de'}


def test_unit_that_cannot_be_reset_is_refused():
    host = build.host(_card((), ()), _NAMED)
    assert host.devices == ()
    assert set(build.refusals(host)) == {'0000:81:00.0', '0000:81:00.1'}
    assert all('it cannot be reset by itself' in reason
               for reason in build.refusals(host).values())
    assert '"reset": "if_possible"' in host.refusals[0].remedy


def test_unit_that_cannot_be_reset_is_offered_and_reported_if_possible():
    host = build.host(_card((), ()), {**_NAMED, 'reset': 'if_possible'})
    assert len(build.units(host)['CUSTOM_PCI_10DE_2330']) == 1
    [problem] = host.problems
    assert '0000:81:00.0 (10de:2330): cannot be reset by itself' in problem


@pytest.mark.parametrize('methods, says, reason', [
    (('pm',), {}, 'its only reset is to switch it to sleep'),
    (('pm',), {'reset': 'flr'}, 'it cannot be reset by "flr" alone'),
    (('flr',), {'reset': 'bus'}, 'it cannot be reset by "bus" alone'),
    (None, {'reset': 'flr'}, 'it cannot be reset by "flr" alone'),
    (('pm',), {'reset': 'if_possible'}, ''),
    (('flr',), {'reset': 'flr'}, '')])
def test_unit_that_cannot_be_reset_as_the_entry_says_is_refused(
        methods, says, reason):
    host = build.host(_card(methods), {**_NAMED, **says})
    assert len(host.devices) == (not reason)
    assert build.refusals(host).get('0000:81:00.0', '').startswith(reason)


def test_resettable_unit_is_offered_with_any_entry():
    for more in ({}, {'reset': 'required'}, {'reset': 'if_possible'}):
        host = build.host(_card(('flr',)), {**_NAMED, **more})
        assert (len(host.devices), host.problems) == (1, ())


def test_function_of_a_slot_with_several_iommu_groups_is_reset_alone():
    gpu, audio = (build.function(
        f'0000:81:00.{number}', ids, location=_BEHIND, reset_methods=methods)
        for number, ids, methods in ((0, '10de:2330', ('flr',)),
                                     (1, '10de:22a3', ())))
    named = {'product_id': '2330'}
    assert build.units(build.host([_BRIDGE, gpu, audio], named)) == {
        'CUSTOM_PCI_10DE_2330': ['0000:81:00.0']}
    # There are functions behind the bridge that the entry does not name.
    dull = build.function('0000:81:00.0', location=_BEHIND, reset_methods=())
    assert build.units(build.host([_BRIDGE, dull, audio], named)) == {}


def test_the_reason_names_the_function_whose_reset_failed():
    card = _card(('flr',), ('flr',))
    host = build.offer(card, build.entries(_NAMED), withheld={
        card[1].address: [model.Withheld('its reset failed: x', 'wait')]})
    assert build.refusals(host) == {
        '0000:81:00.0': '0000:81:00.1 in its IOMMU group: its reset failed: '
                        'x', '0000:81:00.1': 'its reset failed: x'}
    assert {refusal.remedy for refusal in host.refusals} == {'wait'}


def test_the_reason_names_the_first_function_of_a_unit():
    first, second = _card(('flr',), ('flr',))
    first = dataclasses.replace(first, num_vfs=2)
    assert build.refusals(build.host([first, second], _NAMED)) == {
        '0000:81:00.0': 'it has 2 virtual functions enabled',
        '0000:81:00.1': '0000:81:00.0 in its IOMMU group: it has 2 virtual '
                        'functions enabled'}


def test_other_units_of_a_pool_are_offered_after_a_failed_reset():
    vfs = build.card('0000:85:00.0', 3)
    host = build.offer(vfs, build.entries({'product_id': '37c9'}),
                       withheld={vfs[2].address: [model.Withheld('x')]})
    assert build.units(host) == {
        'CUSTOM_PCI_8086_37C9': ['0000:85:00.1', '0000:85:00.3']}
    assert build.refusals(host) == {'0000:85:00.2': 'x'}


@pytest.mark.parametrize('driver, vfio, offered', [
    ('vfio-pci', True, True), ('mlx5_vfio_pci', True, True),
    ('nvidia', True, True), ('nvidia', False, False), (None, False, False)])
def test_unmanaged_function_needs_a_vfio_driver(
        driver, vfio, offered):
    gpu = build.function('0000:81:00.0', driver=driver, vfio=vfio)
    host = build.host([gpu], {**_NAMED, 'managed': 'no'})
    assert bool(host.devices) is offered
    if not offered:
        [reason] = build.refusals(host).values()
        assert reason.startswith(f'its driver is {driver or "none"}')
        assert '"managed": "yes"' in host.refusals[0].remedy
    assert build.host([gpu], _NAMED).devices


def test_mdevs_are_not_reset_by_us():
    parent = build.function('0000:81:00.0', reset_methods=(), mdev_types=(
        model.MdevType('nvidia-1', 2),))
    host = build.host([parent], {'mdev_type': 'nvidia-1'})
    [device] = host.devices
    assert reset_methods.units(host) == ()
    assert device.regions[0].total == 2


def test_the_reason_names_the_card_of_virtual_functions():
    card, *vfs = build.card('0000:85:00.0', 2)
    host = build.offer([card, *vfs], build.entries({'product_id': '37c9'}),
                       withheld={card.address: [model.Withheld('x')]})
    assert {*build.refusals(host).values()} == {
        '0000:85:00.0, its physical function: x'}
